"""The semantic start of a round: the target of a chunk's codes.

The steps that follow are the paper's (`training_round.py`); docs/adaptive.md has the algorithm in one page.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from .blocks import Rows, Sums, block_slices, split_blocks
from .config import WOHConfig
from .drift import UNLIKE, redirected
from .kernel import Kernel, centroids, mapped, squared_distances, unit_rows
from .solver import V_of, factor, sign
from .state import Adaptive, ModelState, WarmupItems
from .statistics import Statistics, of_features, widen
from .tag_directions import cosine, directions, rotation, unit
from .tag_targets import TagTargets, TagWeights, decoded
from .training_round import Codes, Items, LearnedRound
from .trust import trusts

Matrix = NDArray[np.float64]

#: Ridges of the frame to choose from, as noise over signal where the mean ‖φ‖² is 1.
RIDGES = (0.01, 0.1, 1.0)
#: The smallest ridge wins whose score is within this share of the best.
TOLERANCE = 0.03
#: Directions a bit to find room for codes that are given: the top r of more items are others.
ROOM = 4
#: Items without a tag for one with some, from which on bits follow the features' own directions, too.
FEW = 3
#: Weight of such directions where there is one more of those items.
FEATURES = 1 / 2
#: Ridge of the map from φ to the features' main directions, in units of `RIDGES`.
RIDGE_X = 0.01
#: Power of an item's trust that divides what its features ask.
DOUBT = 5 / 3
#: What an item without a tag counts in the hash function.
UNTAGGED = 0.03
#: Rows an anchor that k-means takes at most, and its iterations.
CLUSTERED, ITERATIONS = 4, 3
#: ‖x − a‖² of rows of length 1 below which a is x.
SAME = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a round goes into the solver with, and what it was made of.

    Attributes
    ----------
    kernel : Kernel
        The map that made the items' φ.
    items, W0, past
        See `training_round.learn_round`.
    given : int
        Items that have their final codes already.
    side, early : TagTargets, WarmupItems or None
        What is remembered of the tags, and of the first items; None where there is nothing.
    bare : (n, m)
        φ of the first items without a tag.
    novelty, adapted : float, bool
        Share of the chunk's tags that the items so far did not let expect, see `drift.novelty`; and whether
        the start is therefore another one.
    """

    kernel: Kernel
    items: Rows[Items]
    W0: Matrix | None
    past: Statistics
    given: int = 0
    side: TagTargets | None = None
    early: WarmupItems | None = None
    bare: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    novelty: float = 0.0
    adapted: bool = False


def early_start(
    early: WarmupItems,
    df: Matrix,
    n: int,
    config: WOHConfig,
    rng: np.random.Generator,
    A: Matrix | None,
    novelty: float,
) -> Start:
    """Everything again from all items so far, while they are few; existing codes do not change.

    Parameters
    ----------
    early : WarmupItems
        The items so far and the chunk's.
    df, n : (c,), int
        Items that carried each tag so far, and items with a tag so far, this chunk included.
    A : (m, d) or None
        Anchors to use permanently, instead of drawing them.
    novelty : float
        Of the chunk, see `drift.novelty`. Tags of new kinds can't be foretold, and are trusted.
    """
    r, c, f = config.bits, early.Y.shape[1], early.Z.shape[1]
    x = np.vstack([early.x, early.bare_x])
    A = _anchors(x, config.anchors, rng) if A is None else _as_stored(unit_rows(A))
    kernel = Kernel.fit(x, A, energy=True)
    phi, bare = kernel.map(early.x), kernel.map(early.bare_x)
    side, y = TagTargets.start(early.Y, early.Z, df, n, r)
    z = side.z(early.Z)
    rho = _ridge(phi, y, z, side, r, rng)
    few = FEATURES * np.sqrt(max(early.bare_n / len(phi) - FEW, 0.0))
    frame = _frame(phi, y, z, bare, few, side, early, rho, rng)
    adapted = novelty > UNLIKE
    held_out, of_tags = split_blocks(frame.held_out), split_blocks(side.times(y, z, frame.M))
    # Features do not foretell kinds that were not there before.
    trust = None if adapted else trusts(held_out, of_tags)
    past = Statistics.zero(r=r, m=len(kernel.A), f=f, c=c, constant=True)
    if few:
        B = _continued(early.bare_codes, bare @ frame.R)
        past = past.plus(split_blocks(bare).sum(_untagged, split_blocks(B)))
    given = len(early.B)
    aim = _aim(split_blocks(frame.Gv), of_tags, trust)
    codes = [early.B[rows] for rows in block_slices(len(phi))]
    items = split_blocks(phi).map(_items, split_blocks(y), split_blocks(z), aim, trust, Rows(codes))
    side = replace(side, M=frame.M)
    return Start(kernel, items, None, past, given, side, early, bare, novelty, adapted)


