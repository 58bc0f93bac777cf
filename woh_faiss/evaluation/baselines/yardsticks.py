"""Yardsticks: what codes are worth that nothing, or nothing but the features' spread, was learned for.

======  ==========================================================================================
LSH     sign(xW), W ~ N(0, 1) (Charikar, STOC 2002): O(d r) an item, online, nothing learned
PCA     sign((x − mean) E), E the r directions of largest variance: O(N d² + d³) a round, batch
ITQ     the same, turned so that signs lose least, min ‖B − (X − mean) E R‖² over B and orthogonal R
        (Gong and Lazebnik, CVPR 2011): O(N r²) more an iteration; 40 of them (published: 50)
======  ==========================================================================================

None looks at tags. Features have unit length; the database is encoded again after every round. With more bits
than directions the bits left over are the same for all items.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import unit_rows
from woh_faiss.learner.tag_directions import rotation

from .base import Baseline, Matrix
from .batch import Batch
from .pca import principal, widened


class RandomProjection(Baseline):
    """Signs of random projections; see the module."""

    name: ClassVar[str] = "lsh"
    source: ClassVar[str] = "Charikar, STOC 2002"

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> None:
        if self.rounds_ == 1:
            self.W_ = rng.standard_normal((X.shape[1], self.bits))

    def _project(self, X: Matrix) -> Matrix:
        return unit_rows(X) @ self.W_


class PCASign(Batch):
    """Signs of principal components; see the module."""

    name: ClassVar[str] = "pca-sign"
    source: ClassVar[str] = "principal components, signs only"
    draws: ClassVar[bool] = False

    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> None:
        X = unit_rows(X)
        self.mean_ = X.mean(axis=0)
        X -= self.mean_
        E = principal(X, self.bits)
        self.P_ = E @ self._turned(X @ E, rng)  # d x p

    def _turned(self, H: Matrix, rng: np.random.Generator) -> Matrix:
        return np.eye(H.shape[1])

    def _project(self, X: Matrix) -> Matrix:
        return widened((unit_rows(X) - self.mean_) @ self.P_, self.bits)


class ITQ(PCASign):
    """Iterative quantisation; see the module."""

    name: ClassVar[str] = "itq"
    source: ClassVar[str] = "Gong and Lazebnik, CVPR 2011"
    draws: ClassVar[bool] = True

    def _turned(self, H: Matrix, rng: np.random.Generator) -> Matrix:
        return rotation(H, np.empty((0, H.shape[1])), rng)
