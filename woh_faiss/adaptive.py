"""The semantic start of a round: what the codes of a chunk aim at.

The steps that follow are the paper's (`solver.learn_round`); docs/adaptive.md has the algorithm in one page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from .config import WOHConfig
from .frame import cosine, directions, rotation, unit
from .kernel import Kernel, unit_rows
from .solver import V_of, regression, sign
from .statistics import Statistics, widen
from .targets import TagSide, decoded

if TYPE_CHECKING:
    from .trainer import Learned

Matrix = NDArray[np.float64]

#: Ridges of the frame to choose from, as noise over signal where the mean ‖φ‖² is 1.
RIDGES = (0.01, 0.1, 1.0)
#: The smallest ridge wins whose score is within this share of the best.
TOLERANCE = 0.03
#: Directions a bit to find room for codes that are given: the top r of more items are others.
ROOM = 4


@dataclass(frozen=True, slots=True, eq=False)
class Early:
    """The items so far, kept while they are fewer than the anchors should be.

    Attributes
    ----------
    x, B : (b, d), (b, r)
        Rows of length 1, and codes.
    Y, Z, tagged : (b, c) CSR of 0 and 1, (b, f), (b,)
        Tags, word-vector means, and who has a known tag.
    """

    x: Matrix
    B: Matrix
    Y: csr_array
    Z: Matrix
    tagged: NDArray[np.bool_]

    @classmethod
    def none(cls, d: int, r: int, f: int, c: int) -> Early:
        """No items."""
        return cls(
            np.zeros((0, d)), np.zeros((0, r)), csr_array((0, c)), np.zeros((0, f)), np.zeros(0, np.bool_)
        )

    def and_then(self, x: Matrix, Y: csr_array, Z: Matrix, tagged: NDArray[np.bool_]) -> Early:
        """With a chunk's items behind, who have no codes yet."""
        mine = csr_array((self.Y.data, self.Y.indices, self.Y.indptr), shape=(len(self.x), Y.shape[1]))
        return Early(
            np.vstack([self.x, x]),
            self.B,
            csr_array(vstack([mine, Y])),
            np.vstack([self.Z, Z]),
            np.concatenate([self.tagged, tagged]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """What the semantic start remembers beside `Statistics`; its size does not depend on the items seen.

    Attributes
    ----------
    side : TagSide
        Tags and word vectors.
    n : int
        Items seen, with and without tags.
    early : Early or None
        None once there were as many items as anchors.
    """

    side: TagSide
    n: int
    early: Early | None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name."""
        early = self.early
        kept: dict[str, Any] = {} if early is None else {
            "x": early.x, "B": early.B, "Z": early.Z, "tagged": early.tagged,
            "Y_indices": early.Y.indices, "Y_indptr": early.Y.indptr,
        }  # fmt: skip
        own = {f"adaptive_{name}": np.asarray(value) for name, value in {"n": self.n, **kept}.items()}
        return {**own, **self.side.arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Adaptive:
        """The inverse of `arrays`."""
        side, early = TagSide.from_arrays(arrays), None
        if "adaptive_tagged" in arrays:
            x, B, Z, tagged, indices, indptr = (
                np.asarray(arrays[f"adaptive_{name}"])
                for name in ("x", "B", "Z", "tagged", "Y_indices", "Y_indptr")
            )
            Y = csr_array((np.ones(len(indices)), indices, indptr), shape=(len(x), side.c))
            early = Early(x, B, Y, Z, tagged)
        return cls(side=side, n=int(arrays["adaptive_n"]), early=early)


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a round goes into the solver with: the arguments of `learn_round`, and what they were made of.

    Attributes
    ----------
    kernel : Kernel
        The map that made `phi`.
    phi, Y, Z, B0, W0, past, aim, tagged, given
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
    tagged: Matrix | None = None
    given: int = 0
    side: TagSide | None = None
    early: Early | None = None


def semantic_start(
    X: NDArray[Any],
    Y: csr_array,
    Z: Matrix,
    tagged: NDArray[np.bool_],
    df: Matrix,
    known: Learned | None,
    config: WOHConfig,
    rng: np.random.Generator,
    A: Matrix | None = None,
) -> Start:
    """Where the codes of a chunk start from, and what they aim at.

    Parameters
    ----------
    X : (n, d)
        Features, raw.
    Y, Z, tagged : (n, c) CSR of 0 and 1, (n, f), (n,)
        Tags, word-vector means, and who has a known tag: at least one item in round 1.
    df : (c,)
        Items that carried each tag so far, this chunk included.
    known : Learned or None
        What the rounds before left; None in round 1.
    A : (m, d), optional
        Anchors to use for ever, instead of drawing them.
    """
    memory = None if known is None else known.memory
    n = len(X) + (memory.n if memory else 0)
    if known is None or memory is None:
        early = Early.none(X.shape[1], config.bits, Z.shape[1], Y.shape[1])
    elif memory.early is None:
        return _later(X, Y, Z, tagged, df, n, known, memory, config)
    else:
        early = memory.early
    return _early(early.and_then(unit_rows(X), Y, Z, tagged), df, n, config, rng, A)


def remembered(start: Start, B: Matrix, n: int, config: WOHConfig) -> Adaptive:
    """What is kept after a round that ended with the codes B, n items having been seen in all."""
    if start.side is None or start.tagged is None:
        raise ValueError("start has no tag side: it is not a semantic one")
    rows, early = start.tagged > 0, start.early
    side = start.side.refitted(csr_array(start.Y[rows]), start.Z[rows], B[rows])
    if early is not None:
        early = replace(early, B=B) if n < config.anchors else None
    return Adaptive(side=side, n=n, early=early)


def _early(
    early: Early, df: Matrix, n: int, config: WOHConfig, rng: np.random.Generator, A: Matrix | None
) -> Start:
    """Everything anew from all items so far, while they are few; codes that were given hold still."""
    r, c, f, tagged = config.bits, early.Y.shape[1], early.Z.shape[1], early.tagged
    kernel = Kernel.fit(
        early.x,
        _anchors(early.x, config.anchors, rng) if A is None else _as_stored(unit_rows(A)),
        energy=True,
    )
    phi = kernel.map(early.x)
    past = Statistics.zero(r=r, m=len(kernel.A), f=f, c=c, constant=True)
    Yt = csr_array(early.Y[tagged])
    side = TagSide.start(Yt, early.Z[tagged], df, n, r)
    y, z = side.y(Yt, df, n), side.z(early.Z[tagged])
    Gv, M = _frame(phi, phi.T @ phi, y, z, tagged, side, early.B, r, rng)
    side = replace(side, M=M)
    start = _aiming(kernel, phi, y, z, tagged, Gv, side.times(y, z, M), side, None, past)
    B0 = np.vstack([early.B, start.B0[len(early.B) :]])
    return replace(start, B0=B0, given=len(early.B), early=early if A is None else None)


def _later(
    X: NDArray[Any],
    Y: csr_array,
    Z: Matrix,
    tagged: NDArray[np.bool_],
    df: Matrix,
    n: int,
    known: Learned,
    memory: Adaptive,
    config: WOHConfig,
) -> Start:
    """What the hash function so far and the tags' part M ask of the chunk."""
    c, kernel = Y.shape[1], known.hasher.kernel
    Yt, stats, W = csr_array(Y[tagged]), known.stats.widened(c), widen(known.W, c)
    side = memory.side.widened(c).seeing(Yt)
    y, z = side.y(Yt, df, n), side.z(Z[tagged])
    phi = kernel.map(X)
    Gt = side.times(y, z, side.M) if len(side.TT) else decoded(y, z, V_of(stats, config), W)
    return _aiming(kernel, phi, y, z, tagged, phi @ known.hasher.P, Gt, side, W, stats)


def _aiming(
    kernel: Kernel,
    phi: Matrix,
    y: csr_array,
    z: Matrix,
    tagged: NDArray[np.bool_],
    Gv: Matrix,
    Gt: Matrix,
    side: TagSide,
    W: Matrix | None,
    past: Statistics,
) -> Start:
    """The start from what features ask of all items, Gv, and tags of those that have any, Gt."""
    G = unit(Gv)
    G[tagged] += unit(Gt)
    G /= max(float(np.abs(G).mean()), 1e-300)
    full_y, full_z = _spread(y, z, tagged)
    return Start(
        kernel, phi, full_y, full_z, sign(G), W, past, aim=G, tagged=tagged.astype(np.float64), side=side
    )


def _frame(
    phi: Matrix,
    C3: Matrix,
    y: csr_array,
    z: Matrix,
    tagged: NDArray[np.bool_],
    side: TagSide,
    given: Matrix,
    r: int,
    rng: np.random.Generator,
) -> tuple[Matrix, Matrix]:
    """What the features ask of each bit (n, r), and M (c + f, r); near the codes given to the first rows."""
    F = phi[tagged]
    rho = _ridge(F, y, z, side, r, rng)
    C3t = C3 if tagged.all() else F.T @ F
    room = ROOM * r if len(given) else r
    E, R = directions(np.linalg.eigh(C3t), side.transposed_times(y, z, F).T, rho, room, rng)
    Gv = F @ R
    if not np.any(Gv):  # tags that say nothing, such as the same for all: the features' own main directions
        main = phi @ np.linalg.eigh(C3)[1][:, -r:]
        main = np.pad(main, ((0, 0), (0, r - main.shape[1])))
        return main @ rotation(unit(main), given, rng), np.zeros((len(E), r))
    turn = rotation(unit(Gv) + unit(side.times(y, z, E)), given[tagged[: len(given)]], rng)
    Gv = Gv @ turn
    if not tagged.all():  # the rest as the ridge regression on the tagged items foretells it
        Gv = phi @ regression(C3t, F.T @ Gv, rho)
    return Gv, E @ turn


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
