"""The kernel map φ: RBF similarities to m anchor items, centred, with constants frozen at round 1.

Source: Zhan et al. 2021, section 3.2. The paper's σ is the mean distance; the published code puts the
mean *squared* distance in place of σ² and subtracts the column means of φ, which the paper leaves out.
We follow the code in both, with one change: it computes width and means anew from whatever batch it is
given, so that a single query maps to zeros. Here both are frozen at round 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Matrix = NDArray[np.float64]

#: Rows mapped at a time: large enough for BLAS, small enough that no second n x d array is ever made.
BLOCK = 4096


def blocks(n: int) -> Iterator[slice]:
    """Slices that cover n rows, `BLOCK` at a time."""
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def squared_distances(X: NDArray[Any], A: Matrix) -> Matrix:
    """‖x − a‖² of every row of X (n, d), any real dtype, to every row of A (m, d): (n, m), never negative."""
    X = np.asarray(X, dtype=np.float64)
    D: Matrix = X @ A.T
    D *= -2.0
    D += np.einsum("ij,ij->i", X, X)[:, None]
    D += np.einsum("ij,ij->i", A, A)
    return np.maximum(D, 0.0, out=D)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """φ(x) = exp(−‖x − a‖² / 2w) − mean, for ever the same.

    Attributes
    ----------
    A : (m, d) float64
        Anchors: rows of the first chunk.
    width : float
        w, the mean squared distance of the first chunk to the anchors.
    mean : (m,) float64
        Column means of the uncentred map over the first chunk.
    """

    A: Matrix
    width: float
    mean: Matrix

    @classmethod
    def fit(cls, X: NDArray[Any], A: NDArray[Any]) -> Kernel:
        """Freeze width and means on the first chunk X (n, d) for the anchors A (m, d).

        Raises
        ------
        InputError
            All items are alike, so that there is no width.
        """
        A = np.asarray(A, dtype=np.float64)
        total = sum(float(squared_distances(X[rows], A).sum()) for rows in blocks(len(X)))
        width = total / (len(X) * len(A))
        if not width > 0:
            raise InputError(
                f"the {len(X)} items of the first chunk all have the same features; "
                "give a chunk whose items differ"
            )
        uncentred = cls(A, width, np.zeros(len(A)))
        mean = np.sum([uncentred.map(X[rows]).sum(axis=0) for rows in blocks(len(X))], axis=0) / len(X)
        return cls(A, width, mean)

    def map(self, X: NDArray[Any]) -> Matrix:
        """φ of the rows of X: (n, d) of any real dtype → (n, m) float64."""
        phi = np.empty((len(X), len(self.A)))
        for rows in blocks(len(X)):
            K = squared_distances(X[rows], self.A)
            K /= -2.0 * self.width
            np.exp(K, out=K)
            np.subtract(K, self.mean, out=phi[rows])
        return phi


def reference_map(X: NDArray[Any], A: Matrix) -> Matrix:
    """φ as the published code computes it, width and means from X itself: for parity tests only."""
    return Kernel.fit(X, A).map(X)
