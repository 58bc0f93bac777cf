"""The kernel map φ: RBF similarities to m anchor items, centred, with constants frozen at round 1.

Source: Zhan et al. 2021, section 3.2. The paper's σ is the mean distance; the published code puts the
mean *squared* distance in place of σ² and subtracts the column means of φ, which the paper leaves out.
We follow the code in both, with one change: it computes width and means again from whatever batch it is
given, so that a single query maps to zeros. Here both are frozen at round 1.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError

from .blocks import Rows, Sums, block_slices, split_blocks

Matrix = NDArray[np.float64]
Single = NDArray[np.float32]

#: ‖centre of the anchors‖² in widths from which float32 loses more than 1e-5 of the exponent.
_FAR = 16
#: Rows of similarities that are worked on while they are in a cache.
_CACHED = 64
#: Share of items that are near an anchor, in a stream that stays as it was; anchors that tell it well enough.
NEAR, _TELLING = 0.9, 100
#: Similarities, in which items of the first chunk are counted.
_BINS = np.linspace(0, 1, 1001)
#: Squared lengths that float32 products stay finite with.
_HUGE = 1e30


def squared_distances(X: NDArray[Any], A: Matrix) -> Matrix:
    """‖x − a‖² of every row of X (n, d), any real dtype, to every row of A (m, d): (n, m), never negative."""
    X = np.asarray(X, dtype=np.float64, order="C")
    D: Matrix = X @ A.T
    D *= -2.0
    D += np.einsum("ij,ij->i", X, X)[:, None]
    D += np.einsum("ij,ij->i", A, A)
    return np.maximum(D, 0.0, out=D)


def centroids(X: Matrix, start: Matrix, iterations: int) -> Matrix:
    """k-means of the rows of X (n, d) from `start` (m, d): (m, d)."""
    from scipy.cluster.vq import kmeans2  # a query does not pay for it

    with warnings.catch_warnings():  # a centroid that loses all its rows stays where it was
        warnings.simplefilter("ignore", UserWarning)
        return np.asarray(kmeans2(X, start, iter=iterations, minit="matrix")[0])


def unit_rows(X: NDArray[Any]) -> Matrix:
    """Rows of X (n, d) scaled to length 1 in float64; a row of zeros stays one."""
    rows: Matrix = np.array(X, dtype=np.float64, order="C")
    squared = np.einsum("ij,ij->i", rows, rows)
    extreme = np.flatnonzero(~((squared > 1e-280) & (squared < np.inf)))
    if extreme.size:  # squares that are no float64, or zeros
        part = rows[extreme]
        largest = np.abs(part).max(axis=1, initial=0.0, keepdims=True)
        part /= np.where(largest > 0, largest, 1.0)
        rows[extreme], squared[extreme] = part, np.einsum("ij,ij->i", part, part)
    length = np.sqrt(squared)[:, None]
    rows /= np.where(length > 0, length, 1.0)  # in place: another array of that size costs more than the sums
    return rows


def products_alone(X: NDArray[Any], A: NDArray[Any]) -> NDArray[Any]:
    """X A' of X (n, d) and A (m, d), C-contiguous, of one dtype: each row one matrix-vector product.

    A matrix product's rounding depends on how many rows and threads there are; this one's does not.
    """
    out = np.empty((len(X), len(A)), X.dtype)
    for row, x in zip(out, X, strict=True):
        np.dot(A, x, out=row)
    return out


@dataclass(frozen=True, eq=False)
class Kernel:
    """φ(x) = (exp(−‖x − a‖² / 2w) − mean) / scale, which never changes; the exponential in float32.

    Attributes
    ----------
    A : (m, d) real
        Anchors: rows of the first chunk, with a semantic start means of such rows.
    width : float
        w, the mean squared distance of the first chunk to the anchors.
    mean : (m,) float64
        Column means of the uncentred map over the first chunk.
    scale : float
        1 for the paper's map; else what makes the mean ‖φ‖² of the first chunk 1.
    unit : bool
        Whether x is scaled to length 1 first.
    near : float
        Similarity that `NEAR` of the first chunk have to two anchors: the nearest may be the item's own, the
        second is as near as one is to a new item like it. Items that have it to one are near. 0 with few.
    """

    A: NDArray[Any]
    width: float
    mean: Matrix
    scale: float = 1.0
    unit: bool = False
    near: float = 0.0

    @cached_property
    def _moved(self) -> tuple[NDArray[Any], float] | None:
        """Centre and unit of length of the features, where float32 needs them; else None.

        ‖x − a‖² is ‖x‖² + ‖a‖² − 2xa, which loses all digits far from 0.
        """
        centre = self.A.mean(axis=0)
        near = centre @ centre <= _FAR * self.width and 1e-20 < self.width < 1e20
        return None if near else (centre, float(np.sqrt(self.width)))

    @cached_property
    def _anchors(self) -> tuple[Single, Single, float]:
        """Anchors (m, d), half their squared lengths (m,) and 1 / w, in the units that `_moved` says."""
        if self._moved is None:
            A, per_width = np.asarray(self.A, np.float32), 1.0 / self.width
        else:
            centre, unit = self._moved
            A, per_width = ((self.A - centre) / unit).astype(np.float32), 1.0
        half = np.einsum("ij,ij->i", A, A) / 2
        return np.ascontiguousarray(A), half, per_width

    def similarities(self, X: NDArray[Any], *, alone: bool = False) -> Single:
        """exp(−‖x − a‖² / 2w) of the rows of X: (n, d) of any real dtype → (n, m) float32.

        `alone`: each row as if it were the only one, to the bit; a large batch takes several times as long.
        """
        A, half, per_width = self._anchors
        scaled = self.unit and self._moved is None
        if self._moved is not None:
            centre, unit = self._moved
            X = ((unit_rows(X) if self.unit else X) - centre) / unit
        with np.errstate(over="ignore"):
            x = np.asarray(X, np.float32, order="C")  # sums depend on it
            squared = np.einsum("ij,ij->i", x, x)
        huge = ~(squared < _HUGE)
        if scaled:
            huge |= squared < 1 / _HUGE
        if huge.any():  # float32 cannot square them; if they are not scaled they are like no anchor
            x = x.copy()
            x[huge] = unit_rows(X[huge]) if scaled else 0
            squared[huge] = np.einsum("ij,ij->i", x[huge], x[huge])
        K: Single = products_alone(x, A) if alone else x @ A.T
        if scaled:
            length = np.sqrt(squared)
            squared = (length > 0).astype(np.float32)
            length[length == 0] = 1
        for start in range(0, len(K), _CACHED):
            rows = slice(start, start + _CACHED)
            part = K[rows]
            if scaled:
                part /= length[rows, None]
            part -= squared[rows, None] / 2
            part -= half
            part *= np.float32(per_width)
            np.exp(part, out=part)
        if not scaled:
            K[huge] = 0
        return K

    @classmethod
    def fit(cls, X: NDArray[Any], A: NDArray[Any], *, energy: bool = False) -> Kernel:
        """Freeze width and means on the first chunk.

        Parameters
        ----------
        X : (n, d) array
            Features of the first chunk.
        A : (m, d) array
            Anchors; with `energy`, means of rows of length 1.
        energy : bool
            Whether the map is that of a semantic start: rows of length 1, half the width, mean ‖φ‖² = 1.

        Raises
        ------
        InputError
            All items are alike, so that there is no width.
        """
        return cls.fit_rows(split_blocks(X), A, energy=energy)

    @classmethod
    def fit_rows(cls, X: Rows[NDArray[Any]], A: NDArray[Any], *, energy: bool = False) -> Kernel:
        """`fit` on a first chunk that is in blocks."""
        origin = np.asarray(A[0], np.float64)  # distances are measured from there: no sums of large numbers
        x, a = X.sum(_moments, origin, energy), _moments(A, origin, False)
        n, m = x["n"], a["n"]
        # The mean of ‖x − a‖² is mean ‖x‖² + mean ‖a‖² − 2 mean(x) mean(a).
        with np.errstate(over="ignore", invalid="ignore"):
            width = x["squares"] / n + a["squares"] / m - 2 * float((x["sum"] / n) @ (a["sum"] / m))
        tiny = not width > 0 and 0 < np.abs(x["sum"]).max() < 1e-140
        if tiny or not width < np.inf:
            raise InputError(
                f"features of the first chunk are too {'small' if tiny else 'large'} for their squares to be "
                "64-bit floats; scale all features by one number, or use the adaptive preset"
            )
        if not width > 0:
            raise InputError(
                f"the {n} items of the first chunk all have the same features; "
                "give a chunk whose items differ"
            )
        bare = cls(A, width / (2 if energy else 1), np.zeros(m), unit=energy)
        of_map = X.sum(_of_similarities, bare)
        mean = of_map["sum"] / n
        scale = max(of_map["squares"] / n - float(mean @ mean), 0.0) ** 0.5 if energy else 1.0
        far = np.searchsorted(np.cumsum(of_map["second"]), (1 - NEAR) * n)
        return cls(A, bare.width, mean, scale, energy, float(_BINS[far]) if m >= _TELLING else 0.0)

    def map(self, X: NDArray[Any]) -> Matrix:
        """φ of the rows of X: (n, d) of any real dtype → (n, m) float64."""
        phi = np.empty((len(X), len(self.A)))
        for rows in block_slices(len(X)):
            np.subtract(self.similarities(X[rows]), self.mean, out=phi[rows])
        if self.scale != 1:
            phi /= self.scale
        return phi


def mapped(X: NDArray[Any], kernel: Kernel) -> Single:
    """`Kernel.map` of a block of rows, kept in the precision in which it was made."""
    phi = kernel.similarities(X)
    phi -= kernel.mean.astype(np.float32)
    phi /= np.float32(kernel.scale)
    return phi


def near_anchors(phi: NDArray[Any], kernel: Kernel) -> Sums:
    """How many rows of a block of φ there are, and how many are `Kernel.near` an anchor."""
    nearest = (phi * phi.dtype.type(kernel.scale) + kernel.mean.astype(phi.dtype)).max(axis=1, initial=0.0)
    return {"n": len(phi), "near": int((nearest >= kernel.near).sum())}


def _moments(X: NDArray[Any], origin: Matrix, unit: bool) -> Sums:
    with np.errstate(over="ignore", invalid="ignore"):  # said where the width is taken
        x = (unit_rows(X) if unit else np.asarray(X, np.float64)) - origin
        return {"n": len(x), "sum": x.sum(axis=0), "squares": float(np.einsum("ij,ij->", x, x))}


def _of_similarities(X: NDArray[Any], kernel: Kernel) -> Sums:
    K = kernel.similarities(X)
    squares = np.einsum("ij,ij->i", K, K).sum(dtype=np.float64)
    second = np.partition(K, -2, axis=1)[:, -2] if K.shape[1] > 1 else np.zeros(len(K))
    counts = np.histogram(second.clip(0, 1), _BINS)[0]
    return {"sum": K.sum(axis=0, dtype=np.float64), "squares": float(squares), "second": counts}


def reference_map(X: NDArray[Any], A: Matrix) -> Matrix:
    """φ as the published code computes it, in float64, width and means from X itself: for parity tests."""
    D = squared_distances(X, A)
    K = np.exp(D / (-2.0 * D.mean()))
    return np.asarray(K - K.mean(axis=0))