def later_start(
    X: Rows[NDArray[Any]],
    Y: Rows[csr_array],
    Z: Rows[Matrix],
    side: TagTargets,
    df: Matrix,
    n: int,
    known: ModelState,
    config: WOHConfig,
    novelty: float,
    rng: np.random.Generator,
) -> Start:
    """What the hash function so far and the tags' part M ask of the chunk.

    Parameters
    ----------
    X, Y, Z : Rows of (b, d), (b, c) CSR of 0 and 1, (b, f)
        Features, raw; tags and word-vector means. Every item has a tag.
    side : TagTargets
        That has seen Y.
    df, n : (c,), int
        As `early_start`.
    novelty : float
        Of the chunk, see `drift.novelty`.
    """
    kernel = known.hasher.kernel
    stats, W = known.stats.widened(side.c), widen(known.W, side.c)
    light = side.light
    y, z = Y.map(_weighed, side.weigher(df, n)), Z.map(_standardised, light)
    fitted = len(side.TT) > 0
    Gt = y.map(_times, z, light) if fitted else y.map(decoded, z, V_of(stats, config), W)
    size = 4 * (n - known.stats.n) * len(kernel.A)
    phi = X.map_if_small(size, mapped, kernel)
    adapted = novelty > UNLIKE and side.a + side.q > 0
    if adapted:
        TB = side.TB if fitted else side.TB_of(stats.C1, V_of(stats, config), W)
        P, M = redirected(phi, y, z, light, stats, TB, config.alpha, rng)
        Gv, Gt = phi.map(_projected, P), y.map(_times, z, replace(light, M=M))
    else:
        Gv = phi.map(_projected, known.hasher.P)
    trust = None if adapted else trusts(Gv, Gt)
    aim = _aim(Gv, Gt, trust)
    items = phi.map_if_small(size, _items, y, z, aim, trust)
    return Start(kernel, items, W, stats, side=side, novelty=novelty, adapted=adapted)


def remembered(start: Start, done: LearnedRound, most: int) -> Adaptive | None:
    """What is kept after a round beside its statistics, up to `most` items whole; None of a random start."""
    side, early = start.side, None
    if side is None:
        return None
    if start.early is not None and done.stats.n < most:
        early = replace(
            start.early, B=done.B, bare_codes=_continued(start.early.bare_codes, start.bare @ done.P)
        )
    if len(side.TT):
        side = side.refitted(start.items.sum(_of_codes, done.codes, side.light))
    return Adaptive(side=side, early=early)


def _items(
    phi: NDArray[Any],
    y: csr_array,
    z: Matrix,
    aim: Matrix,
    trust: Matrix | None,
    given: Matrix | None = None,
) -> Items:
    """A block of items whose codes start from the aim, but for those `given` to its first rows."""
    if given is None or not len(given):
        return Items(phi, y, z, sign(aim), aim, trust=trust)
    return Items(phi, y, z, np.vstack([given, sign(aim[len(given) :])]), aim, len(given), trust)


def _untagged(phi: Matrix, B: Matrix) -> Sums:
    """What items without tags add to the statistics, so that the hash function gives their codes."""
    return of_features(np.sqrt(UNTAGGED) * phi) | {"C2": UNTAGGED * (B.T @ phi)}


def _projected(phi: NDArray[Any], P: Matrix) -> Matrix:
    return np.asarray(phi @ P.astype(phi.dtype), np.float64)


def _weighed(Y: csr_array, weigher: TagWeights) -> csr_array:
    return weigher.rows(Y)


def _standardised(Z: Matrix, side: TagTargets) -> Matrix:
    return side.z(Z)


def _times(y: csr_array, z: Matrix, side: TagTargets) -> Matrix:
    return side.times(y, z, side.M)


def _of_codes(items: Items, codes: Codes, side: TagTargets) -> Sums:
    return side.of_codes(items.Y, items.Z, codes.B, items.trust)


