"""RPT-WOH: weakly-supervised online hashing with refined pseudo tags (CIKM 2022), WOH's successor.

Rows are samples; kernel map φ, and which codes rank, as with WOH. A chunk's n items get pseudo tags A from
which tags occurred together so far, and codes B whose inner products follow A's, with V near B but balanced
and decorrelated. Read off its steps:

    min α‖r(2ĀĀᵀ − 11ᵀ) − BVᵀ‖² + γ‖r(2ĀQᵀ − 11ᵀ) − VB_qᵀ‖² + β‖B − V‖² + μ‖B − φP‖² + δ‖P‖²,

    Vᵀ1 = 0,  VᵀV = nI,  Ā: A with rows of length 1.

1. R ← R + YᵀY;  A = (λY + Y R̂) / (1 + λ),  R̂: each row of R scaled to [0, 1].
2. Ten times: P = (C3 + δ/μ I)⁻¹ C4, with C3, C4 the sums of φᵀφ and φᵀB over all chunks;
   C = αr(2Ā(ĀᵀB) − 1(1ᵀB)) + βB + γr(2Ā(QᵀB_q) − 1(1ᵀB_q)), the last part from the second chunk on;
   V = √n [P_p P_⊥][Q_p Q_⊥]ᵀ from the eigenvectors Q_p of CᵀJC (J centres), P_p = JC Q_p Λ^−½;
   B = sgn(αr(2Ā(ĀᵀV) − 1(1ᵀV)) + βV + μφP).
3. Memory (Q, B_q): tags A and codes of 200 items; of a new chunk those with least ‖A − Y‖ come in, and all
   but a random n₁ = ⌊200²/n⌋ go.

The database keeps the codes as learned. Costs nm² + m³ + 10 n(m + c)r a chunk; keeps m² + c² + 200(c + r)
numbers.

Defaults as published: α = γ = .001, β .1, μ 10, δ 10, λ .01, 10 iterations, 1,000 anchors. As published, too:
Q is not scaled to rows of length 1, the memory has no part in B, and C4 and P are of the codes before the
last B step.

Deviations: the rows of Q and of B_q that stay are drawn once; the published code draws twice, so that tags
and codes no longer belong together (``published=True``). P_⊥ is orthogonal to P_p and to 1. The kernel is
frozen at the first chunk, as WOH's here. Items without tags are only encoded.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, eigh
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import Kernel, squared_distances, unit_rows
from woh_faiss.learner.solver import factor, sign
from woh_faiss.validate import positive_int

from .base import Baseline, Matrix, positive

Rows = NDArray[np.intp]
ITERATIONS = 10


class Weights(NamedTuple):
    """α, γ, β, μ, δ and λ, each above 0."""

    alpha: float = 0.001
    gamma: float = 0.001
    beta: float = 0.1
    mu: float = 10.0
    delta: float = 10.0
    lam: float = 0.01


class Memory(NamedTuple):
    """Pseudo tags Q (q, c) and codes B (q, r) of earlier items."""

    Q: Matrix
    B: Matrix


def pseudo_tags(Y: csr_array, R: Matrix, lam: float) -> Matrix:
    """A (n, c), step 1, of tags Y (n, c) and co-occurrence R (c, c) with the chunk's own in it."""
    low, high = R.min(axis=1, keepdims=True), R.max(axis=1, keepdims=True)
    scaled = (R - low) / np.where(high > low, high - low, 1.0)
    return np.asarray((Y @ scaled + lam * Y.toarray()) / (1 + lam))


def codes_of(
    phi: Matrix, A: Matrix, B: Matrix, C3: Matrix, C4: Matrix, memory: Memory | None, weights: Weights,
    rng: np.random.Generator,
) -> tuple[Matrix, Matrix, Matrix]:  # fmt: skip
    """Step 2: B (n, r), P (m, r) and C4 (m, r) from B to start with, C3 with the chunk in it, C4 without."""
    r = B.shape[1]
    unit = unit_rows(A)
    C3_factor = factor(C3, weights.delta / weights.mu)
    past = _like(unit, memory.Q, memory.B) * weights.gamma * r if memory is not None else 0.0
    for _ in range(ITERATIONS):
        all_C4 = C4 + phi.T @ B
        P = np.asarray(cho_solve(C3_factor, all_C4, check_finite=False))
        C = weights.alpha * r * _like(unit, unit, B) + weights.beta * B + past
        V = balanced(C, rng)
        B = sign(weights.alpha * r * _like(unit, unit, V) + weights.beta * V + weights.mu * (phi @ P))
    return B, P, all_C4


def _like(A: Matrix, Q: Matrix, B: Matrix) -> Matrix:
    """(2AQᵀ − 11ᵀ)B without the n x q matrix: (n, r)."""
    return np.asarray(2 * A @ (Q.T @ B) - B.sum(axis=0))


