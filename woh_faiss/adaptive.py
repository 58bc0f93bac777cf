"""The semantic start of a round: what the codes of a chunk aim at.

The steps that follow are the paper's (`solver.learn_round`); docs/adaptive.md has the algorithm in one page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .config import WOHConfig
from .frame import cosine, directions, rotation, unit
from .kernel import Kernel, unit_rows
from .memory import Adaptive, Early, Learned
from .solver import Round, V_of, sign
from .statistics import Statistics, widen
from .targets import TagSide, decoded

Matrix = NDArray[np.float64]

#: Ridges of the frame to choose from, as noise over signal where the mean ‖φ‖² is 1.
RIDGES = (0.01, 0.1, 1.0)
#: The smallest ridge wins whose score is within this share of the best.
TOLERANCE = 0.03
#: Directions a bit to find room for codes that are given: the top r of more items are others.
ROOM = 4


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a round goes into the solver with: the arguments of `learn_round`, and what they were made of.

    Attributes
    ----------
    kernel : Kernel
        The map that made `phi`.
    phi, Y, Z, B0, W0, past, aim, given
        See `solver.learn_round`.
    side, early : TagSide, Early or None
        What is remembered of the tags, and of the first items; None where there is nothing.
    """

    kernel: Kernel
    phi: Matrix
    Y: csr_array
    Z: Matrix
    B0: Matrix
    W0: Matrix | None
    past: Statistics
    aim: Matrix | None = None
    given: int = 0
    side: TagSide | None = None
    early: Early | None = None


def semantic_start(
    X: NDArray[Any],
    Y: csr_array,
    Z: Matrix,
    df: Matrix,
    known: Learned | None,
    bare: NDArray[Any],
    config: WOHConfig,
    rng: np.random.Generator,
    A: Matrix | None = None,
) -> Start:
    """Where the codes of a chunk start from, and what they aim at.

    Parameters
    ----------
    X : (n, d)
        Features, raw.
    Y, Z : (n, c) CSR of 0 and 1, (n, f)
        Tags and word-vector means; every item has a tag.
    df : (c,)
        Items that carried each tag so far, this chunk included.
    known : Learned or None
        What the rounds before left; None in round 1.
    bare : (n', d)
        Features of the chunk's items without a tag: while items are few they help to fit the map.
    A : (m, d), optional
        Anchors to use for ever, instead of drawing them.
    """
    memory = None if known is None else known.memory
    n = len(X) + (known.stats.n if known is not None else 0)
    if known is None or memory is None:
        early = Early.none(X.shape[1], config.bits, Z.shape[1], Y.shape[1])
    elif memory.early is None:
        return _later(X, Y, Z, df, n, known, memory, config)
    else:
        early = memory.early
    return _early(early.and_then(unit_rows(X), Y, Z), df, n, bare, config, rng, A)


def remembered(start: Start, done: Round, most: int) -> Adaptive | None:
    """What is kept after a round beside its statistics, up to `most` items whole; None of a random start."""
    if start.side is None:
        return None
    early = None
    if start.early is not None and done.stats.n < most:
        early = replace(start.early, B=done.B)
    return Adaptive(side=start.side.refitted(start.Y, start.Z, done.B), early=early)


def _early(
    early: Early,
    df: Matrix,
    n: int,
    bare: NDArray[Any],
    config: WOHConfig,
    rng: np.random.Generator,
    A: Matrix | None,
) -> Start:
    """Everything anew from all items so far, while they are few; codes that were given hold still."""
    r, c, f = config.bits, early.Y.shape[1], early.Z.shape[1]
    x = np.vstack([early.x, unit_rows(bare)])
    A = _anchors(x, config.anchors, rng) if A is None else _as_stored(unit_rows(A))
    kernel = Kernel.fit(x, A, energy=True)
    phi = kernel.map(early.x)
    past = Statistics.zero(r=r, m=len(kernel.A), f=f, c=c, constant=True)
    side = TagSide.start(early.Y, early.Z, df, n, r)
    y, z = side.y(early.Y, df, n), side.z(early.Z)
    Gv, M = _frame(phi, y, z, side, early.B, r, rng)
    G, given = _aim(Gv, side.times(y, z, M)), len(early.B)
    B0 = np.vstack([early.B, sign(G[given:])])
    side = replace(side, M=M)
    return Start(kernel, phi, y, z, B0, None, past, aim=G, given=given, side=side, early=early)


def _later(
    X: NDArray[Any],
    Y: csr_array,
    Z: Matrix,
    df: Matrix,
    n: int,
    known: Learned,
    memory: Adaptive,
    config: WOHConfig,
) -> Start:
    """What the hash function so far and the tags' part M ask of the chunk."""
    c, kernel = Y.shape[1], known.hasher.kernel
    stats, W = known.stats.widened(c), widen(known.W, c)
    side = memory.side.widened(c).seeing(Y)
    y, z = side.y(Y, df, n), side.z(Z)
    phi = kernel.map(X)
    Gt = side.times(y, z, side.M) if len(side.TT) else decoded(y, z, V_of(stats, config), W)
    G = _aim(phi @ known.hasher.P, Gt)
    return Start(kernel, phi, y, z, sign(G), W, stats, aim=G, side=side)


def _aim(Gv: Matrix, Gt: Matrix) -> Matrix:
    """G from what the features ask of each bit, Gv, and the tags, Gt: all (n, r)."""
    G = unit(Gv) + unit(Gt)
    G /= max(float(np.abs(G).mean()), 1e-300)
    return G


def _frame(
    phi: Matrix,
    y: csr_array,
    z: Matrix,
    side: TagSide,
    given: Matrix,
    r: int,
    rng: np.random.Generator,
) -> tuple[Matrix, Matrix]:
    """What the features ask of each bit (n, r), and M (c + f, r); near the codes given to the first rows."""
    rho = _ridge(phi, y, z, side, r, rng)
    eigen = np.linalg.eigh(phi.T @ phi)
    room = ROOM * r if len(given) else r
    E, R = directions(eigen, side.transposed_times(y, z, phi).T, rho, room, rng)
    Gv = phi @ R
    if not np.any(Gv):  # tags that say nothing, such as the same for all: the features' own main directions
        main = phi @ eigen[1][:, -r:]
        main = np.pad(main, ((0, 0), (0, r - main.shape[1])))
        return main @ rotation(unit(main), given, rng), np.zeros((len(E), r))
    turn = rotation(unit(Gv) + unit(side.times(y, z, E)), given, rng)
    return Gv @ turn, E @ turn


def _ridge(F: Matrix, y: csr_array, z: Matrix, side: TagSide, r: int, rng: np.random.Generator) -> float:
    """The ridge with which one half of the items best foretells the tags of the other."""
    half = len(F) // 2
    if not half:
        return RIDGES[0]
    eigen = np.linalg.eigh(F[:half].T @ F[:half])
    S = side.transposed_times(y[:half], z[:half], F[:half]).T
    scores = []
    for rho in RIDGES:
        E, R = directions(eigen, S, rho, r, rng)
        scores.append(cosine(F[half:] @ R, side.times(y[half:], z[half:], E)))
    return RIDGES[_choice(np.array(scores))]


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
