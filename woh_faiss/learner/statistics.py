"""Sufficient statistics of the stream: everything that a round may know about the past.

Letters and equation numbers are those of Zhan et al. 2021; docs/notation.md has the whole table. Model files
have the lower triangles of symmetric ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from woh_faiss.errors import InputError
from woh_faiss.validate import stored

from .blocks import Sums

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What rounds 1..t leave behind; its size does not depend on the number of items.

    Attributes
    ----------
    C1 : (r, r)
        Σ BᵀB.
    C2 : (r, m)
        Σ Bᵀφ. The paper's C4 = φᵀB is its transpose and is not kept twice.
    C3 : (m, m)
        Σ φᵀφ.
    C5 : (r, f)
        Σ BᵀZ.
    D1 : (r, r)
        Σ Bᵀ diag(k) B, with each row's weight as it was when its round ended (Eq. 14).
    D2 : (r, c)
        Σ Bᵀ diag(k) Y.
    n : int
        Items accumulated.

    With a semantic start C1, C5, D1 and D2 are of B⁺ = [B, 1] and have one row more.
    """

    C1: Matrix
    C2: Matrix
    C3: Matrix
    C5: Matrix
    D1: Matrix
    D2: Matrix
    n: int

    @classmethod
    def zero(cls, *, r: int, m: int, f: int, c: int, constant: bool = False) -> Statistics:
        """The statistics of no items.

        Parameters
        ----------
        r, m, f, c : int
            Bits, anchors, width of word vectors, tags.
        constant : bool
            Whether codes have a constant column (B⁺).
        """
        p = r + constant
        return cls(
            C1=np.zeros((p, p)),
            C2=np.zeros((r, m)),
            C3=np.zeros((m, m)),
            C5=np.zeros((p, f)),
            D1=np.zeros((p, p)),
            D2=np.zeros((p, c)),
            n=0,
        )

    @property
    def C4(self) -> Matrix:
        """Σ φᵀB: (m, r)."""
        return self.C2.T

    def plus(self, *sums: Sums) -> Statistics:
        """With what a chunk's rows add: sums of `of_features` and the like."""
        more = {name: value for part in sums for name, value in part.items()}
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})

    def widened(self, c: int) -> Statistics:
        """With room for c tags: tags that nobody carried so far add columns of zeros, which is exact."""
        return replace(self, D2=widen(self.D2, c))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name, for the model file: of C3, by far the largest, the lower triangle."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)} | {
            "C3": lower(self.C3)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Statistics:
        """The inverse of `arrays`; InputError where they cannot be those of statistics."""
        values: dict[str, Any] = {
            field.name: stored(arrays, field.name, 2)
            for field in fields(cls)
            if field.name not in ("C3", "n")
        }
        values["C3"], values["n"] = stored_symmetric(arrays, "C3"), int(stored(arrays, "n", 0))
        if values["n"] < 0:
            raise InputError(f"it has learned from {values['n']} items, which cannot be")
        return cls(**values)


def of_features(phi: NDArray[np.floating[Any]]) -> Sums:
    """What rows with features φ (n, m) add to C3, in float64: what of a round does not depend on B."""
    phi = phi.astype(np.float64, copy=False)
    return {"C3": phi.T @ phi}  # m x m


def of_codes(B: Matrix, phi: NDArray[np.floating[Any]]) -> Sums:
    """What codes B (n, r) of rows with features φ (n, m) add to C2, multiplied in φ's dtype."""
    return {"C2": B.T.astype(phi.dtype) @ phi, "n": len(B)}  # r x m


def of_words(B: Matrix, Z: Matrix) -> Sums:
    """What codes B (n, r) of rows with word vectors Z (n, f) add to C1 and C5."""
    return {"C1": B.T @ B, "C5": B.T @ Z}  # r x r, r x f


def of_weights(B: Matrix, k: Matrix, Y: csr_array) -> Sums:
    """The weighted terms of codes B (n, r), weights k (n,) and tags Y (n, c), CSR."""
    kB = k[:, None] * B  # n x r
    return {"D1": B.T @ kB, "D2": (Y.T @ kB).T}  # r x r, r x c


def scaled(M: Any, weights: Matrix | None) -> Any:
    """Rows of M (n, p), dense or sparse, times weights (n,); M itself without them."""
    if weights is None:
        return M
    column = weights.astype(M.dtype)[:, None]
    return csr_array(M.multiply(column)) if isinstance(M, csr_array) else M * column


def widen(M: Matrix, c: int) -> Matrix:
    """M with zero columns appended up to c."""
    return np.pad(M, ((0, 0), (0, c - M.shape[1])))


def lower(M: Matrix) -> Matrix:
    """The lower triangle of M (p, p), row by row: (p (p + 1) / 2,)."""
    values: Matrix = M[np.tri(len(M), dtype=bool)]
    return values


def stored_symmetric(arrays: Mapping[str, NDArray[Any]], name: str) -> Matrix:
    """The symmetric matrix (p, p) that a model file has as its `lower` triangle.

    KeyError if it is absent, InputError where it is none.
    """
    values = np.asarray(arrays[name])
    p = (isqrt(8 * values.size + 1) - 1) // 2
    if p * (p + 1) // 2 != values.size:
        raise InputError(f"{name} has {values.size} numbers, which do not fill a triangle")
    M, triangle = np.empty((p, p)), np.tri(p, dtype=bool)
    M[triangle] = M.T[triangle] = stored(arrays, name, 1)
    return M
