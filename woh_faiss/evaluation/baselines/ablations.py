"""WOH-1 to WOH-4: the ablations of Zhan et al. 2021, which leave parts of Eq. 4 out.

=====  =============================================================================================
WOH-1  θ = 0: no word vectors
WOH-2  θ = 0, and no regression of the tags Y at all: codes of the features alone
WOH-3  α = 0: no ridges
WOH-4  β = μ = 0: codes of tags and word vectors alone; the hash function is learned from them afterwards
=====  =============================================================================================

Letters, steps and draws are those of `learner.training_round` from a random start with the published
constants. With all parts there it gives the codes of ``WOH(preset="paper")`` bit for bit.

Where α is 0, systems may be singular (bits may be equal, and there may be fewer directions than anchors);
each has then its solution of least length, the limit of a ridge that goes to 0. The paper does not say how
WOH-4's second step is regularised: here by the ridge that WOH has, α/μ with the published μ, on the codes of
all items after their last sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, pinvh
from scipy.sparse import csr_array

from woh_faiss.learner.config import PRESETS, WOHConfig
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.kernel import Kernel, mapped, squared_distances
from woh_faiss.learner.solver import descend, factor, sign, squared_lengths, weights, without_diagonal
from woh_faiss.learner.statistics import Statistics, of_codes, of_features, of_weights, of_words, widen
from woh_faiss.validate import positive_int

from .base import Baseline, Matrix

STATISTICS = tuple(each.name for each in fields(Statistics))
_PAPER = PRESETS["paper"]
#: Directions weaker than this share of the strongest are none, where there is no ridge.
_RANK = 1e-10


class Parts(NamedTuple):
    """What of Eq. 4 there is: the weights α, β, θ, μ, and whether the tags Y are regressed."""

    alpha: float = _PAPER["alpha"]
    beta: float = _PAPER["beta"]
    theta: float = _PAPER["theta"]
    mu: float = _PAPER["mu"]
    tags: bool = True


def solving(C: Matrix, ridge: float) -> Callable[[Matrix], Matrix]:
    """T (p, q) → (C + ridge I)⁻¹ T of a statistic C (p, p); of least length where the ridge is 0."""
    if ridge:
        lower = factor(C, ridge)
        return lambda T: np.asarray(cho_solve(lower, T, check_finite=False))
    inverse = pinvh(C, rtol=_RANK, check_finite=False)
    return lambda T: np.asarray(inverse @ T)


def learn(
    phi: NDArray[np.float32], Y: csr_array, Z: Matrix, B: Matrix, W: Matrix, past: Statistics, parts: Parts
) -> tuple[Matrix, Matrix, Matrix, Statistics]:
    """One round: B (n, r), P (m, r), W (r, c) and the statistics, from codes B and W to start with."""
    alpha, beta, theta, mu = parts.alpha, parts.beta, parts.theta, parts.mu
    base, double = past.plus(of_features(phi)), phi.astype(np.float64)
    to_P = solving(base.C3, alpha / (mu or _PAPER["mu"]))
    y2 = squared_lengths(Y)
    k = weights(B, W, Y @ W.T, y2) if parts.tags else np.zeros(len(B))
    for iteration in range(_PAPER["iterations"]):
        kept = iteration == _PAPER["iterations"] - 1
        stats = base.plus(of_words(B, Z), of_weights(B, k, Y), of_codes(B, double if kept else phi))
        Q, H, HW = np.zeros_like(B), np.zeros_like(base.C1), np.zeros_like(base.C1)
        YW, F = Q, np.zeros_like(base.C4)
        if parts.tags:
            W = solving(stats.D1, alpha)(stats.D2)  # Eq. 13
            YW = Y @ W.T
            Q, HW = k[:, None] * YW, without_diagonal(W @ W.T)
        if theta:
            V = solving(stats.C1, alpha / theta)(stats.C5)  # Eq. 9
            H += theta * (V @ V.T)
            Q += theta * (Z @ V.T)
        if beta:
            U = solving(stats.C1, alpha / beta)(stats.C2)  # Eq. 6
            F += beta * U.T
            H += beta * (U @ U.T)
        if mu:
            F += mu * to_P(stats.C4)  # Eq. 8
        if beta or mu:
            Q += phi @ F.astype(phi.dtype)
        B = descend(B, Q, k, HW, without_diagonal(H), _PAPER["sweeps"])  # Eq. 16
        if parts.tags:
            k = weights(B, W, YW, y2)
    if not mu:  # the second step: of the codes as they are
        stats = replace(stats, C2=base.C2 + of_codes(B, double)["C2"])
    return B, to_P(stats.C4), W, stats


class Ablation(Baseline):
    """WOH with all parts of Eq. 4; its subclasses have some less. See the module.

    Parameters
    ----------
    bits, seed, min_count
        As in `Baseline`.
    anchors : int
        Most anchors m of the kernel map: rows of the first chunk.
    """

    name: ClassVar[str] = "woh-whole"
    keeps_learned: ClassVar[bool] = True
    source: ClassVar[str] = "Zhan et al., ICME 2021"
    parts: ClassVar[Parts] = Parts()
    A_: Matrix
    mean_: Matrix
    width_: float
    W_: Matrix
    P_: Matrix
    C5_: Matrix

    def __init__(
        self, bits: int = 64, *, seed: int = 0, min_count: int = 2, anchors: int | None = None
    ) -> None:
        super().__init__(bits, seed=seed, min_count=min_count)
        self.anchors = WOHConfig().anchors if anchors is None else positive_int(anchors, "anchors")

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> Matrix:
        c, tagged = Y.shape[1], np.diff(Y.indptr) > 0
        if self.rounds_ == 1:
            self._begin(X, c, Z.shape[1], rng)
        self.W_ = widen(self.W_, c)
        self.C5_ = widen(self.C5_, Z.shape[1])  # no tags, no word vectors, so far
        past = Statistics.from_arrays({name: getattr(self, f"{name}_") for name in STATISTICS}).widened(c)
        if not tagged.any():
            return self._project(X)
        B = sign(rng.standard_normal((int(tagged.sum()), self.bits)))
        phi = mapped(X[tagged], self._kernel)
        B, self.P_, self.W_, stats = learn(phi, Y[tagged], Z[tagged], B, self.W_, past, self.parts)
        self._keep(stats)
        H = self._project(X)
        H[tagged] = B
        return H

    def _begin(self, X: Matrix, c: int, f: int, rng: np.random.Generator) -> None:
        m = min(self.anchors, len(X))
        A = X[np.sort(rng.choice(len(X), m, replace=False))]
        alike = not squared_distances(X, A).any()  # then there is no width
        kernel = Kernel(A, 1.0, np.zeros(m)) if alike else Kernel.fit(X, A)
        self.A_, self.width_, self.mean_ = A, kernel.width, kernel.mean
        self.W_, self.P_ = rng.standard_normal((self.bits, c)), np.zeros((m, self.bits))
        self._keep(Statistics.zero(r=self.bits, m=m, f=f, c=c))

    def _keep(self, stats: Statistics) -> None:
        for name, value in stats.arrays().items():
            setattr(self, f"{name}_", value)

    @property
    def _kernel(self) -> Kernel:
        return Kernel(self.A_, self.width_, self.mean_)

    def _project(self, X: Matrix) -> Matrix:
        return Hasher(self._kernel, self.P_).decision_function(X)


class WOH1(Ablation):
    """Without word vectors."""

    name: ClassVar[str] = "woh-1"
    source: ClassVar[str] = "Zhan et al., ICME 2021: θ = 0"
    parts: ClassVar[Parts] = Parts(theta=0)


class WOH2(Ablation):
    """Without word vectors and without tags."""

    name: ClassVar[str] = "woh-2"
    source: ClassVar[str] = "Zhan et al., ICME 2021: θ = 0 and no regression of the tags"
    parts: ClassVar[Parts] = Parts(theta=0, tags=False)


class WOH3(Ablation):
    """Without ridges."""

    name: ClassVar[str] = "woh-3"
    source: ClassVar[str] = "Zhan et al., ICME 2021: α = 0"
    parts: ClassVar[Parts] = Parts(alpha=0)


class WOH4(Ablation):
    """Codes of tags and word vectors alone; the hash function learned from them in a second step."""

    name: ClassVar[str] = "woh-4"
    source: ClassVar[str] = "Zhan et al., ICME 2021: β = μ = 0, the hash function in a second step"
    parts: ClassVar[Parts] = Parts(beta=0, mu=0)


#: The paper's ablations by the name that tables have.
VARIANTS: dict[str, type[Baseline]] = {variant.name: variant for variant in (WOH1, WOH2, WOH3, WOH4)}