def _aim(Gv: Rows[Matrix], Gt: Rows[Matrix], trust: Rows[Matrix] | None) -> Rows[Matrix]:
    """G, what features (Gv) and tags (Gt) ask of each bit, each in units of its own: all (b, r).

    The less an item's tags are trusted, the more its features ask. The solver weighs that against what the
    tags ask of the code through V and W.
    """
    squares = Gv.sum(_squares, Gt)
    rms = [float(np.sqrt(squares[name] / max(squares["size"], 1))) for name in ("Gv", "Gt")]
    units = [value if value > 0 else 1.0 for value in rms]
    G = Gv.map(_both, Gt, *units)
    size = float(G.sum(_absolute)["sum"]) / max(squares["size"], 1)
    if trust is not None:
        G = Gv.map(_by_trust, trust).map(_both, Gt, *units)
    return G.map(np.divide, max(size, 1e-300))


def _squares(Gv: Matrix, Gt: Matrix) -> Sums:
    return {"Gv": np.square(Gv).sum(), "Gt": np.square(Gt).sum(), "size": Gv.size}


def _both(Gv: Matrix, Gt: Matrix, v: float, t: float) -> Matrix:
    return Gv / v + Gt / t


def _by_trust(Gv: Matrix, trust: Matrix) -> Matrix:
    return np.asarray(Gv / trust[:, None] ** DOUBT)


def _absolute(G: Matrix) -> Sums:
    return {"sum": np.abs(G).sum()}


class _Frame(NamedTuple):
    """The directions of a warm-up round.

    Gv (n, r) is what features ask of each bit, R (m, r) makes it; M (c + f, r) takes tags to bits, and
    `held_out` (n, r) is what the features of all other items foretell of T M.
    """

    Gv: Matrix
    R: Matrix
    M: Matrix
    held_out: Matrix


def _frame(
    phi: Matrix,
    y: csr_array,
    z: Matrix,
    bare: Matrix,
    few: float,
    side: TagTargets,
    early: WarmupItems,
    rho: float,
    rng: np.random.Generator,
) -> _Frame:
    """Directions of tags, and with weight `few` those of features; near the codes given to the first rows.

    Parameters
    ----------
    phi, y, z : (n, m), (n, c) CSR, (n, f)
        The items so far.
    bare : (n', m)
        Those without a tag.
    rho : float
        Ridge of the regression from features to tags.
    """
    r, given = early.B.shape[1], early.B
    eigen = np.linalg.eigh(phi.T @ phi)
    room = ROOM * r if len(given) else r
    shared = _shared(eigen[1], phi, y, z, side)
    E, R = directions(eigen, shared, phi, side.operator(y, z), rho, room, rng)
    if not np.any(phi @ R):  # tags that say nothing, such as the same for all: the features' main directions
        main = np.pad(eigen[1][:, -r:], ((0, 0), (0, max(r - len(eigen[1]), 0))))
        turn, none = rotation(unit(phi @ main), given, rng), np.zeros((len(phi), r))
        return _Frame(phi @ main @ turn, main @ turn, np.zeros((len(E), r)), none)
    # The ridge regression of all other items foretells (Gv − h Gt) / (1 − h) for a row of leverage h.
    turned = phi.astype(np.float32) @ eigen[1].astype(np.float32)
    h = np.square(turned) @ (1.0 / (np.maximum(eigen[0], 0.0) + rho))
    h = np.minimum(h, 1 - 1e-3)[:, None]
    Gv, Gt = phi @ R, side.times(y, z, E)
    if not few:
        turn = rotation(unit(Gv) + unit(Gt), given, rng)
        return _Frame(Gv @ turn, R @ turn, E @ turn, ((Gv - h * Gt) / (1 - h)) @ turn)
    x = np.vstack([early.x, early.bare_x])
    E, R, own = _beside_features(E, R, (Gv - h * Gt) / (1 - h), Gt, np.vstack([phi, bare]), x, few)
    Gv, Gt = phi @ R, side.times(y, z, E)
    both = Gv + phi @ own
    H = unit(both) + unit(Gt + phi @ own)
    H_bare = 2 * unit(bare @ (R + own))
    old, old_bare = len(given), len(early.bare_codes)
    turn = rotation(
        np.vstack([H[:old], H_bare[:old_bare], H[old:], H_bare[old_bare:]]),
        np.vstack([given, early.bare_codes]),
        rng,
    )
    return _Frame(both @ turn, (R + own) @ turn, E @ turn, ((Gv - h * Gt) / (1 - h)) @ turn)


