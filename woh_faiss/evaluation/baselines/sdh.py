"""SDH: Supervised Discrete Hashing (Shen, Shen, Liu and Shen, CVPR 2015).

    min over B in {-1, 1}, W, P:   ‖Y − BW‖² + λ‖W‖² + ν‖B − φP‖²

From random B; then, at most 5 times:

    W = (BᵀB + λI)⁻¹ BᵀY
    P = (φᵀφ + 0.01 I)⁻¹ φᵀB
    b_l ← sign(Q_l − B₋ₗ W₋ₗ w_l),  Q = νφP + YWᵀ, bit by bit until none changes, at most 10 sweeps

φ(x) = [exp(−‖x − a‖² / 2σ²), 1] on anchors a drawn from the items, not centred. Published constants: λ = 1,
ν = 1e-5, σ = 0.4 on features of unit length, L2 loss. A round costs O(N m d + N m² + m³ + iterations (N m r
+ sweeps N r² + nnz(Y) r)).

Deviations: Y are tags of 0 and 1 (the published code takes any matrix); where there are fewer than 1000
items, all are anchors. Batch: anchors, too, are drawn again each round, from all items. The database is
encoded again after every round, as published: the learned B is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import squared_distances, unit_rows
from woh_faiss.learner.solver import factor, sign, sweep, without_diagonal

from .base import Matrix
from .batch import Batch

LAMBDA, NU, RIDGE, SIGMA = 1.0, 1e-5, 1e-2, 0.4
ITERATIONS, SWEEPS, TOLERANCE = 5, 10, 1e-5
#: Anchors of the kernel, at most.
ANCHORS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Codes B (n, r) in {-1, +1}, W (r, c) from codes to tags, the hash function P (m + 1, r)."""

    B: Matrix
    W: Matrix
    P: Matrix


def kernel_map(X: Matrix, A: Matrix) -> Matrix:
    """φ of rows X (n, d) for anchors A (m, d), all of unit length: (n, m + 1), the last column is 1."""
    return np.column_stack([np.exp(squared_distances(X, A) / (-2 * SIGMA**2)), np.ones(len(X))])


def fit(phi: Matrix, Y: csr_array, B0: Matrix) -> Solution:
    """The codes and functions of items φ (n, m + 1) with tags Y (n, c), from codes B0 (n, r)."""
    C = factor(phi.T @ phi, RIDGE)
    B = B0

    def to_tags(B: Matrix) -> Matrix:
        return np.asarray(cho_solve(factor(B.T @ B, LAMBDA), (Y.T @ B).T, check_finite=False))

    def to_codes(B: Matrix) -> Matrix:
        return np.asarray(cho_solve(C, phi.T @ B, check_finite=False))

    W, P, predicted = to_tags(B), to_codes(B), phi @ to_codes(B)
    for _ in range(ITERATIONS):
        Q = NU * predicted + Y @ W.T  # n x r
        H = without_diagonal(W @ W.T)
        for _ in range(SWEEPS):
            before, B = B, sweep(B, Q, H)
            if np.linalg.norm(B - before) < 1e-6 * np.linalg.norm(before):
                break
        W, P_before, P = to_tags(B), P, to_codes(B)
        predicted = phi @ P
        if np.linalg.norm(B - predicted) < TOLERANCE * np.linalg.norm(B):
            break
        if np.linalg.norm(P - P_before) < TOLERANCE * np.linalg.norm(P_before, 2):
            break
    return Solution(B, W, P)


class SDH(Batch):
    """Supervised Discrete Hashing, taught by tags; see the module."""

    name: ClassVar[str] = "sdh"
    source: ClassVar[str] = "Shen et al., CVPR 2015; equal to the published code bit for bit"

    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> None:
        X = unit_rows(X)
        self.A_ = X[rng.choice(len(X), min(ANCHORS, len(X)), replace=False)]
        B0 = sign(rng.standard_normal((len(X), self.bits)))
        self.P_ = fit(kernel_map(X, self.A_), Y, B0).P

    def _project(self, X: Matrix) -> Matrix:
        return kernel_map(unit_rows(X), self.A_) @ self.P_
