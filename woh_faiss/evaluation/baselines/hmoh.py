"""HMOH: Hadamard matrix guided online hashing (Lin et al., IJCV 2020).

Rows are samples. Each class has a row of a Hadamard matrix H (h, h), and every bit is an online perceptron
that learns its column:

    min_W Σ over wrong bits of −t_ik (x_i w_k),   h(x) = sign(x W̄),   W̄ = Σ_i W_i, summed over all steps.

1. Target of an item: majority vote of the rows of its classes, here its tags; zeros are filled so that +1
   and −1 balance; where r ≠ h: t ← sign(tG), G (h, r) Gaussian with columns of length 1.
2. For each item: F = sign(xW) with sign(0) = −1; on the bits where F ≠ t, W ← W + xᵀt.
3. W̄ ← W̄ + W. The learning rate and the division by the number of steps change no sign and are left out.

The database is encoded again after every round. Costs n²d + n²r a chunk, or 1,000nd + 1,000nr for large
ones; keeps 2dr numbers.

Defaults as published: one item a step, no kernel (the authors' file, for CIFAR-10 and NUS-WIDE). Row 1 of H
is all ones, so that the first tag's code is constant, as published. h is the smallest power of two that is
at least r and twice the number of tags in the first round; should tags outgrow it, h doubles and G gets
rows, from where on targets of old tags are other ones.

Deviations, each a mistake of the published code: leftover zeros overwrite the whole target there, not the
zeros only (``published=True`` does the same); filling them reads beyond the end; a bit that was never wrong
becomes NaN. Items without tags are skipped: they have no target.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.linalg import hadamard
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import unit_rows

from .base import Baseline, Matrix

#: Items whose inner products are held at once.
BLOCK = 1000


def targets(Y: csr_array, H: Matrix, rng: np.random.Generator | None, *, published: bool = False) -> Matrix:
    """Codes (n, h) in {-1, +1} that items with tags Y (n, c) should have, rows of H (h, h) standing for tags.

    Which of the zeros of a vote become +1 is drawn; without `rng` they are filled from the left.
    """
    T = np.asarray(np.sign(Y @ H[: Y.shape[1]]))
    for i in np.flatnonzero((T == 0).any(axis=1)):
        _fill(T[i], rng, published)
    return T


def _fill(t: Matrix, rng: np.random.Generator | None, published: bool) -> None:
    """Give the zeros of one vote t (h,) signs, in place: first to the rarer one, then half and half."""
    zeros = np.flatnonzero(t == 0)
    if rng is not None:
        rng.shuffle(zeros)
    surplus = int(t.sum())
    first = min(abs(surplus), len(zeros))
    t[zeros[:first]] = -np.sign(surplus)
    rest = np.arange(len(t)) if published and len(zeros) > first else zeros[first:]
    half = (len(zeros) - first + 1) // 2
    t[rest[:half]], t[rest[half:]] = 1.0, -1.0


def perceptron(X: Matrix, T: Matrix, W: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Steps 2 and 3 over the rows of X (n, d) with targets T (n, r), from W (d, r).

    Returns the new W, the sum (d, r) of W over the steps, and how often each bit was wrong (r,). An item's
    projection is that of the block's first W and the inner products with the items in between: W is made
    once a block.
    """
    total, wrong = np.zeros_like(W), np.zeros(W.shape[1])
    for start in range(0, len(X), BLOCK):
        x, t = X[start : start + BLOCK], T[start : start + BLOCK]
        before, inner = x @ W, x @ x.T
        step = np.zeros_like(t)
        for i in range(len(x)):
            f = before[i] + inner[i, :i] @ step[:i]
            step[i] = np.where((f > 0) == (t[i] > 0), 0.0, t[i])
        left = np.arange(len(x), 0, -1)  # steps that still have an item's share
        total += len(x) * W + x.T @ (left[:, None] * step)
        W = W + x.T @ step
        wrong += np.abs(step).sum(axis=0)
    return W, total, wrong


class HMOH(Baseline):
    """See the module; features are scaled to length 1.

    Parameters
    ----------
    bits, seed, min_count
        As in `Baseline`.
    published : bool
        Make targets as the published code does, mistake included.
    """

    name: ClassVar[str] = "hmoh"
    source: ClassVar[str] = "Lin et al., IJCV 2020; the authors' code, with its targets mended"

    def __init__(self, bits: int = 64, *, seed: int = 0, min_count: int = 2, published: bool = False) -> None:
        super().__init__(bits, seed=seed, min_count=min_count)
        self.published = published

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> None:
        r, d, c = self.bits, X.shape[1], Y.shape[1]
        if self.rounds_ == 1:
            self.W_, self.sum_ = np.zeros((d, r)), np.zeros((d, r))
            self.G_ = rng.standard_normal((_power_of_two(max(r, 2 * c)), r))
        while len(self.G_) < c:
            self.G_ = np.vstack([self.G_, rng.standard_normal(self.G_.shape)])
        tagged = np.diff(Y.indptr) > 0
        T = targets(Y[tagged], hadamard(len(self.G_), np.float64), rng, published=self.published)
        if len(self.G_) != r:
            T = np.where(T @ self.G_ > 0, 1.0, -1.0)
        self.W_, total, _ = perceptron(unit_rows(X[tagged]), T, self.W_)
        self.sum_ = self.sum_ + total

    def _project(self, X: Matrix) -> Matrix:
        return unit_rows(X) @ self.sum_


class PublishedHMOH(HMOH):
    """HMOH with targets as the published code makes them, mistake included: what others have measured."""

    name: ClassVar[str] = "hmoh-published"
    source: ClassVar[str] = "Lin et al., IJCV 2020; targets as in the authors' code, which overwrites them"
    #: What was drawn is overwritten; only where r is no power of two, or less than 2c, G is drawn.
    draws: ClassVar[bool] = False

    def __init__(self, bits: int = 64, *, seed: int = 0, min_count: int = 2) -> None:
        super().__init__(bits, seed=seed, min_count=min_count, published=True)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