def balanced(C: Matrix, rng: np.random.Generator) -> Matrix:
    """max tr(VᵀC) with Vᵀ1 = 0 and VᵀV = nI: (n, r). Directions that C lacks are drawn."""
    n, r = C.shape
    JC = C - C.mean(axis=0)
    energy, q = eigh(JC.T @ JC)
    has = energy > 1e-6
    left = JC @ (q[:, has] / np.sqrt(energy[has]))  # n x k
    if not has.all():
        taken = np.column_stack([np.full(n, n**-0.5), left])
        drawn = rng.standard_normal((n, min(int(r - has.sum()), max(n - taken.shape[1], 0))))
        more = np.linalg.qr(drawn - taken @ (taken.T @ drawn))[0]
        left = np.hstack([left, more])
        q = np.hstack([q[:, has], q[:, ~has][:, : more.shape[1]]])
    return np.asarray(np.sqrt(n) * left @ q.T)


def remembered(
    memory: Memory | None, A: Matrix, Y: csr_array, B: Matrix, rows: tuple[Rows, Rows], size: int
) -> Memory:
    """Step 3: old `rows` of Q and of B (the same, but in the published code), then new items up to `size`."""
    order = np.argsort(np.linalg.norm(A - Y.toarray(), axis=1), kind="stable")
    if memory is None:
        return Memory(A[order[:size]], B[order[:size]])
    order = order[: size - len(rows[0])]
    return Memory(np.vstack([memory.Q[rows[0]], A[order]]), np.vstack([memory.B[rows[1]], B[order]]))


class RPTWOH(Baseline):
    """See the module; features are scaled to length 1.

    Parameters
    ----------
    bits, seed, min_count
        As in `Baseline`.
    anchors : int
        Most anchors m of the kernel map: rows of the first chunk.
    size : int
        Items in the memory.
    published : bool
        Draw the tags and the codes that stay in the memory apart, as the published code does.
    weights : Weights
        The weights of the objective.
    """

    name: ClassVar[str] = "rpt-woh"
    keeps_learned: ClassVar[bool] = True
    source: ClassVar[str] = "CIKM 2022; the authors' code, its memory mended"
    R_: Matrix
    Q_: Matrix
    Bq_: Matrix
    C3_: Matrix
    C4_: Matrix

    def __init__(
        self,
        bits: int = 64,
        *,
        seed: int = 0,
        min_count: int = 2,
        anchors: int = 1000,
        size: int = 200,
        published: bool = False,
        weights: Weights | None = None,
    ) -> None:
        super().__init__(bits, seed=seed, min_count=min_count)
        self.anchors, self.size = positive_int(anchors, "anchors"), positive_int(size, "size")
        self.published, self.weights = published, weights or Weights()
        positive(self.weights._asdict())

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> Matrix:
        if self.rounds_ == 1:
            self._begin(unit_rows(X), rng)
        c, tagged = Y.shape[1], np.diff(Y.indptr) > 0
        self.R_ = np.pad(self.R_, (0, c - len(self.R_)))
        self.Q_ = np.pad(self.Q_, ((0, 0), (0, c - self.Q_.shape[1])))
        if tagged.any():
            B = self._round(self._map(X[tagged]), Y[tagged], rng)
        H = self._project(X)
        if tagged.any():
            H[tagged] = B
        return H

    def _begin(self, x: Matrix, rng: np.random.Generator) -> None:
        m = min(self.anchors, len(x))
        A = x[np.sort(rng.choice(len(x), m, replace=False))]
        alike = not squared_distances(x, A).any()  # then there is no width
        kernel = Kernel(A, 1.0, np.zeros(m)) if alike else Kernel.fit(x, A)
        self.A_, self.width_, self.mean_ = kernel.A, kernel.width, kernel.mean
        self.C3_, self.C4_, self.P_ = np.zeros((m, m)), np.zeros((m, self.bits)), np.zeros((m, self.bits))
        self.R_, self.Q_, self.Bq_ = np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, self.bits))

    def _round(self, phi: Matrix, Y: csr_array, rng: np.random.Generator) -> Matrix:
        n = len(phi)
        self.R_ = self.R_ + (Y.T @ Y).toarray()
        A = pseudo_tags(Y, self.R_, self.weights.lam)
        self.C3_ = self.C3_ + phi.T @ phi
        memory = Memory(self.Q_, self.Bq_) if len(self.Q_) else None
        start = sign(rng.standard_normal((n, self.bits)))
        B, self.P_, self.C4_ = codes_of(phi, A, start, self.C3_, self.C4_, memory, self.weights, rng)
        stay = min(self.size**2 // n, len(self.Q_))
        rows = rng.permutation(len(self.Q_))[:stay]
        others = rng.permutation(len(self.Q_))[:stay] if self.published else rows
        self.Q_, self.Bq_ = remembered(memory, A, Y, B, (rows, others), self.size)
        return B

    def _map(self, X: Matrix) -> Matrix:
        return Kernel(self.A_, self.width_, self.mean_).map(unit_rows(X))

    def _project(self, X: Matrix) -> Matrix:
        return self._map(X) @ self.P_
