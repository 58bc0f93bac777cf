"""The kernel map φ: RBF similarities to m anchor items, centred, with constants frozen at round 1.

Source: Zhan et al. 2021, section 3.2. The paper's σ is the mean distance; the published code puts the
mean *squared* distance in place of σ² and subtracts the column means of φ, which the paper leaves out.
We follow the code in both, with one change: it computes width and means anew from whatever batch it is
given, so that a single query maps to zeros. Here both are frozen at round 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .rows import Rows, Sums, blocks, cut

Matrix = NDArray[np.float64]


def squared_distances(X: NDArray[Any], A: Matrix) -> Matrix:
    """‖x − a‖² of every row of X (n, d), any real dtype, to every row of A (m, d): (n, m), never negative."""
    X = np.asarray(X, dtype=np.float64, order="C")
    D: Matrix = X @ A.T
    D *= -2.0
    D += np.einsum("ij,ij->i", X, X)[:, None]
    D += np.einsum("ij,ij->i", A, A)
    return np.maximum(D, 0.0, out=D)


def unit_rows(X: NDArray[Any]) -> Matrix:
    """Rows of X (n, d) scaled to length 1 in float64; a row of zeros stays one."""
    rows: Matrix = np.array(X, dtype=np.float64, order="C")
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    rows /= np.where(length > 0, length, 1.0)  # in place: another array of that size costs more than the sums
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """φ(x) = (exp(−‖x − a‖² / 2w) − mean) / scale, for ever the same.

    Attributes
    ----------
    A : (m, d) float64
        Anchors: rows of the first chunk.
    width : float
        w, the mean squared distance of the first chunk to the anchors.
    mean : (m,) float64
        Column means of the uncentred map over the first chunk.
    scale : float
        1 for the paper's map; else what makes the mean ‖φ‖² of the first chunk 1.
    unit : bool
        Whether x is scaled to length 1 first.
    """

    A: Matrix
    width: float
    mean: Matrix
    scale: float = 1.0
    unit: bool = False

    @classmethod
    def fit(cls, X: NDArray[Any], A: NDArray[Any], *, energy: bool = False) -> Kernel:
        """Freeze width and means on the first chunk X (n, d) for the anchors A (m, d).

        With `energy` the map is the one of a semantic start: rows of length 1, half the width, mean
        ‖φ‖² = 1. A has rows of length 1 (or means of two such rows) then.

        Raises
        ------
        InputError
            All items are alike, so that there is no width.
        """
        return cls.fit_rows(cut(X), A, energy=energy)

    @classmethod
    def fit_rows(cls, X: Rows[NDArray[Any]], A: NDArray[Any], *, energy: bool = False) -> Kernel:
        """`fit` on a first chunk that is in blocks."""
        A = np.asarray(A, dtype=np.float64)
        total = X.sum(_distances, A, energy)
        width = total["sum"] / (total["n"] * len(A)) / (2 if energy else 1)
        if not width > 0:
            raise InputError(
                f"the {total['n']} items of the first chunk all have the same features; "
                "give a chunk whose items differ"
            )
        uncentred = cls(A, width, np.zeros(len(A)), unit=energy)
        mean = X.sum(_column_sums, uncentred)["sum"] / total["n"]
        if not energy:
            return cls(A, width, mean)
        centred = cls(A, width, mean, unit=True)
        squares = X.sum(_squares, centred)["sum"]
        return cls(A, width, mean, scale=float(np.sqrt(squares / total["n"])), unit=True)

    def map(self, X: NDArray[Any]) -> Matrix:
        """φ of the rows of X: (n, d) of any real dtype → (n, m) float64."""
        phi = np.empty((len(X), len(self.A)))
        for rows in blocks(len(X)):
            K = squared_distances(unit_rows(X[rows]) if self.unit else X[rows], self.A)
            K /= -2.0 * self.width
            np.exp(K, out=K)
            np.subtract(K, self.mean, out=phi[rows])
        if self.scale != 1:
            phi /= self.scale
        return phi


def mapped(X: NDArray[Any], kernel: Kernel) -> Matrix:
    """`Kernel.map` of a block of rows."""
    return kernel.map(X)


def _distances(X: NDArray[Any], A: Matrix, unit: bool) -> Sums:
    return {"sum": float(squared_distances(unit_rows(X) if unit else X, A).sum()), "n": len(X)}


def _column_sums(X: NDArray[Any], kernel: Kernel) -> Sums:
    return {"sum": kernel.map(X).sum(axis=0)}


def _squares(X: NDArray[Any], kernel: Kernel) -> Sums:
    return {"sum": float(np.square(kernel.map(X)).sum())}


def reference_map(X: NDArray[Any], A: Matrix) -> Matrix:
    """φ as the published code computes it, width and means from X itself: for parity tests only."""
    return Kernel.fit(X, A).map(X)
