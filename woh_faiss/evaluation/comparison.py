"""Learned codes beside uncompressed search and Faiss's quantisers of equal bytes, on one split of data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.hasher import Hasher
from woh_faiss.tags.word_vectors import WordVectors
from woh_faiss.validate import whole_number

from .baselines.faiss_yardsticks import CODEWORDS, FACTORS, ranker
from .metrics import CELLS, average_precision, cosine, dcg, ideal_dcg
from .quality import Ranking, ScoreRanking, StreamInstanceBits, own_ranks
from .relevance import Relevance
from .streaming import split

Array = NDArray[Any]
#: Answers that a person looks at.
FIRST = 10
#: Queries whose place a query's answers take, for chance.
OTHERS = 8
#: Items of a round, as `WOHIndex.build` has them.
ROUND = 2000
#: Names of methods.
FLOAT, LEARNED, INSTANCE = "float", "woh", "woh-instance"
#: Faiss's quantisers: name here and in `faiss_yardsticks`.
QUANTISERS = {"itq": "faiss-itq", "pq": "faiss-pq", "rabitq": "faiss-rabitq"}


class Method(NamedTuple):
    """A way to search.

    Attributes
    ----------
    name : str
        "float" (cosine of the features), "woh" (learned and instance bits), "woh-instance" (instance bits
        alone, ``--bits 0``), "itq", "pq" or "rabitq" (Faiss's).
    n_bytes : int
        Bytes an item.
    bits, instance_bits : int or None
        Of "woh" and "woh-instance".
    """

    name: str
    n_bytes: int
    bits: int | None = None
    instance_bits: int | None = None


class Trial:
    """One split of some data: what all methods rank and are asked.

    Parameters
    ----------
    chunk : Chunk
        All items.
    queries : int, optional
        Items held out, as `streaming.stream` holds them out.
    sample : int, optional
        Take a random sample of so many items only.
    seed : int
        Decides every random draw.

    Attributes
    ----------
    chunk : Chunk
        The items, or the sample.
    held_out, rest : (q,) and (n,) int
        Rows of queries and of the database.
    near : (q, `FIRST`) int
        Places in the database of the nearest by float cosine.

    Raises
    ------
    InputError
        There are too few items for the queries, or fewer than a codebook of PQ needs beside them.
    """

    def __init__(
        self, chunk: Chunk, *, queries: int | None = None, sample: int | None = None, seed: int = 0
    ) -> None:
        self.seed = whole_number(seed, "seed", 0)
        if sample is not None and whole_number(sample, "sample", 1) < len(chunk):
            rows = np.random.default_rng((seed, len(chunk))).choice(len(chunk), sample, replace=False)
            chunk = chunk.rows(np.sort(rows))
        self.chunk = chunk
        self.held_out, self.rest = split(chunk, queries, seed)
        if len(self.rest) < CODEWORDS:
            raise InputError(
                f"{len(self.rest)} items are left beside {len(self.held_out)} queries, expected at least "
                f"{CODEWORDS} to compare indexes on; give more items"
            )
        self.Xq = np.asarray(chunk.features[self.held_out])
        self.X = np.asarray(chunk.features[self.rest])
        self.near = np.concatenate(
            [_first(cosine(self.Xq[rows], self.X)) for rows in blocks(len(self.Xq), len(self.X))]
        )


@dataclass(frozen=True, eq=False)
class Measured:
    """What one method is worth, query by query.

    Attributes
    ----------
    method : Method
    ndcg : (q,) float
        Normalised discounted cumulative gain of the first ten answers; NaN for a query to which nothing is
        relevant.
    chance : (q,) float
        The same, had the answers to this query come to others, a mean of `OTHERS`: what is due to items that
        are relevant to many.
    p10, ap : (q,) float
        Share of relevant items among the first ten, average precision of the whole ranking; NaN as `ndcg`.
    recall : (q,) float
        Share of the ten nearest by float cosine among the first ten answers.
    self1, self10 : float
        As `quality.Quality`.
    first : (q, `FIRST`) int
        Places in the database of the first answers.
    seconds : float
        To learn and encode.
    """

    method: Method
    ndcg: Array
    chance: Array
    p10: Array
    ap: Array
    recall: Array
    self1: float
    self10: float
    first: Array
    seconds: float

    def means(self) -> dict[str, float | None]:
        """Means over queries, 0 to 1; None where no query has anything relevant to it."""
        told = ("ndcg", "chance", "p10", "ap", "recall")
        found = {name: getattr(self, name) for name in told}
        means = {
            name: None if np.isnan(each).all() else float(np.nanmean(each)) for name, each in found.items()
        }
        return means | {"self1": self.self1, "self10": self.self10}


def methods(d: int, codes: Sequence[tuple[int, int]]) -> list[Method]:
    """The methods that are compared: float, then per code length learned codes and what is equally long.

    Parameters
    ----------
    d : int
        Numbers of a feature.
    codes : sequence of (int, int)
        Learned and instance bits of each code length; of equal lengths the first counts.

    Raises
    ------
    InputError
        No length is shorter than the features as float32.
    """
    lengths = {(r + s) // 8: (r, s) for r, s in reversed(codes)}
    kept = sorted(n for n in lengths if n < 4 * d)
    if not kept:
        raise InputError(
            f"features of {d} numbers take {4 * d} bytes an item, the shortest code {min(lengths)}; "
            "give shorter codes, or search the features themselves"
        )
    found = [Method(FLOAT, 4 * d)]
    for n in kept:
        found += [Method(LEARNED, n, *lengths[n]), Method(INSTANCE, n, 0, 8 * n)]
        found += [Method(name, n) for name in QUANTISERS if name != "rabitq" or n > FACTORS]
    return found


def ranking(
    method: Method,
    trial: Trial,
    *,
    preset: str = "adaptive",
    word_vectors: WordVectors | None = None,
    expand: int = 3,
) -> Ranking:
    """The ranking of a trial's database by one method, learned from that database alone.

    Parameters
    ----------
    method : Method
        One of `methods`.
    trial : Trial
    preset, word_vectors, expand
        Of learned codes, as `WOHIndex.build` and `WOHIndex.search` take them.
    """
    X = trial.X
    if method.name == FLOAT:
        return lambda Q: cosine(Q, X)
    if method.name in QUANTISERS:
        of = ranker(QUANTISERS[method.name], X, method.n_bytes)
        return lambda Q: of(Q, X)
    half = StreamInstanceBits(method.instance_bits or 0, trial.seed)
    instance = half.codes(X)
    if not method.bits:
        assert half.function is not None  # noqa: S101 - for mypy: a code has bits
        return ScoreRanking(Hasher.of_instance(half.function), np.empty((0, 0), np.uint8), instance, expand)
    woh, learned = WOH(WOHConfig(bits=method.bits, preset=preset, seed=trial.seed)), []
    for start in range(0, len(X), ROUND):  # rows are in random order: the first ones are a sample
        part = trial.chunk.rows(trial.rest[start : start + ROUND])
        woh.partial_fit(part.features, part.tags, word_vectors=word_vectors)
        learned.append(woh.codes_)
    return ScoreRanking(woh.hasher_.beside(half.function), np.vstack(learned), instance, expand)


def measure(
    method: Method, ranked: Ranking, trial: Trial, relevance: Relevance, seconds: float = 0.0
) -> Measured:
    """What a ranking of a trial's database is worth by tags or labels."""
    q, n = len(trial.Xq), len(trial.X)
    known = relevance.known
    parts: list[tuple[Array, ...]] = []
    for rows in blocks(q, n):
        D = ranked(trial.Xq[rows])
        first = _first(D)
        gains = relevance.gains(rows)
        relevant = gains > 0
        p10 = np.take_along_axis(relevant, first, axis=1).mean(axis=1)
        recall = (first[:, :, None] == trial.near[rows][:, None, :]).any(axis=2).mean(axis=1)
        ideal = ideal_dcg(gains, first.shape[1])
        found = dcg(np.take_along_axis(gains, first, axis=1))
        parts.append((found, ideal, p10, average_precision(D, relevant), recall, first))
    found, ideal, p10, ap, recall, first = (np.concatenate(each) for each in zip(*parts, strict=True))
    ndcg10, chance = np.full(q, np.nan), np.full(q, np.nan)
    ndcg10[known] = found[known] / ideal[known]
    p10[~known] = np.nan
    chance[known] = _chance(first[known], ideal[known], np.flatnonzero(known), relevance)
    ranks = own_ranks(ranked, trial.X, trial.seed)
    return Measured(
        method=method,
        ndcg=ndcg10,
        chance=chance,
        p10=p10,
        ap=ap,
        recall=recall,
        self1=float((ranks < 1).mean()),
        self10=float((ranks < FIRST).mean()),
        first=first,
        seconds=seconds,
    )


def _chance(first: Array, ideal: Array, rows: Array, relevance: Relevance) -> NDArray[np.float64]:
    """See `Measured.chance`: of the first answers to the queries in `rows`."""
    shifts = range(1, min(OTHERS, len(rows) - 1) + 1)
    each = [dcg(relevance.gains_at(np.roll(rows, shift), first)) / np.roll(ideal, shift) for shift in shifts]
    return np.mean(each, axis=0) if each else np.full(len(rows), np.nan)


def compare(
    trial: Trial,
    relevance: Relevance,
    codes: Sequence[tuple[int, int]],
    *,
    preset: str = "adaptive",
    word_vectors: WordVectors | None = None,
    expand: int = 3,
) -> Iterator[Measured]:
    """Every method of `methods`, measured.

    Parameters
    ----------
    trial : Trial
    relevance : Relevance
        Of its rows.
    codes
        As `methods`.
    preset, word_vectors, expand
        As `ranking`.

    Raises
    ------
    InputError
        As `methods`, or nothing can be learned from the tags.
    """
    for method in methods(trial.X.shape[1], codes):
        start = time.perf_counter()
        ranked = ranking(method, trial, preset=preset, word_vectors=word_vectors, expand=expand)
        yield measure(method, ranked, trial, relevance, time.perf_counter() - start)


def blocks(q: int, n: int) -> list[slice]:
    """Queries a few at a time, so that memory does not grow with their number."""
    step = max(1, CELLS // max(1, n))
    return [slice(start, start + step) for start in range(0, q, step)]


def _first(D: Array) -> NDArray[np.intp]:
    """Places of the `FIRST` smallest of each row, ties by place."""
    return np.argsort(D, axis=1, kind="stable")[:, :FIRST]
