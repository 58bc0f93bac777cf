"""COSDISH: Column Sampling based Discrete Supervised Hashing (Kang, Li and Zhou, AAAI 2016).

    min over B in {-1, 1}:   ‖rS − BBᵀ‖²,   S_ij = 1 for items that share a tag, ρ for those that do not

on r columns Ω of S at a time, redrawn 10 times, Γ the other items. Each draw, 3 times:

    B_Ω bit by bit: with those before it fixed, a binary quadratic programme in b_k(Ω), which is solved as a
        balanced clustering of the columns of a Cholesky factor into two (`solve`), a 2-approximation
    B_Γ = sign(S_Γ B_Ω), an entry of 0 keeps its bit

Out of sample: W = (XᵀX + I)⁻¹ XᵀB on features of mean 0 and deviation 1; x → sign(xW).

A draw costs O(N r² + r⁴): r Cholesky factors and r searches, whatever N is. Published constants:
|Ω| = r, 10 draws, 3 alternations, ridge 1. The ranked database is the learned B; queries use W. Batch.

Deviations: similar means a shared tag; features have unit length before they are standardised, by the
training items alone (the published demo standardises with the queries'). ρ = Σ S / Σ (1 − S) has the sign of
the copy of the code that is public (the authors' own archive was not seen), where dissimilar pairs are
pulled together too; −ρ, which makes S sum to 0, is `negative_rho`. Ties in `solve` are decided by rounding,
so that bits can differ from one BLAS to the next.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import squared_distances, unit_rows
from woh_faiss.learner.solver import factor, sign

from .base import Matrix
from .batch import Batch

DRAWS, ALTERNATIONS, RIDGE = 10, 3, 1.0


def similarities(Y: csr_array, omega: NDArray[np.intp], *, negative_rho: bool = False) -> Matrix:
    """S (N, |Ω|): 1 for items that share a tag with the item of the column, ±ρ for the rest."""
    alike = np.asarray((Y @ Y[omega].T).todense() > 0)
    similar = int(np.count_nonzero(alike))
    rho = similar / max(alike.size - similar, 1)
    return np.where(alike, 1.0, -rho if negative_rho else rho)


def learn(Y: csr_array, B0: Matrix, draws: NDArray[np.intp], *, negative_rho: bool = False) -> Matrix:
    """Codes (N, r) of items with tags Y (N, c), from codes B0 (N, r) and the Ω of each draw (draws, |Ω|)."""
    B = B0.copy()
    for omega in draws:
        S = similarities(Y, omega, negative_rho=negative_rho)
        gamma = np.ones(len(B), bool)
        gamma[omega] = False
        for _ in range(ALTERNATIONS):
            B[omega] = _sampled(B[gamma], S[omega], S[gamma])
            H = S[gamma] @ B[omega]  # |Γ| x r
            B[gamma] = np.where(np.abs(H) < 1e-5, B[gamma], sign(H))
    return B


def _sampled(B: Matrix, S_omega: Matrix, S_gamma: Matrix) -> Matrix:
    """New codes (|Ω|, r) of the sampled items, bit by bit, for codes B (|Γ|, r) of the rest."""
    q, r = len(S_omega), B.shape[1]
    G = B.T @ B  # r x r
    SB = r * (S_gamma.T @ B)  # |Ω| x r
    Q = -2.0 * r * S_omega  # |Ω| x |Ω|
    new = np.empty((q, r))
    for k in range(r):
        inner = Q.copy()
        np.fill_diagonal(inner, 0.0)
        new[:, k] = solve(inner, -2.0 * (SB[:, k] - new[:, :k] @ G[:k, k]))
        Q += 2.0 * np.outer(new[:, k], new[:, k])
    return new


def solve(Q: Matrix, p: Matrix) -> Matrix:
    """An x in {-1, 1} of low xᵀQx + xᵀp, q + 1 over 2 of whose entries, less one, are +1: (q,).

    With x = 2z − 1 and one more variable that is always 1 this is a quadratic form M in z, and with
    RᵀR = 10000 I − M the sum of squared distances of the chosen columns of R to their mean. Each column of R
    is tried as the middle: it and its nearest ones.
    """
    q = len(p)
    M = np.zeros((q + 1, q + 1))
    M[:q, :q] = 4.0 * Q
    M[:q, q] = M[q, :q] = p - (Q + Q.T).sum(axis=1)  # half of 2p − 2 Σ_l (Q_il + Q_li)
    M /= max(np.abs(M).max(), 1e-300)
    columns = cholesky(10000.0 * np.eye(q + 1) - M).T  # a row a column of R
    H = (q + 2) // 2  # (q + 1) / 2, a half rounded up
    near = np.argsort(squared_distances(columns, columns[:q]), axis=1, kind="stable")[:, : H - 1]
    groups = np.concatenate([columns[near], np.broadcast_to(columns[q], (q + 1, 1, q + 1))], axis=1)
    cost = np.square(groups - groups.mean(axis=1, keepdims=True)).sum(axis=(1, 2))
    x = np.full(q, -1.0)
    x[near[np.argmin(cost)]] = 1.0
    return x


def ridge(X: Matrix, B: Matrix) -> Matrix:
    """The hash function W (d, r) of codes B (n, r) on standardised features X (n, d)."""
    return np.asarray(cho_solve(factor(X.T @ X, RIDGE), X.T @ B, check_finite=False))


class COSDISH(Batch):
    """Column Sampling based Discrete Supervised Hashing, taught by tags; see the module.

    Parameters
    ----------
    negative_rho : bool
        Give dissimilar pairs −ρ.
    """

    name: ClassVar[str] = "cosdish"
    source: ClassVar[str] = "Kang et al., AAAI 2016; equal to a public copy of its code bit for bit at 8 bits"
    keeps_learned: ClassVar[bool] = True

    def __init__(self, bits: int = 64, *, negative_rho: bool = False, **common: Any) -> None:
        super().__init__(bits, **common)
        self.negative_rho = negative_rho

    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> Matrix:
        X = unit_rows(X)
        self.mean_ = X.mean(axis=0)
        spread = X.std(axis=0, ddof=min(1, len(X) - 1))
        self.spread_ = np.where(spread > 0, spread, 1.0)
        sampled = min(self.bits, len(X))
        draws = np.array([rng.choice(len(X), sampled, replace=False) for _ in range(DRAWS)])
        B0 = sign(rng.standard_normal((len(X), self.bits)))
        B = learn(Y, B0, draws, negative_rho=self.negative_rho)
        self.W_ = ridge(self._standardised(X), B)
        return B

    def _standardised(self, X: Matrix) -> Matrix:
        return np.asarray((X - self.mean_) / self.spread_)

    def _project(self, X: Matrix) -> Matrix:
        return self._standardised(unit_rows(X)) @ self.W_
