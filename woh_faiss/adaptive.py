"""A round with a semantic start: what the codes aim at, and how stiff the hash function is.

The solver's steps are the paper's (`solver.learn_energy_round`); here is what goes into them.
docs/adaptive.md has the algorithm in one page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from .config import WOHConfig
from .frame import cosine, directions, rotation, unit
from .kernel import Kernel, unit_rows
from .solver import energy_V, factor, learn_energy_round, regression
from .statistics import Statistics, widen
from .targets import TagSide, decoded

Matrix = NDArray[np.float64]

#: Ridges of P to choose from, as noise over signal where the mean ‖φ‖² is 1.
RIDGES = (0.01, 0.1, 1.0)
#: The smallest ridge wins whose score is within this share of the best.
TOLERANCE = 0.03
#: Rounds that choose; then the ridge is fixed and a round solves for P once.
CALIBRATING = 3


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """What the semantic start remembers beside `Statistics`; its size does not depend on the items seen.

    Attributes
    ----------
    side : TagSide
        Tags and word vectors.
    n : int
        Items seen, with and without tags.
    scores : (3,)
        How well P with each of `RIDGES` foretold the tags of chunks it had not seen, as a running mean.
    chosen : int
        Place of the ridge in use.
    Ps : (1 or 3, m, r)
        P with each ridge while choosing, then with the chosen one.
    x, B : (b, d) and (b, r)
        Rows of length 1 of the items so far and their codes, while there are fewer than there should be
        anchors; empty from then on.
    """

    side: TagSide
    n: int
    scores: Matrix
    chosen: int
    Ps: Matrix
    x: Matrix
    B: Matrix

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name."""
        names = ("n", "scores", "chosen", "Ps", "x", "B")
        own = {f"adaptive_{name}": np.asarray(getattr(self, name)) for name in names}
        return {**own, **self.side.arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Adaptive:
        """The inverse of `arrays`."""
        own = {name: np.asarray(arrays[f"adaptive_{name}"]) for name in ("scores", "Ps", "x", "B")}
        n, chosen = (int(arrays[f"adaptive_{name}"]) for name in ("n", "chosen"))
        return cls(side=TagSide.from_arrays(arrays), n=n, chosen=chosen, **own)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptiveRound:
    """What a round leaves: as `solver.Round`, with the kernel and what is remembered."""

    B: Matrix
    P: Matrix
    W: Matrix
    stats: Statistics
    kernel: Kernel
    memory: Adaptive


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What the rounds before left: None for each in round 1."""

    kernel: Kernel
    W: Matrix
    stats: Statistics
    memory: Adaptive


def learn_adaptive_round(
    X: NDArray[Any],
    Y: csr_array,
    Z: Matrix,
    tagged: NDArray[np.bool_],
    df: Matrix,
    past: Past | None,
    config: WOHConfig,
    rounds: int,
    A: Matrix | None = None,
) -> AdaptiveRound:
    """Learn the codes of one chunk and the hash function after it.

    Parameters
    ----------
    X : (n, d)
        Features, raw.
    Y, Z, tagged : (n, c) CSR of 0 and 1, (n, f), (n,)
        Tags, word-vector means, and who has a known tag: at least one item in round 1.
    df : (c,)
        Items that carried each tag so far, this chunk included.
    past : Past or None
        None in round 1.
    rounds : int
        Rounds learned before.
    A : (m, d), optional
        Anchors to use for ever, instead of drawing them.
    """
    r, c, f = config.bits, Y.shape[1], Z.shape[1]
    rng = np.random.default_rng((config.seed, rounds + 1))
    n = len(X) + (past.memory.n if past else 0)
    filling = past is None or len(past.memory.x) > 0
    x = unit_rows(X) if filling else np.zeros((0, X.shape[1]))  # needed again only for the anchors
    Yt = csr_array(Y[tagged])
    if past is None:
        A1 = _anchors(x, config.anchors, rng) if A is None else _as_stored(unit_rows(A))
        kernel = Kernel.fit(X, A1, energy=True)
        m = len(kernel.A)
        stats = Statistics.zero(r=r + 1, m=m, f=f, c=c)
        stats = replace(stats, C2=np.zeros((r, m)))
        side, W = TagSide.start(Yt, Z[tagged], df, n, r), None
        scores, chosen, Ps = np.zeros(len(RIDGES)), 0, np.zeros((0, m, r))
        kept_x, kept_B = np.zeros((0, x.shape[1])), np.zeros((0, r))
    else:
        memory, kernel, stats = past.memory, past.kernel, past.stats.widened(c)
        side, W = memory.side.widened(c).seeing(Yt), widen(past.W, c)
        scores, chosen, Ps, kept_x, kept_B = memory.scores, memory.chosen, memory.Ps, memory.x, memory.B
        if filling:
            kernel, stats, Ps = _refilled(kept_x, kept_B, x, stats, memory, config, rng)

    y, z = side.y(Yt, df, n), side.z(Z[tagged])
    phi = kernel.map(X)
    C3 = stats.C3 + phi.T @ phi
    if past is None:
        Gv, side, scores, chosen = _frame(phi, C3, y, z, tagged, side, r, rng)
        Gt = side.times(y, z, side.M)
    else:
        if len(side.TT):
            Gt = side.times(y, z, side.M)
        else:
            Gt = decoded(y, z, energy_V(stats.C1, stats.C5, config.alpha), widen(past.W, c))
        if len(Ps) > 1 and tagged.any():
            new = np.array([cosine(phi[tagged] @ P, Gt) for P in Ps])
            scores = scores + len(X) / n * (new - scores)
            chosen = _choice(scores)
        Gv = phi @ Ps[chosen if len(Ps) > 1 else 0]

    G = unit(Gv)
    G[tagged] += unit(Gt)
    G /= max(float(np.abs(G).mean()), 1e-300)
    full_y, full_z = _spread(y, z, tagged)
    B, W, stats = learn_energy_round(G, full_y, full_z, tagged.astype(np.float64), W, stats, config)
    side = side.refitted(y, z, B[tagged])

    stats = replace(stats, C2=stats.C2 + B.T @ phi, C3=C3, n=stats.n + len(B))
    ridges = RIDGES if rounds + 1 < CALIBRATING else (RIDGES[chosen],)
    Ps = _projections(stats, ridges)
    if filling:
        more = n < config.anchors and A is None
        kept_x = np.vstack([kept_x, x]) if more else np.zeros((0, X.shape[1]))
        kept_B = np.vstack([kept_B, B]) if more else np.zeros((0, r))
    memory = Adaptive(side=side, n=n, scores=scores, chosen=chosen, Ps=Ps, x=kept_x, B=kept_B)
    P = Ps[chosen if len(Ps) > 1 else 0]
    return AdaptiveRound(B=B, P=P, W=W, stats=stats, kernel=kernel, memory=memory)


def _frame(
    phi: Matrix,
    C3: Matrix,
    y: csr_array,
    z: Matrix,
    tagged: NDArray[np.bool_],
    side: TagSide,
    r: int,
    rng: np.random.Generator,
) -> tuple[Matrix, TagSide, Matrix, int]:
    """What the features ask of each bit (n, r), M, and how well each ridge did on the chunk's other half."""
    F = phi[tagged]
    half, scores = len(F) // 2, np.zeros(len(RIDGES))
    if half:
        eigen = np.linalg.eigh(F[:half].T @ F[:half])
        S = side.transposed_times(y[:half], z[:half], F[:half]).T
        for place, rho in enumerate(RIDGES):
            E, R = directions(eigen, S, rho, r, rng)
            scores[place] = cosine(F[half:] @ R, side.times(y[half:], z[half:], E))
    chosen = _choice(scores)
    rho = RIDGES[chosen]
    C3t = C3 if tagged.all() else F.T @ F
    E, R = directions(np.linalg.eigh(C3t), side.transposed_times(y, z, F).T, rho, r, rng)
    Gv, Gt = F @ R, side.times(y, z, E)
    if not np.any(Gv):  # tags that say nothing, such as the same for all: the features' own main directions
        main = phi @ np.linalg.eigh(C3)[1][:, -r:]
        main = np.pad(main, ((0, 0), (0, r - main.shape[1])))
        return main @ rotation(unit(main), rng), side, scores, chosen
    turn = rotation(unit(Gv) + unit(Gt), rng)
    Gv = Gv @ turn
    if not tagged.all():  # the rest as the ridge regression on the tagged items foretells it
        Gv = phi @ regression(C3t, F.T @ Gv, rho)
    return Gv, replace(side, M=E @ turn), scores, chosen


def _choice(scores: Matrix) -> int:
    """Place of the smallest ridge whose score is near the best."""
    return int(np.argmax(scores >= scores.max() - TOLERANCE * abs(scores.max())))


def _anchors(x: Matrix, m: int, rng: np.random.Generator) -> Matrix:
    """m anchors from rows of length 1: rows at random, or all of them and means of random pairs."""
    if len(x) >= m:
        A = x[np.sort(rng.choice(len(x), m, replace=False))]
    else:
        i, j = rng.integers(len(x), size=(2, m - len(x)))
        A = np.vstack([x, (x[i] + x[j]) / 2])
    return _as_stored(A)


def _as_stored(A: Matrix) -> Matrix:
    """A rounded to the float32 that is kept on disk: a reopened index must map as this one."""
    return A.astype(np.float32).astype(np.float64)


def _refilled(
    kept_x: Matrix,
    kept_B: Matrix,
    x: Matrix,
    stats: Statistics,
    memory: Adaptive,
    config: WOHConfig,
    rng: np.random.Generator,
) -> tuple[Kernel, Statistics, Matrix]:
    """Anchors drawn anew from all items so far, while they are few; φ's statistics made again, exactly."""
    everything = np.vstack([kept_x, x])
    kernel = Kernel.fit(everything, _anchors(everything, config.anchors, rng), energy=True)
    F = kernel.map(kept_x)
    stats = replace(stats, C2=kept_B.T @ F, C3=F.T @ F)
    ridges = RIDGES if len(memory.Ps) > 1 else (RIDGES[memory.chosen],)
    return kernel, stats, _projections(stats, ridges)


def _projections(stats: Statistics, ridges: tuple[float, ...]) -> Matrix:
    """P with each ridge (Eq. 8): (len(ridges), m, r)."""
    return np.stack([cho_solve(factor(stats.C3, rho), stats.C4, check_finite=False) for rho in ridges])


def _spread(y: csr_array, z: Matrix, tagged: NDArray[np.bool_]) -> tuple[csr_array, Matrix]:
    """Tag rows and word vectors of all items, empty and zero where there are no tags."""
    if tagged.all():
        return y, z
    lengths = np.zeros(len(tagged), np.int64)
    lengths[tagged] = np.diff(y.indptr)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    full = np.zeros((len(tagged), z.shape[1]))
    full[tagged] = z
    return csr_array((y.data, y.indices, indptr), shape=(len(tagged), y.shape[1])), full
