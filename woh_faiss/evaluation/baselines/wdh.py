"""WDH-style: a RECONSTRUCTION of Weakly-supervised Discrete Hashing (Cui, Zhu, Cui, Nie and Zhang, PRL 2020).

No code of WDH was found, and its text was not seen. Known of it are: batch, made for social images and their
tags, with an ℓ2,1 norm. What stands here takes its objective and steps from two codes by the same authors
(SCADH, TIP 2020; DSTDH, TCSVT 2021) and has a linear hash function where those train a network. Its numbers
are not those of the published WDH: name them as a reconstruction's wherever they appear.

    min over B in {-1, 1}, P, W:   ‖B − YP‖₂,₁ − α tr(BᵀVVᵀB) + γ (‖B − XW‖² + η‖W‖²)

V (N, m) is a normalised anchor graph: which items look alike. By augmented Lagrangians (A = B − YP, C = B,
with multipliers E and F), 20 times:

    W = (XᵀX + ηI)⁻¹ XᵀB;                          P = (YᵀY)⁺ Yᵀ(B − A + E/μ)
    A = the rows of B − YP + E/μ, each shortened by 1/μ;        C = B + (α VVᵀB + F)/μ
    B = sign(μ(YP + A + C) + α VVᵀC − E − F + 2γ XW)
    E += μ(B − YP − A);   F += μ(B − C);   μ *= 1.1

Queries: sign(xW) on features of unit length, centred; the ranked database is the learned B. Batch. Constants
of DSTDH: α = μ = 0.01, factor 1.1, 100 k-means anchors, the 2 nearest. Ours: γ = 0.01, η = 0.01 N/d, 20
iterations (theirs stops after 4, by a mistake in its test), and rows (items) in the ℓ2,1 norm where their
code has columns. A round costs O(N d² + d³ + c³ + iterations (N d r + nnz(Y) r)).

γ, η and the iterations were chosen among some fifty settings by MAP on two labelled sets (openclipart,
corel5k), near an earlier prototype's: on those two sets its numbers are not blind.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import centroids, squared_distances, unit_rows
from woh_faiss.learner.solver import factor, sign

from .base import Matrix
from .batch import Batch

ALPHA, GAMMA, ETA = 1e-2, 1e-2, 1e-2
MU, GROWTH, ITERATIONS = 1e-2, 1.1, 20
ANCHORS, NEAREST, KMEANS = 100, 2, 5


def anchor_graph(X: Matrix, A: Matrix) -> csr_array:
    """V (n, m): VVᵀ says how alike the items X (n, d) are, by way of the anchors A (m, d) nearest to them.

    An item has exp(−d²/σ²) to its two nearest anchors, σ the mean distance to the second, scaled to sum 1;
    then columns are divided by the roots of their sums.
    """
    D = squared_distances(X, A)
    s = min(NEAREST, len(A))
    near = np.argsort(D, axis=1, kind="stable")[:, :s]
    d2 = np.take_along_axis(D, near, axis=1)
    sigma = max(float(np.sqrt(d2[:, -1]).mean()), 1e-150)
    v = np.exp((d2[:, :1] - d2) / sigma**2)  # a factor of the row goes when it is scaled
    v /= v.sum(axis=1, keepdims=True)
    V = csr_array((v.ravel(), near.ravel(), np.arange(0, v.size + 1, s)), shape=D.shape)
    V.data /= np.sqrt(V.sum(axis=0))[V.indices]
    return V


def fit(X: Matrix, Y: csr_array, V: csr_array, B0: Matrix) -> tuple[Matrix, Matrix]:
    """Codes B (n, r) and W (d, r) of centred items X (n, d), tags Y (n, c), graph V (n, m), from codes B0."""
    XX = factor(X.T @ X, ETA * len(X) / X.shape[1])
    YY = np.linalg.pinv((Y.T @ Y).toarray(), hermitian=True)  # c x c

    def to_codes(B: Matrix) -> Matrix:
        return np.asarray(cho_solve(XX, X.T @ B, check_finite=False))

    B, mu = B0, MU
    A, E, F = np.zeros_like(B), np.zeros_like(B), np.zeros_like(B)
    for _ in range(ITERATIONS):
        predicted = X @ to_codes(B)
        YP = Y @ (YY @ (Y.T @ (B - A + E / mu)))  # n x r
        A = shortened(B - YP + E / mu, 1 / mu)
        C = B + (ALPHA * (V @ (V.T @ B)) + F) / mu
        B = sign(mu * (YP + A + C) + ALPHA * (V @ (V.T @ C)) - E - F + 2 * GAMMA * predicted)
        E += mu * (B - YP - A)
        F += mu * (B - C)
        mu *= GROWTH
    return B, to_codes(B)


def shortened(H: Matrix, by: float) -> Matrix:
    """Each row of H (n, r) with `by` less of its length, at least 0: what minimises an ℓ2,1 norm."""
    length = np.linalg.norm(H, axis=1, keepdims=True)
    return np.asarray(H * np.maximum(1 - by / np.maximum(length, 1e-300), 0))


class WDHStyle(Batch):
    """A reconstruction of Weakly-supervised Discrete Hashing; see the module before quoting its numbers."""

    name: ClassVar[str] = "wdh-style"
    source: ClassVar[str] = "a reconstruction, not the published WDH (Cui et al., PRL 2020)"
    keeps_learned: ClassVar[bool] = True

    mean_: Matrix
    W_: Matrix

    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> Matrix:
        X = unit_rows(X)
        self.mean_ = X.mean(axis=0)
        start = X[rng.choice(len(X), min(ANCHORS, len(X)), replace=False)]
        V = anchor_graph(X, centroids(X, start, KMEANS))
        B0 = sign(rng.standard_normal((len(X), self.bits)))
        B, self.W_ = fit(X - self.mean_, Y, V, B0)
        return B

    def _project(self, X: Matrix) -> Matrix:
        return (unit_rows(X) - self.mean_) @ self.W_