def _beside_features(
    E: Matrix, R: Matrix, held_out: Matrix, Gt: Matrix, phi: Matrix, x: Matrix, few: float
) -> tuple[Matrix, Matrix, Matrix]:
    """The main directions of tags and features together: E and R of as many, and the features' part (m, p).

    A direction of the tags counts as far as it is foretold, all of them 1 to `few` of the features' own.
    """
    room = E.shape[1]
    length = np.sqrt(np.square(held_out).sum(axis=0) * np.square(Gt).sum(axis=0))
    weight = np.maximum((held_out * Gt).sum(axis=0), 0.0) / np.maximum(length, 1e-300)
    weight /= max(np.sqrt(np.square(phi @ R * weight).sum(axis=1).mean()), 1e-300)
    main = main_directions(phi, x, room)
    main *= few / max(np.sqrt(np.square(phi @ main).sum(axis=1).mean()), 1e-300)
    J = phi @ np.hstack([R * weight, main])
    D = np.linalg.eigh(J.T @ J)[1][:, -room:]
    of_tags, of_features = D[:room], D[room:]
    return (E * weight) @ of_tags, (R * weight) @ of_tags, main @ of_features


def main_directions(phi: Matrix, x: Matrix, most: int) -> Matrix:
    """What takes φ (n, m) nearest to the main directions of the features x (n, d): (m, p), p at most `most`.

    Those of φ itself are worse: in φ all far items are equally far.
    """
    x = x - x.mean(axis=0)
    main = x @ np.linalg.eigh(x.T @ x)[1][:, -most:]
    return np.asarray(cho_solve(factor(phi.T @ phi, RIDGE_X), phi.T @ main, check_finite=False))


def _continued(B: Matrix, H: Matrix) -> Matrix:
    """The codes B of the first rows, then the signs of the others of H (n, r)."""
    return np.vstack([B, sign(H[len(B) :])])


def _ridge(F: Matrix, y: csr_array, z: Matrix, side: TagTargets, r: int, rng: np.random.Generator) -> float:
    """The ridge with which one half of the items best foretells the tags of the other."""
    half = len(F) // 2
    if not half:
        return RIDGES[0]
    eigen = np.linalg.eigh(F[:half].T @ F[:half])
    shared = _shared(eigen[1], F[:half], y[:half], z[:half], side)
    T, scores = side.operator(y[:half], z[:half]), []
    for rho in RIDGES:
        E, R = directions(eigen, shared, F[:half], T, rho, r, rng)
        scores.append(cosine(F[half:] @ R, side.times(y[half:], z[half:], E)))
    return RIDGES[_choice(np.array(scores))]


def _shared(Q: Matrix, phi: Matrix, y: csr_array, z: Matrix, side: TagTargets) -> Matrix:
    """Q'φ'TT'φQ: what features and tags share, in the features' eigenvectors."""
    return np.asarray(Q.T @ side.covariance(y, z, phi) @ Q)


def _choice(scores: Matrix) -> int:
    """Place of the smallest ridge whose score is near the best."""
    return int(np.argmax(scores >= scores.max() - TOLERANCE * abs(scores.max())))


def _anchors(x: Matrix, m: int, rng: np.random.Generator) -> Matrix:
    """m anchors of rows x (n, d) of length 1, each the mean of several: none is the row of an item.

    Where there are more rows, k-means from random ones; else all rows and means of random pairs. Then what is
    a row is moved half-way to the nearest other row.
    """
    if len(x) > m:
        most = CLUSTERED * m
        few = x if len(x) <= most else x[np.sort(rng.choice(len(x), most, replace=False))]
        A = centroids(few, few[np.sort(rng.choice(len(few), m, replace=False))], ITERATIONS)
    else:
        i, j = rng.integers(len(x), size=(2, m - len(x)))
        few, A = x, np.vstack([x, (x[i] + x[j]) / 2])
    for rows in block_slices(m):
        D = squared_distances(A[rows], few)
        same = D < SAME
        at_a_row = same.any(axis=1)
        D[same] = np.inf
        nearest = np.where(at_a_row & ~same.all(axis=1), D.argmin(axis=1), -1)
        moved = np.flatnonzero(nearest >= 0)
        A[rows][moved] = (A[rows][moved] + few[nearest[moved]]) / 2
    return _as_stored(A)


def _as_stored(A: Matrix) -> Matrix:
    """A rounded to the float32 that is kept on disk: a reopened index must map as this one."""
    return A.astype(np.float32).astype(np.float64)
