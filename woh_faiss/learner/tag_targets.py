"""The tag side of a semantic start: an item's tags and word vectors in units of their own energy.

T = [a (y − ȳ), q z]: tf-idf rows of length 1 with what co-occurring tags add, beside standardised word
vectors, each half of the energy. It is never formed; M (c + f, r) maps it to bits, and is fitted again on the
codes of every round. docs/adaptive.md has the algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import LinearOperator

from woh_faiss.errors import InputError
from woh_faiss.tags.vocabulary import MOST_TAGS, spread
from woh_faiss.validate import stored

from .blocks import Sums
from .solver import factor, squared_lengths
from .statistics import lower, scaled, stored_symmetric

Matrix = NDArray[np.float64]

#: Co-occurring tags that add to a tag's row.
NEIGHBOURS = 20
#: Co-occurrence counts kept a tag: bounds memory for large vocabularies.
PARTNERS = 100
#: Columns of T up to which T'T is kept, to fit M again; beyond it the codes' own maps are inverted instead.
MOST_COLUMNS = 1500
#: Ridge of M, as a share of T's mean energy a column.
RIDGE_M = 0.1


def shares(C: csr_array, df: Matrix) -> csr_array:
    """R, what each tag adds to the tags it occurs with.

    R_ij = C_ij / √(df_i df_j) for the `NEIGHBOURS` largest of a row, i ≠ j, rows scaled to sum to at most 1.
    C (c, c) counts the items that carry both tags, df (c,) those that carry one.
    """
    pairs = coo_array(C)
    i, j = pairs.row, pairs.col
    off = i != j
    i, j = i[off], j[off]
    d = np.maximum(df, 1.0)
    R = _largest(csr_array((pairs.data[off] / np.sqrt(d[i] * d[j]), (i, j)), shape=C.shape), NEIGHBOURS)
    return csr_array(R.multiply(1.0 / np.maximum(np.asarray(R.sum(axis=1)).reshape(-1, 1), 1.0)))


@dataclass(frozen=True, slots=True, eq=False)
class TagWeights:
    """Tags of items to tag rows, the same for every item.

    Attributes
    ----------
    R : (c, c) csr
        See `shares`.
    idf : (c,)
        What each tag counts.
    """

    R: csr_array
    idf: Matrix

    def rows(self, Y: csr_array) -> csr_array:
        """Tag rows of length 1 of Y (·, c) of 0 and 1: the marks, what co-occurring tags add, times idf.

        The more tags an item has the less it needs of others: beyond `MOST_TAGS` ever fewer of them add.
        """
        adding = spread(Y, MOST_TAGS**2 // np.maximum(np.diff(Y.indptr), MOST_TAGS))
        return unit_length(csr_array(csr_array(Y + adding @ self.R).multiply(self.idf)))


def _largest(C: csr_array, most: int) -> csr_array:
    """C with the `most` largest entries of each row; equal ones by the smaller column."""
    C.sort_indices()
    kept = np.ones(C.nnz, np.bool_)
    for row in np.flatnonzero(np.diff(C.indptr) > most):
        own = slice(C.indptr[row], C.indptr[row + 1])
        kept[own.start + np.argsort(-C.data[own], kind="stable")[most:]] = False
    indptr = np.concatenate([[0], np.cumsum(kept)])[C.indptr]
    return csr_array((C.data[kept], C.indices[kept], indptr), shape=C.shape)


def unit_length(Y: csr_array) -> csr_array:
    """Rows of Y scaled to length 1; empty rows stay empty."""
    length = np.sqrt(squared_lengths(Y))
    return csr_array(Y.multiply(1.0 / np.where(length > 0, length, 1.0)[:, None]))


@dataclass(frozen=True, slots=True, eq=False)
class TagTargets:
    """What is known of the stream's tags; a value, `seeing` and `refitted` give new ones.

    Attributes
    ----------
    C : (c, c) csr
        Items that carry both tags.
    y_mean, z_mean : (c,), (f,)
        Means over the tagged items of round 1; tags that came later have mean 0.
    a, q : float
        Weights of the two halves of T, so that each has half of the energy (all, where the other has none).
    z_scale : float
        Root of the mean squared length of z − z̄ in round 1; 1 where the vectors say nothing.
    M : (c + f, r)
        T to bits.
    TT, TB : (c + f, c + f), (c + f, r)
        Σ T'T and Σ T'B over tagged items; empty when T has more than `MOST_COLUMNS` columns.
    """

    C: csr_array
    y_mean: Matrix
    z_mean: Matrix
    a: float
    q: float
    z_scale: float
    M: Matrix
    TT: Matrix
    TB: Matrix

    @classmethod
    def start(cls, Y: csr_array, Z: Matrix, df: Matrix, n: int, r: int) -> tuple[TagTargets, csr_array]:
        """Means and scales from round 1's tagged items, Y (n1, c) of 0 and 1 and Z (n1, f); and their `y`."""
        c, f = Y.shape[1], Z.shape[1]
        z_mean = Z.mean(axis=0)
        z_energy = float(np.square(Z - z_mean).sum(axis=1).mean()) if f else 0.0
        z_scale = np.sqrt(z_energy) if z_energy > 1e-12 else 1.0
        empty = cls(
            C=csr_array((c, c)), y_mean=np.zeros(c), z_mean=z_mean, a=1.0, q=0.0, z_scale=float(z_scale),
            M=np.zeros((c + f, r)), TT=np.zeros((0, 0)), TB=np.zeros((0, r)),
        )  # fmt: skip
        side = empty.seeing(Y)
        y = side.y(Y, df, n)
        y_mean = np.asarray(y.mean(axis=0)).ravel()
        y_energy = float(y.multiply(y).sum() / len(Z) - y_mean @ y_mean)
        has_y, has_z = y_energy > 1e-12, z_energy > 1e-12
        share = 0.5 if has_y and has_z else float(has_y)
        if c + f <= MOST_COLUMNS:
            side = replace(side, TT=np.zeros((c + f, c + f)), TB=np.zeros((c + f, r)))
        a = float(np.sqrt(share / y_energy)) if has_y else 0.0
        return replace(side, y_mean=y_mean, a=a, q=float(np.sqrt(1 - share)) if has_z else 0.0), y

    @property
    def c(self) -> int:
        """Tags."""
        return len(self.y_mean)

    def widened(self, c: int) -> TagTargets:
        """With room for c tags: zero rows and columns between the old tags and the word vectors."""
        more, old, f = c - self.c, self.c, len(self.z_mean)
        if not more:
            return self
        C = csr_array(
            (self.C.data, self.C.indices, np.pad(self.C.indptr, (0, more), mode="edge")), shape=(c, c)
        )
        insert = np.full(more, old)
        M = np.insert(self.M, insert, 0.0, axis=0)
        TT, TB = self.TT, self.TB
        if c + f > MOST_COLUMNS:
            TT, TB = np.zeros((0, 0)), np.zeros((0, M.shape[1]))
        elif len(TT):
            TT = np.insert(np.insert(TT, insert, 0.0, axis=0), insert, 0.0, axis=1)
            TB = np.insert(TB, insert, 0.0, axis=0)
        return replace(self, C=C, y_mean=np.pad(self.y_mean, (0, more)), M=M, TT=TT, TB=TB)

    def seeing(self, Y: csr_array) -> TagTargets:
        """After counting which tags of Y (n, c) occur together."""
        Y = spread(Y)
        C = csr_array(self.C + Y.T @ Y)
        if C.nnz > PARTNERS * C.shape[0]:
            C = _largest(C, PARTNERS)
        C.sort_indices()
        return replace(self, C=C)

    def weigher(self, df: Matrix, n: int) -> TagWeights:
        """What makes tag rows, with idf = log((1 + n) / (1 + df)) of n items so far."""
        idf = np.log((1.0 + n) / (1.0 + np.minimum(df, n)))
        # A tag that everyone carries says nothing, but an item that carries no other must not vanish.
        return TagWeights(shares(self.C, df), np.maximum(idf, 1e-3))

    def y(self, Y: csr_array, df: Matrix, n: int) -> csr_array:
        """Tag rows of length 1: Y (·, c) of 0 and 1, smoothed, times log((1 + n) / (1 + df))."""
        return self.weigher(df, n).rows(Y)

    def z(self, Z: Matrix) -> Matrix:
        """Standardised word vectors (·, f)."""
        return (Z - self.z_mean) / self.z_scale

    def times(self, y: csr_array, z: Matrix, M: Matrix) -> Matrix:
        """T M without T: (·, r)."""
        c = self.c
        return self.a * (y @ M[:c] - self.y_mean @ M[:c]) + self.q * (z @ M[c:])

    def transposed_times(self, y: csr_array, z: Matrix, F: Matrix) -> Matrix:
        """T'F without T: (c + f, p) for F (n, p)."""
        return np.vstack([self.a * (y.T @ F - np.outer(self.y_mean, F.sum(axis=0))), self.q * (z.T @ F)])

    def operator(self, y: csr_array, z: Matrix) -> LinearOperator:
        """T (n, c + f) as what multiplies, from either side."""
        return LinearOperator(
            dtype=np.float64,
            shape=(len(z), len(self.M)),
            matvec=lambda m: self.times(y, z, m.reshape(-1, 1)),
            matmat=lambda M: self.times(y, z, M),
            rmatmat=lambda F: self.transposed_times(y, z, F),
        )

    def covariance(self, y: csr_array, z: Matrix, F: Matrix) -> Matrix:
        """F'TT'F of F (n, m), by T'F or by TT', whichever is smaller: (m, m)."""
        n, m = F.shape
        if len(self.M) * m <= n * n:
            S = self.transposed_times(y, z, F)
            return np.asarray(S.T @ S)
        of_mean = y @ self.y_mean
        TT = (y @ y.T).toarray() - of_mean - of_mean[:, None] + self.y_mean @ self.y_mean
        return np.asarray(F.T @ ((self.a**2 * TT + self.q**2 * (z @ z.T)) @ F))

    def gram(self, y: csr_array, z: Matrix, trust: Matrix | None = None) -> Matrix:
        """T'T without T, each row counting as much as it is trusted (n,): (c + f, c + f)."""
        ty, tz = scaled(y, trust), scaled(z, trust)
        n = len(z) if trust is None else float(trust.sum())
        c, ys, zs = self.c, np.asarray(ty.sum(axis=0)).ravel(), tz.sum(axis=0)
        K = np.empty((c + z.shape[1],) * 2)
        crossed = np.outer(ys, self.y_mean)
        K[:c, :c] = self.a**2 * (
            (y.T @ ty).toarray() - crossed - crossed.T + n * np.outer(self.y_mean, self.y_mean)
        )
        K[:c, c:] = self.a * self.q * (y.T @ tz - np.outer(self.y_mean, zs))
        K[c:, :c] = K[:c, c:].T
        K[c:, c:] = self.q**2 * (z.T @ tz)
        return K

    def of_codes(self, y: csr_array, z: Matrix, B: Matrix, trust: Matrix | None = None) -> Sums:
        """What items with final codes B (n, r) add to TT and TB, each as much as it is trusted (n,)."""
        return {"TT": self.gram(y, z, trust), "TB": self.transposed_times(y, z, scaled(B, trust))}

    def TB_of(self, C1: Matrix, V: Matrix, W: Matrix) -> Matrix:
        """What TB would be, nearly, where it is not kept: by V (r + 1, f) and W (r + 1, c); (c + f, r)."""
        K = np.hstack([self.a * W, self.q * V])
        K[-1, : self.c] -= self.a * self.y_mean
        return np.asarray((C1[:-1] @ K).T)

    def refitted(self, sums: Sums) -> TagTargets:
        """After fitting M to a chunk's final codes, too: the ridge regression of all codes so far on T."""
        TT, TB = self.TT + sums["TT"], self.TB + sums["TB"]
        energy = np.trace(TT) / len(TT)
        M = self.M if energy <= 0 else cho_solve(factor(TT, RIDGE_M * energy), TB, check_finite=False)
        return replace(self, TT=TT, TB=TB, M=M)

    @property
    def light(self) -> TagTargets:
        """Without what only the whole chunk needs: for the steps over its rows."""
        return replace(self, C=csr_array((0, 0)), TT=np.zeros((0, 0)), TB=np.zeros((0, 0)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name, the sparse one as its three parts, TT as the triangle that `factor` reads."""
        plain = {
            field.name: np.asarray(getattr(self, field.name)) for field in fields(self) if field.name != "C"
        }
        plain["TT"] = lower(self.TT)
        parts = {
            "C_data": self.C.data,
            "C_indices": self.C.indices.astype(np.int32),
            "C_indptr": self.C.indptr,
        }
        return {f"tags_{name}": value for name, value in {**plain, **parts}.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TagTargets:
        """The inverse of `arrays`; InputError where they cannot be those of a tag side."""
        dimensions = {"y_mean": 1, "z_mean": 1, "a": 0, "q": 0, "z_scale": 0, "M": 2, "TB": 2}
        values: dict[str, Any] = {name: stored(arrays, f"tags_{name}", n) for name, n in dimensions.items()}
        values["TT"] = stored_symmetric(arrays, "tags_TT")
        for name in ("a", "q", "z_scale"):
            values[name] = float(values[name])
        if not values["z_scale"] > 0:
            raise InputError(f"tags_z_scale is {values['z_scale']}, expected more than 0")
        parts = tuple(stored(arrays, f"tags_C_{part}", 1) for part in ("data", "indices", "indptr"))
        return cls(C=csr_array(parts, shape=(len(values["y_mean"]),) * 2), **values)


def decoded(y: csr_array, z: Matrix, V: Matrix, W: Matrix) -> Matrix:
    """h that minimises ‖z − h⁺V‖² + ‖y − h⁺W‖² + ridge: bits as real numbers from tags alone, (·, r).

    V (r + 1, f) and W (r + 1, c) have the constant column's row last. The ridge is a tenth of the energy.
    """
    r = len(V) - 1
    G = V[:r] @ V[:r].T + W[:r] @ W[:r].T
    aim = (z - V[r]) @ V[:r].T + y @ W[:r].T - W[r] @ W[:r].T
    return np.asarray(cho_solve(factor(G, max(0.1 * np.trace(G) / r, 1e-12)), aim.T)).T
