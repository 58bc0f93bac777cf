"""Whether learned codes pay on some data, in words: a rule over what `comparison` measured.

One method is better than another if its nDCG@10 is higher by `MARGIN` of the other's or more, and the 95 %
bootstrap interval of the difference, paired by query, is above 0.

1. tags must say something about features: nDCG@10 of float search, or of the longest learned codes, must be
   `LEAST_LIFT` above what the answers to another query reach, and the interval of that above 0;
2. a code length is good enough if learned codes are better by nDCG@10 than each other method of the same
   bytes, and float search is not better than they are; the shortest such length is the verdict;
3. if there is none, but learned codes are better than the others at some length, the longest such is the
   verdict, with what it loses beside float search;
4. else another index is: the shortest that float search is not better than, and of that length the one that
   finds most of float's neighbours; where there is none the one of the highest nDCG@10;
5. without 1, the shortest index that finds `GOOD_RECALL` of float's ten nearest, or that which finds most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError

from .comparison import FLOAT, INSTANCE, LEARNED, Measured, Method

#: The least difference of nDCG@10 that counts, as a share: more than codes learned with another seed differ.
MARGIN = 0.02
#: What nDCG@10 must be above chance for tags to say anything about features.
LEAST_LIFT = 0.01
#: Resamplings of the queries, and the share of them that an interval holds.
DRAWS, SHARE = 1000, 0.95
#: Queries to which something must be relevant before tags are asked at all.
ENOUGH_QUERIES = 50
#: Share of float's ten nearest that is nearly all of them.
GOOD_RECALL = 0.8
#: An item that is less often than this among the first ten answers to its own features is worth a word.
GOOD_SELF = 0.95
#: Names of methods in sentences.
NAMES = {
    FLOAT: "float search",
    LEARNED: "learned codes",
    INSTANCE: "codes without tags (--bits 0)",
    "itq": "ITQ",
    "pq": "PQ",
    "rabitq": "RaBitQ",
}

Choice = Literal["learned codes", "another index", "features alone"]


class Interval(NamedTuple):
    """A mean and the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What to index some data with.

    Attributes
    ----------
    choice : str
        "learned codes"; "another index" although tags say something about features; or "features alone",
        where tags say nothing about them.
    method : Method
        The method, with its code length.
    beside : Method
        What it is compared with: the best other index of the same bytes, or learned codes.
    difference, lift : Interval
        nDCG@10 of `method` less that of `beside`; and, of the better of float search and the longest learned
        codes, what is above chance. NaN where nothing is relevant to any query.
    headline : str
        The verdict in one sentence.
    reasons : tuple of str
        The numbers that it rests on, a sentence each.
    """

    choice: Choice
    method: Method
    beside: Method
    difference: Interval
    lift: Interval
    headline: str
    reasons: tuple[str, ...]


class Bootstrap:
    """Resamplings of q queries, the same for every difference.

    Parameters
    ----------
    q, seed : int
        Queries; decides the draws.
    """

    def __init__(self, q: int, seed: int) -> None:
        self._weights = np.random.default_rng((seed, q)).multinomial(q, np.full(q, 1 / q), DRAWS) / q

    def interval(self, values: NDArray[np.float64]) -> Interval:
        """Of the mean of (q,) values, one a query."""
        ends = np.quantile(self._weights @ values, [(1 - SHARE) / 2, (1 + SHARE) / 2])
        return Interval(float(values.mean()), float(ends[0]), float(ends[1]))


def verdict(measured: Sequence[Measured], seed: int = 0) -> Verdict:
    """The verdict over all methods of a comparison.

    Parameters
    ----------
    measured : sequence of Measured
        All that `comparison.compare` yields, in its order.
    seed : int
        Decides the resamplings.

    Raises
    ------
    InputError
        Float search, or learned codes, are not among them.
    """
    names = {m.method.name for m in measured}
    if not {FLOAT, LEARNED} <= names:
        raise InputError(
            f"the verdict was given {', '.join(sorted(names)) or 'nothing'}; give all that compare yields"
        )
    return _Rule(measured, seed).verdict()


class _Rule:
    def __init__(self, measured: Sequence[Measured], seed: int) -> None:
        self.float = next(m for m in measured if m.method.name == FLOAT)
        self.learned = sorted((m for m in measured if m.method.name == LEARNED), key=_length)
        self.others = [m for m in measured if m.method.name not in (FLOAT, LEARNED)]
        self.known = ~np.isnan(self.float.ndcg)
        self.boot = Bootstrap(int(self.known.sum()), seed) if self.known.any() else None

    def verdict(self) -> Verdict:
        lift = max((self._lift(m) for m in (self.float, self.learned[-1])), key=lambda each: each.mean)
        if self.known.sum() < ENOUGH_QUERIES or not _above(lift, LEAST_LIFT):
            return self._features_alone(lift)
        ahead = [m for m in self.learned if all(self._better(m, other) for other in self._beside(m))]
        enough = [m for m in ahead if not self._better(self.float, m)]
        if ahead:
            return self._learned(enough[0] if enough else ahead[-1], lift, bool(enough))
        return self._another(lift)

    def _learned(self, chosen: Measured, lift: Interval, enough: bool) -> Verdict:
        rival = max(self._beside(chosen), key=_mean_ndcg)
        size = _bytes(chosen.method)
        headline = (
            f"Learned codes pay: {size} an item are {'enough' if enough else 'the best of their length'}."
        )
        reasons = [
            f"They find what shares tags better than {_named(rival.method)}, the best other index of as many "
            f"bytes: {self._difference(chosen, rival)}."
        ]
        if enough:
            reasons.append(
                f"Uncompressed search, {_bytes(self.float.method)} an item, is not better: "
                f"{self._difference(chosen, self.float)}."
            )
        else:
            reasons.append(
                f"No length measured reaches uncompressed search, {_bytes(self.float.method)} an item: "
                f"{self._difference(chosen, self.float)}."
            )
        if longer := self._longer(chosen):
            told = ", ".join(f"{_mean_ndcg(m):.3f} with {_bytes(m.method)}" for m in longer)
            reasons.append(f"Longer codes find still more: {told}.")
        reasons += self._own(chosen)
        nearest = max(self._beside(chosen), key=_mean_recall)
        reasons.append(
            f"Of float's ten nearest they find {_mean_recall(chosen):.2f}, for they follow tags. Where those "
            f"very neighbours are wanted, take {_named(nearest.method)} of as many bytes: "
            f"{_mean_recall(nearest):.2f}."
        )
        return self._made("learned codes", chosen, rival, lift, headline, reasons)

    def _another(self, lift: Interval) -> Verdict:
        good = [m for m in self.others if not self._better(self.float, m)]
        shortest = min(map(_length, good), default=0)
        chosen = (
            max((m for m in good if _length(m) == shortest), key=_mean_recall)
            if good
            else max(self.others, key=lambda m: (_mean_ndcg(m), -_length(m)))
        )
        own = next(m for m in self.learned if _length(m) == _length(chosen))
        size = _bytes(chosen.method)
        headline = f"Learned codes do not pay: {_named(chosen.method)}, {size} an item, is the better choice."
        reasons = [
            f"At no length measured do learned codes find what shares tags better than every other index of "
            f"as many bytes; at {size} against {_named(chosen.method)}: {self._difference(own, chosen)}.",
            f"{_named(chosen.method)} beside uncompressed search, {_bytes(self.float.method)} an item: "
            f"{self._difference(chosen, self.float)}.",
            f"Of float's ten nearest it finds {_mean_recall(chosen):.2f}, learned codes of as many bytes "
            f"{_mean_recall(own):.2f}.",
            *self._own(chosen),
        ]
        return self._made("another index", chosen, own, lift, headline, reasons)

    def _features_alone(self, lift: Interval) -> Verdict:
        good = [m for m in self.others if _mean_recall(m) >= GOOD_RECALL]
        shortest = min(map(_length, good), default=0)
        candidates = [m for m in good if _length(m) == shortest] or self.others
        chosen = max(candidates, key=lambda m: (_mean_recall(m), -_length(m)))
        own = next(m for m in self.learned if _length(m) == _length(chosen))
        size, known = _bytes(chosen.method), int(self.known.sum())
        if known < ENOUGH_QUERIES:
            headline = "Tags cannot be judged"
            why = (
                f"Only {known} of {len(self.known)} queries share an informative tag with any item, expected "
                f"{ENOUGH_QUERIES}; more items or tags may change the verdict."
            )
        else:
            headline = "Tags say nothing about these features"
            why = (
                f"Above the answers to another query, nDCG@10 by tags is {_signed(lift)}; it would have to "
                f"be {LEAST_LIFT:.2f} or more."
            )
        headline += (
            f", so learned codes do not pay: {_named(chosen.method)}, {size} an item, is the better choice."
        )
        reasons = [
            why,
            f"{_named(chosen.method)} finds {_mean_recall(chosen):.2f} of float's ten nearest, learned codes "
            f"of as many bytes {_mean_recall(own):.2f}.",
            *self._own(chosen),
        ]
        if not good:
            reasons.insert(2, f"No index measured finds {GOOD_RECALL:.2f} of them; it finds most.")
        return self._made("features alone", chosen, own, lift, headline, reasons)

    def _made(
        self,
        choice: Choice,
        chosen: Measured,
        beside: Measured,
        lift: Interval,
        headline: str,
        reasons: Sequence[str],
    ) -> Verdict:
        difference = self._less(chosen.ndcg, beside.ndcg)
        return Verdict(choice, chosen.method, beside.method, difference, lift, headline, tuple(reasons))

    def _longer(self, chosen: Measured) -> list[Measured]:
        """Longer learned codes, each better than the one before it here."""
        kept = [chosen]
        kept += [m for m in self.learned if _length(m) > _length(chosen) and self._better(m, chosen)]
        return [m for before, m in pairwise(kept) if self._better(m, before)]

    def _own(self, chosen: Measured) -> list[str]:
        """What a person should know of an index that does not find an item by its own features."""
        if chosen.self10 >= GOOD_SELF:
            return [
                f"An item is the first answer to its own features in {chosen.self1:.2f} of the cases, among "
                f"the first ten in {chosen.self10:.2f}."
            ]
        return [
            f"Careful: an item is among the first ten answers to its own features in {chosen.self10:.2f} of "
            f"the cases only (float search: {self.float.self10:.2f})."
        ]

    def _beside(self, of: Measured) -> list[Measured]:
        return [m for m in self.others if _length(m) == _length(of)]

    def _better(self, a: Measured, b: Measured) -> bool:
        return _above(self._less(a.ndcg, b.ndcg), MARGIN * _mean_ndcg(b))

    def _lift(self, m: Measured) -> Interval:
        return self._less(m.ndcg, m.chance)

    def _less(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Interval:
        if self.boot is None:
            return Interval(np.nan, np.nan, np.nan)
        return self.boot.interval(a[self.known] - b[self.known])

    def _difference(self, a: Measured, b: Measured) -> str:
        return (
            f"nDCG@10 {_mean_ndcg(a):.3f} against {_mean_ndcg(b):.3f}, {_signed(self._less(a.ndcg, b.ndcg))}"
        )


def _above(difference: Interval, least: float) -> bool:
    return difference.mean >= least and difference.low > 0


def _length(m: Measured) -> int:
    return m.method.n_bytes


def _mean_ndcg(m: Measured) -> float:
    return float(np.nanmean(m.ndcg))


def _mean_recall(m: Measured) -> float:
    return float(m.recall.mean())


def _named(method: Method) -> str:
    return NAMES[method.name]


def _bytes(method: Method) -> str:
    """``8 bytes (--bits 32 --instance-bits 32)``."""
    n = f"{method.n_bytes:,} bytes"
    if method.bits is None:
        return n
    return f"{n} (--bits {method.bits} --instance-bits {method.instance_bits})"


def _signed(difference: Interval) -> str:
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
