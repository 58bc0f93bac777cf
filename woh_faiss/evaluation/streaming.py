"""The streaming protocol: hold queries out, stream the rest in chunks, and measure after every round.

Queries are encoded with the newest function. Database codes are the ones learned when their chunk came,
never re-encoded: that is how WOH was published. A method to which that does not apply says with `database`
what its items are ranked by: codes learned again, or encoded again by the newest function. Say which, next to
each number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk, TagLists
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.hasher import Hasher
from woh_faiss.tags.word_vectors import WordVectors
from woh_faiss.validate import positive_int, short, whole_number, whole_numbers

from .metrics import cosine, hamming, l2
from .quality import Ranking, ScoreRanking, StreamInstanceBits, map_alone, quality
from .troubles import Order, ordered, sampled_first, spoiled

Rows = NDArray[np.intp]


class Learner(Protocol):
    """What the protocol needs of a trainer.

    It may have a `name`, "woh" without, and a ``database(X, learned)``, as `baselines.base.Baseline` has it.
    """

    codes_: NDArray[np.uint8]

    def partial_fit(self, X: NDArray[Any], y: TagLists, /, *, word_vectors: WordVectors | None = None) -> Any:
        """Learn a chunk; `codes_` then holds its (n, bits // 8) packed codes."""

    def encode(self, X: NDArray[Any]) -> NDArray[np.uint8]:
        """Packed codes of X by the newest hash function."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement.

    Attributes
    ----------
    method : str
        "woh", a baseline's name, or the uncompressed search "float-l2" or "float-cosine".
    preset : str or None
        WOH's; None for all others.
    bits, instance_bits : int or None
        Learned bits of a code, and instance bits behind them; None where there are no codes.
    round : int
        Chunks streamed so far, from 1.
    map, p10, self1, self10, float_recall10 : float
        See `quality.Quality`.
    queries, database : int
        Items held out, and items streamed so far, with `learn_from` all that are not held out.
    seconds : float
        Training time of this round alone; 0 where nothing was learned.
    """

    method: str
    preset: str | None
    bits: int | None
    instance_bits: int | None
    round: int
    map: float
    p10: float
    self1: float
    self10: float
    float_recall10: float
    queries: int
    database: int
    seconds: float


def stream(
    chunk: Chunk,
    configs: Sequence[WOHConfig],
    *,
    chunks: int | Sequence[int] = 8,
    queries: int | Rows | None = None,
    seed: int = 0,
    word_vectors: WordVectors | None = None,
    make: Callable[[WOHConfig], Learner] = WOH,
    instance_bits: int = 0,
    by: Literal["both", "hamming"] = "hamming",
    expand: int = 0,
    order: Order = "random",
    first_sample: int = 0,
    wrong_tags: float = 0.0,
    untagged: float = 0.0,
    learn_from: int = 0,
    last_only: bool = False,
) -> Iterator[Result]:
    """Measure every config after every round, then the uncompressed features at the last round.

    Everything is checked before the iterator is returned.

    Parameters
    ----------
    chunk : Chunk
        The whole data set, with tags to learn from and labels to measure by.
    configs : sequence of WOHConfig
        A fresh trainer each; all see the same split.
    chunks : int, or sequence of int
        Equal parts the stream is cut into, or the items of each.
    queries : int or (nq,) array of int, optional
        Items held out, at most half of all (default: a quarter, at most 1,000). With groups, whole groups
        are held out until there are that many, so there may be a few more. Or their rows, where a set brings
        its own split: the rest then streams in its order.
    seed : int
        Decides the split and the order of the stream.
    word_vectors : WordVectors, optional
        Given to every round.
    make : callable
        The trainer of a config.
    instance_bits : int
        Bits of the features alone behind the learned ones; with them ``bits=0`` learns nothing.
    by : "both" or "hamming"
        Rank by the score of `WOHIndex.search`, which is for `WOH` only, or by the learned bits that differ.
    expand : int
        As `WOHIndex.search`, for the score.
    order : str
        Of the stream: "random", "given", "by-label" or "new-labels-late"; see `troubles.ordered`.
    first_sample : int
        Items of a random sample that is the first chunk, as `WOHIndex.build` has it; 0 for none.
    wrong_tags, untagged : float
        Shares of the streamed items that have others' tags, and none; see `troubles.spoiled`.
    learn_from : int
        Items of the rest, at random, that are streamed; 0 for all. The others, and those whose chunk is still
        to come, are in the database of every round, encoded by the newest hash function.
    last_only : bool
        Rounds before the last have their MAP alone, and NaN for the rest: most of the time goes there.

    Yields
    ------
    Result
        `chunks` for each config, in order, then one each for "float-l2" and "float-cosine".

    Raises
    ------
    InputError
        Tags or labels are missing, or there are too few items for the queries or chunks asked for; an order
        is unknown, a share not between 0 and 1, or the sample leaves too few items for the other chunks.
    """
    if order not in get_args(Order):
        raise InputError(f"order is {short(order)}, expected one of {', '.join(get_args(Order))}")
    check_data(chunk, any(config.bits for config in configs))
    held_out, rest = split(chunk, queries, seed)
    rest, never = learned_and_never(rest, learn_from, isinstance(queries, np.ndarray))
    rest = ordered(rest, np.asarray(chunk.labels), order, seed)
    if chunk.tags is not None:
        chunk = replace(chunk, tags=spoiled(chunk.tags, rest, wrong_tags, untagged, seed))
    streamed = parts(rest, chunks)
    if whole_number(first_sample, "first_sample", 0):
        sample, others = sampled_first(rest, min(first_sample, len(rest)), seed)
        streamed = [sample, *parts(others, len(streamed) - 1)] if len(streamed) > 1 else [rest]
    measure = _Measure(
        chunk, held_out, streamed, never, word_vectors, make, instance_bits, by, expand, seed, last_only
    )
    return measure.all(configs)


def check_data(chunk: Chunk, learns: bool) -> None:
    """InputError where labels to measure by are missing, or tags although something `learns` from them."""
    if chunk.labels is None:
        missing = "labels to measure by"
    elif chunk.tags is None and learns:
        missing = "tags to learn from"
    else:
        return
    raise InputError(f"the data has no {missing}; evaluation needs features, tags and labels of every item")


def parts(rest: Rows, chunks: int | Sequence[int]) -> list[Rows]:
    """The rows of each chunk of a stream; `chunks` and errors as `stream`."""
    if isinstance(chunks, Sequence):
        sizes = [positive_int(size, "chunks") for size in chunks]
        if sum(sizes) != len(rest):
            raise InputError(
                f"chunks add up to {sum(sizes)} items, expected all {len(rest)} that are streamed"
            )
        return np.split(rest, np.cumsum(sizes)[:-1])
    chunks = positive_int(chunks, "chunks")
    if chunks > len(rest):
        raise InputError(
            f"{len(rest)} items cannot be cut into {chunks} chunks; ask for fewer chunks or queries"
        )
    return np.array_split(rest, chunks)


def split(chunk: Chunk, queries: int | Rows | None, seed: int) -> tuple[Rows, Rows]:
    """Rows of the queries and, in the order of the stream, of the rest.

    Parameters
    ----------
    chunk, queries, seed
        As `stream`.

    Raises
    ------
    InputError
        As `stream`.
    """
    n = len(chunk)
    if isinstance(queries, np.ndarray):
        own = whole_numbers(queries, "queries", None)
        if not len(own) or len(np.unique(own)) < len(own) or own.min() < 0 or own.max() >= n or len(own) == n:
            raise InputError(f"queries are {len(own)} rows, expected some of {n}, each once, and not all")
        return own.astype(np.intp), np.setdiff1d(np.arange(n), own)
    wanted = max(1, min(1000, n // 4)) if queries is None else positive_int(queries, "queries")
    if wanted > n // 2:
        raise InputError(f"{wanted} queries were asked for, at most half of the {n} items can be held out")
    rng = np.random.default_rng(seed)
    if chunk.groups is None:
        order = rng.permutation(n)
        return order[:wanted], order[wanted:]
    _, group, size = np.unique(chunk.groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(size))
    count = int(np.searchsorted(np.cumsum(size[order]), wanted)) + 1
    out = np.isin(group, order[:count])
    if out.sum() > n // 2:
        raise InputError(
            f"whole groups that hold {wanted} queries are {out.sum()} of the {n} items, more than half; "
            "ask for fewer queries or give smaller groups"
        )
    return rng.permutation(np.flatnonzero(out)), rng.permutation(np.flatnonzero(~out))


def learned_and_never(rest: Rows, learn_from: int, own: bool) -> tuple[Rows, Rows]:
    """The rows that are streamed, and those that are in the database only.

    Parameters
    ----------
    rest : (n,) array of int
        In random order, unless the split is the set's `own`.
    learn_from : int
        As `stream`; one that is n or more means all.
    own : bool
        Whether the set brought its split.

    Raises
    ------
    InputError
        `learn_from` is negative, or does not go with the set's own split.
    """
    if not whole_number(learn_from, "learn_from", 0):
        return rest, rest[:0]
    if own:
        raise InputError("learn_from is given with rows of queries, expected a random split; give a number")
    return rest[:learn_from], rest[learn_from:]


@dataclass(frozen=True, eq=False)
class _Measure:
    """One split, measured: the parameters of `stream`."""

    chunk: Chunk
    held_out: Rows
    parts: list[Rows]
    never: Rows
    word_vectors: WordVectors | None
    make: Callable[[WOHConfig], Learner]
    instance_bits: int
    by: str
    expand: int
    seed: int
    last_only: bool

    def all(self, configs: Sequence[WOHConfig]) -> Iterator[Result]:
        """See `stream`."""
        for config in configs:
            yield from self._rounds(config)
        streamed = np.concatenate([*self.parts, self.never])
        X = self.chunk.features[streamed]
        for name, distance in (("float-l2", l2), ("float-cosine", cosine)):
            ranking = _against(distance, X)
            yield self._result(name, None, None, None, len(self.parts), ranking, streamed, 0.0)

    def _rounds(self, config: WOHConfig) -> Iterator[Result]:
        learner = self.make(config) if config.bits else None
        method = getattr(learner, "name", "woh")
        preset = config.preset if method == "woh" and learner is not None else None
        half, learned = (
            StreamInstanceBits(self.instance_bits, config.seed),
            np.empty((0, config.bits // 8), np.uint8),
        )
        streamed = np.empty(0, np.intp)
        for t, rows in enumerate(self.parts, start=1):
            streamed = np.concatenate([streamed, rows])
            X, start = self.chunk.features[streamed], time.perf_counter()
            if learner is not None:
                part = self.chunk.rows(rows)
                assert part.tags is not None  # noqa: S101 - `stream` has checked; this tells mypy
                learner.partial_fit(part.features, part.tags, word_vectors=self.word_vectors)
                learned = np.vstack([learned, learner.codes_])
            instance = half.codes(X)
            seconds = time.perf_counter() - start
            others = np.concatenate([*self.parts[t:], self.never]) if len(self.never) else self.never
            ranking = self._ranking(learner, half, X, learned, instance, self.chunk.features[others])
            rows = np.concatenate([streamed, others])
            yield self._result(method, preset, config.bits, self.instance_bits, t, ranking, rows, seconds)

    def _ranking(
        self,
        learner: Any,
        half: StreamInstanceBits,
        X: NDArray[Any],
        learned: NDArray[np.uint8],
        instance: NDArray[np.uint8],
        others: NDArray[Any],
    ) -> Ranking:
        """Of the items so far, X, and of others that are encoded by the newest function."""
        if self.by == "hamming":
            database = learner.database(X, learned) if hasattr(learner, "database") else learned
            database = beside_encoded(learner, database, others)
            return lambda Q: hamming(learner.encode(Q), database)
        instance = half.beside_encoded(instance, others)
        if learner is None:
            assert half.function is not None  # noqa: S101 - for mypy: a code has bits
            hasher = Hasher.of_instance(half.function)
        else:
            hasher = learner.hasher_.beside(half.function)
            learned = beside_encoded(learner, learned, others)
        return ScoreRanking(hasher, learned, instance, self.expand)

    def _result(
        self,
        method: str,
        preset: str | None,
        bits: int | None,
        instance_bits: int | None,
        round_: int,
        ranking: Ranking,
        rows: Rows,
        seconds: float,
    ) -> Result:
        X, labels = self.chunk.features, np.asarray(self.chunk.labels)
        given = ranking, X[self.held_out], X[rows], labels[self.held_out], labels[rows]
        brief = self.last_only and round_ < len(self.parts)
        measured = map_alone(*given) if brief else quality(*given, self.seed)
        return Result(
            method, preset, bits, instance_bits, round_, *measured, len(self.held_out), len(rows), seconds
        )


def beside_encoded(learner: Any, database: NDArray[np.uint8], X: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes of the items so far, then those of items X that were not learned from, by the newest function."""
    return np.vstack([database, learner.encode(X)]) if len(X) else database


def _against(distance: Callable[[Any, Any], Any], X: NDArray[Any]) -> Ranking:
    return lambda Q: distance(Q, X)
