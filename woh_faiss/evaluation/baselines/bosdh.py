"""BOSDH, or BSODH: online discrete hashing with balanced similarity (Lin et al., AAAI 2019).

Rows are samples. New items (s, a chunk) are related to all old ones (e): S_ij = η_s where they
share a label, here a tag, else −η_d;

    min ‖B_s B_eᵀ − rS‖² + σ‖X_s W − B_s‖² + λ‖W‖²

A stage, given B_e (N, r) of all items before:

1. B_s = sgn(X_s W), but an item that shares a tag with old ones takes the first such one's code.
2. In the published order: B_s, bit after bit, b_k = sgn(p_k − B₋ₖ B_e₋ₖᵀ b_ek) with P = r·rSB_e + X_s W;
   B_e = sgn(rSᵀB_s); W = σ (σX_sᵀX_s + λI)⁻¹ X_sᵀB_s. The paper's Algorithm 1 has W, B_e, B_s
   (``paper_order=True``).

The first stage only makes B_e with a random W. Codes are [xW > 0]: the learned ones only help, and the
database is encoded again. Costs nNr + nd² + d³ a round and keeps r + tags of every item: time and memory grow
with the database, by design.

Defaults as published for MNIST: λ .3, σ .5, η_d .2, η_s 1.2. As published, r enters P twice and σ not at all.
Deviations: similar means at least one shared tag (the published code compares one label an item, "easily
extended"); the published loop leaves out the last chunk, a stream does not; X is
centred by the mean of the first chunk, not of all items and queries; items without tags are only encoded.

With dense tags nearly all items are similar and codes collapse: that is the method.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from scipy.linalg import solve
from scipy.sparse import csr_array, vstack

from woh_faiss.learner.kernel import unit_rows
from woh_faiss.learner.solver import sign, sweep, without_diagonal

from .base import Baseline, Matrix, positive


class Weights(NamedTuple):
    """λ, σ, η_d and η_s, each above 0."""

    lam: float = 0.3
    sigma: float = 0.5
    apart: float = 0.2
    alike: float = 1.2


def similar(Y_s: csr_array, Y_e: csr_array) -> csr_array:
    """Which new items (n, c) share a tag with which old ones (N, c): (n, N) of 0 and 1, columns sorted."""
    M = csr_array(Y_s @ Y_e.T)
    M.sort_indices()
    M.data = np.ones(len(M.data))
    return M


def stage(
    X: Matrix, M: csr_array, Be: Matrix, W: Matrix, weights: Weights, *, paper_order: bool = False
) -> tuple[Matrix, Matrix, Matrix]:
    """One stage: B_s (n, r), B_e (N, r) and W (d, r) of a chunk X (n, d), M (n, N) its `similar`."""
    r = W.shape[1]
    H = X @ W
    Bs = sign(H)
    has = np.diff(M.indptr) > 0
    Bs[has] = Be[M.indices[M.indptr[:-1][has]]]  # the first similar one's
    if paper_order:
        W = _regress(X, Bs, weights)
        Be = sign(_related(csr_array(M.T), Bs, r, weights))
        Bs = sweep(Bs, r * _related(M, Be, r, weights) + X @ W, without_diagonal(Be.T @ Be))
    else:
        Bs = sweep(Bs, r * _related(M, Be, r, weights) + H, without_diagonal(Be.T @ Be))
        Be = sign(_related(csr_array(M.T), Bs, r, weights))
        W = _regress(X, Bs, weights)
    return Bs, Be, W


def _related(M: csr_array, B: Matrix, r: int, weights: Weights) -> Matrix:
    """rSB for the S that M (p, q) makes, B (q, r): (p, r).

    It adds up few different numbers, so that exact zeros happen; rounding keeps them zeros, their sign +1.
    """
    SB = (weights.alike + weights.apart) * (M @ B) - weights.apart * B.sum(axis=0)
    return np.asarray(r * np.round(SB, 6))


def _regress(X: Matrix, Bs: Matrix, weights: Weights) -> Matrix:
    """W = σ (σXᵀX + λI)⁻¹ XᵀB_s, through the smaller of XᵀX and XXᵀ."""
    n, d = X.shape
    ridge = weights.lam / weights.sigma
    if n < d:
        return np.asarray(X.T @ solve(X @ X.T + ridge * np.eye(n), Bs, assume_a="pos"))
    return np.asarray(solve(X.T @ X + ridge * np.eye(d), X.T @ Bs, assume_a="pos"))


class BOSDH(Baseline):
    """See the module; features are scaled to length 1, centred and scaled again.

    Parameters
    ----------
    bits, seed, min_count
        As in `Baseline`.
    paper_order : bool
        Update W, B_e, B_s in the order of the paper's Algorithm 1.
    weights : Weights
        λ, σ, η_d and η_s.
    """

    name: ClassVar[str] = "bosdh"
    grows: ClassVar[bool] = True
    source: ClassVar[str] = "Lin et al., AAAI 2019; the authors' code, for many tags an item"

    def __init__(
        self,
        bits: int = 64,
        *,
        seed: int = 0,
        min_count: int = 2,
        paper_order: bool = False,
        weights: Weights | None = None,
    ) -> None:
        super().__init__(bits, seed=seed, min_count=min_count)
        self.paper_order, self.weights = paper_order, weights or Weights()
        positive(self.weights._asdict())

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> None:
        tagged = np.diff(Y.indptr) > 0
        if self.rounds_ == 1:
            self.mean_ = unit_rows(X).mean(axis=0)
            W = rng.standard_normal((X.shape[1], self.bits))
            self.W_ = W / np.linalg.norm(W, axis=0)
            self.Be_ = np.zeros((0, self.bits), np.int8)
            self.indices_, self.indptr_ = np.zeros(0, np.int64), np.zeros(1, np.int64)
        x, Y = self._ready(X[tagged]), Y[tagged]
        if not len(x):
            return
        old = self._old(Y.shape[1])
        Be, Bs = self.Be_.astype(np.float64), sign(x @ self.W_)
        if len(Be):
            M = similar(Y, old)
            Bs, Be, self.W_ = stage(x, M, Be, self.W_, self.weights, paper_order=self.paper_order)
        self.Be_ = np.vstack([Be, Bs]).astype(np.int8)
        both = csr_array(vstack([old, Y], format="csr"))
        self.indices_, self.indptr_ = both.indices.astype(np.int64), both.indptr.astype(np.int64)

    def _old(self, c: int) -> csr_array:
        """Tags of all items learned from (N, c)."""
        ones = np.ones(len(self.indices_))
        return csr_array((ones, self.indices_, self.indptr_), shape=(len(self.Be_), c))

    def _ready(self, X: Matrix) -> Matrix:
        return unit_rows(unit_rows(X) - self.mean_)

    def _project(self, X: Matrix) -> Matrix:
        return np.asarray(self._ready(X) @ self.W_)
