"""What a ranking is worth: MAP and precision by labels, and whether an item finds itself and its neighbours.

MAP alone is blind: it was excellent while an item of the index did not find itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import score
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.instance import ENOUGH, InstanceMap, packed_signs, sample, unit_single

from .metrics import CELLS, ROWS, average_precision, cosine, query_blocks

Array = NDArray[Any]
#: From features (q, d) to their distances to every item of a database (q, n): smaller is nearer.
Ranking = Callable[[Array], Array]

#: Items of the database that are asked for by their own features, at most.
OWN = 1000
#: Answers that a person looks at.
_FIRST = 10


class Quality(NamedTuple):
    """Means over queries, 0 to 1; at equal distances the smaller position is first.

    Attributes
    ----------
    map : float
        Mean average precision of the whole ranking by labels, as `metrics.mean_average_precision` has it.
    p10 : float
        Share of relevant items among the first ten.
    self1, self10 : float
        Share of the database's items, or of `OWN` of them, that are the first answer to their own features,
        or among the first ten.
    float_recall10 : float
        Share of the ten nearest by float cosine that are among the first ten answers.
    """

    map: float
    p10: float
    self1: float
    self10: float
    float_recall10: float


def quality(ranking: Ranking, Xq: Array, X: Array, Lq: Array, L: Array, seed: int) -> Quality:
    """Measure a ranking of the database X (n, d) with labels L (n, l) for queries Xq (q, d) with labels Lq.

    Parameters
    ----------
    ranking : callable
        Of X.
    Xq, X, Lq, L : arrays
        Features and 0/1 labels.
    seed : int
        Draws the items that are asked for by their own features.
    """
    ap, relevant10, recall = [], [], []
    k = min(_FIRST, len(X))
    start = 0
    for D, relevant in query_blocks(Xq, X, Lq, L, lambda Q, _: ranking(Q)):
        ap.append(average_precision(D, relevant))
        first = np.argsort(D, axis=1, kind="stable")[:, :k]
        relevant10.append(np.take_along_axis(relevant, first, axis=1).mean(axis=1))
        near = np.argsort(cosine(Xq[start : start + len(D)], X), axis=1, kind="stable")[:, :k]
        recall.append((first[:, :, None] == near[:, None, :]).any(axis=2).mean(axis=1))
        start += len(D)
    ranks = own_ranks(ranking, X, seed)
    return Quality(
        float(np.nan_to_num(np.concatenate(ap)).mean()),
        float(np.concatenate(relevant10).mean()),
        float((ranks < 1).mean()),
        float((ranks < _FIRST).mean()),
        float(np.concatenate(recall).mean()),
    )


def map_alone(ranking: Ranking, Xq: Array, X: Array, Lq: Array, L: Array) -> Quality:
    """As `quality`, the MAP only; all else is NaN."""
    blocks = query_blocks(Xq, X, Lq, L, lambda Q, _: ranking(Q))
    ap = np.concatenate([average_precision(D, relevant) for D, relevant in blocks])
    nan = float("nan")
    return Quality(float(np.nan_to_num(ap).mean()), nan, nan, nan, nan)


def own_ranks(ranking: Ranking, X: Array, seed: int) -> NDArray[np.int64]:
    """Rank, from 0, of items of X (n, d) among the answers to their own features, for up to `OWN` of them."""
    n = len(X)
    rng = np.random.default_rng((seed, n))
    own = np.arange(n) if n <= OWN else np.sort(rng.choice(n, OWN, replace=False))
    ranks = []
    for rows in np.array_split(own, max(1, -(-len(own) * n // CELLS))):
        D = ranking(X[rows])
        mine = np.take_along_axis(D, rows[:, None], axis=1)
        before = np.arange(n) < rows[:, None]
        ranks.append(((mine > D) | ((mine == D) & before)).sum(axis=1))
    return np.concatenate(ranks)


@dataclass(frozen=True, eq=False)
class ScoreRanking:
    """The ranking by score, as an index searches: minus the scores of all items, equal to the bit.

    Attributes
    ----------
    hasher : Hasher
    learned : (n, r // 8) uint8
    instance : (n, s // 8) uint8
        One may have no columns.
    expand : int
    """

    hasher: Hasher
    learned: NDArray[np.uint8]
    instance: NDArray[np.uint8]
    expand: int

    def __call__(self, Q: Array) -> NDArray[np.float32]:
        """(q, d) to (q, n)."""
        out = np.empty((len(Q), max(len(self.learned), len(self.instance))), np.float32)  # one may be empty
        # the tables of a query are 256 numbers a byte
        step = max(1, CELLS // (256 * (self.learned.shape[1] + self.instance.shape[1])))
        for start in range(0, len(Q), step):
            out[start : start + step] = -self._scores(Q[start : start + step])
        return out

    def _scores(self, Q: Array) -> NDArray[np.float32]:
        h, a = self.hasher.halves(Q)
        same = None if a is None else score.sums_of_all(score.tables(a), self.instance)
        S = score.combined(None if h is None else self._kind(h), same)
        if self.expand and h is not None:
            first = np.argsort(-S, axis=1, kind="stable")[:, : self.expand]
            S = score.combined(self._kind(score.expanded(h, self.learned[first])), same)
        return S

    def _kind(self, h: NDArray[np.float32]) -> NDArray[np.float32]:
        return score.sums_of_all(score.tables(h), self.learned)


class StreamInstanceBits:
    """The instance bits of a stream, learned as an index learns them.

    Parameters
    ----------
    bits, seed : int
        s; decides every random draw.
    """

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self.seed = bits, seed
        self.function: InstanceMap | None = None
        self._packed = np.empty((0, bits // 8), np.uint8)

    def codes(self, X: Array) -> NDArray[np.uint8]:
        """Bits (n, s // 8) of the items so far, X (n, d), those of a round more at each call."""
        n = len(X)
        if not self.bits:
            return np.empty((n, 0), np.uint8)
        if self.function is None or (not self.function.final and n >= ENOUGH):
            self.function = InstanceMap.fit(unit_single(X[sample(n, self.seed)]), self.bits, self.seed, n)
            self._packed = self._packed[:0]
        new = range(len(self._packed), n, ROWS)
        parts = [packed_signs(X[start : start + ROWS], self.function) for start in new]
        self._packed = np.concatenate([self._packed, *parts])
        return self._packed

    def beside_encoded(self, instance: NDArray[np.uint8], X: Array) -> NDArray[np.uint8]:
        """Bits of the items so far, then those of other items X, by the newest function."""
        if not self.bits or not len(X):
            return instance if self.bits else np.empty((len(instance) + len(X), 0), np.uint8)
        assert self.function is not None  # noqa: S101 - `codes` comes first; this tells mypy
        starts = range(0, len(X), ROWS)
        parts = [packed_signs(X[start : start + ROWS], self.function) for start in starts]
        return np.concatenate([instance, *parts])
