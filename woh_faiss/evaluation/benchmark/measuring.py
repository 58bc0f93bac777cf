"""Measures one cell: MAP after every round, and at the end precision and recall of the first hits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes, score
from woh_faiss.evaluation.baselines.faiss_yardsticks import MAKERS, ranker
from woh_faiss.evaluation.datasets import cut
from woh_faiss.evaluation.metrics import Distance, cosine, hamming, l2, query_blocks
from woh_faiss.evaluation.quality import Quality, ScoreRanking, StreamInstanceBits, quality
from woh_faiss.evaluation.streaming import (
    beside_encoded,
    check_data,
    learned_and_never,
    parts,
    split,
    stream,
)
from woh_faiss.inputs.chunk import Chunk, TagLists
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.solver import regression, squared_lengths
from woh_faiss.tags.word_vectors import WordVectors

from .cells import LEARNERS, OWN, TWIN, Cell, Setting

#: Hits at which precision and recall are taken.
FIRST = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class _Recording:
    """A learner that remembers the codes it gave."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.learned: list[NDArray[np.uint8]] = []
        self.encode = learner.encode
        self.name = getattr(learner, "name", "woh")

    def partial_fit(self, X: Any, tags: TagLists, *, word_vectors: WordVectors | None = None) -> None:
        self.learner.partial_fit(X, tags, word_vectors=word_vectors)
        self.codes_ = self.learner.codes_
        self.learned.append(self.codes_)

    @property
    def hasher_(self) -> Any:
        """Of WOH."""
        return self.learner.hasher_

    def database(self, X: Any, learned: NDArray[np.uint8]) -> NDArray[np.uint8]:
        told = getattr(self.learner, "database", None)
        return learned if told is None else np.asarray(told(X, learned))


def check_cells(chunk: Chunk, planned: Iterable[Cell]) -> None:
    """InputError where the items lack the labels or tags that these cells need."""
    check_data(chunk, any(_learns(cell) for cell in planned))


def _learns(cell: Cell) -> bool:
    return cell.method in OWN or cell.method in LEARNERS or cell.method == TWIN


def measure(chunk: Chunk, cell: Cell, setting: Setting, vectors: WordVectors | None = None) -> dict[str, Any]:
    """Measure one cell.

    Parameters
    ----------
    chunk : Chunk
        All items, with tags and labels.
    cell : Cell
        Method, code length and split.
    setting : Setting
        Chunks, queries and the like, which all cells share.
    vectors : WordVectors, optional
        Vectors of the tags' words.

    Returns
    -------
    dict
        ``rounds``: `round`, `map` and `seconds` (training alone) of each, or of the last where nothing is
        learned; ``database`` and ``queries``, their sizes; ``bytes`` an item; ``distinct``, the share of
        codes that are; ``first``, ``precision``, ``recall``: hits, and means over queries after so many;
        ``quality``: `quality.Quality` after the last round; ``objective`` of "woh-paper" after each outer
        iteration on the first chunk.

    Raises
    ------
    InputError
        As `streaming.stream`.
    """
    check_cells(chunk, [cell])
    held_out, rest = split(chunk, np.arange(setting.own) if setting.own else setting.queries, cell.seed)
    streamed, _ = learned_and_never(rest, setting.learned, bool(setting.own))
    chunks = cut(len(streamed), setting.size) if setting.size else setting.chunks
    n_rounds = len(chunks) if isinstance(chunks, list) else chunks
    labels = np.asarray(chunk.labels)
    asked, held = labels[held_out], labels[rest]
    X, everything = chunk.features[held_out], chunk.features[rest]
    distinct, distance, falling = None, cast(Distance, hamming), None
    if _learns(cell):
        own = {"preset": OWN[cell.method], **cell.hyper} if cell.method in OWN else {}
        twin = cell.method == TWIN
        assert cell.bits is not None  # noqa: S101 - tells mypy: `cells` gives them lengths
        instance_bits = cell.bits // 16 * 8 if twin else 0
        config = WOHConfig.from_dict(
            {"bits": cell.bits - instance_bits, "seed": cell.seed, "min_count": setting.min_count, **own}
        )
        made: list[_Recording] = []

        def make(config: WOHConfig) -> _Recording:
            learner = WOH(config) if cell.method in OWN or twin else LEARNERS[cell.method].of(config)
            made.append(_Recording(learner))
            return made[-1]

        results = stream(
            chunk, [config], chunks=chunks, queries=held_out if setting.own else setting.queries,
            seed=cell.seed, word_vectors=vectors, make=make, instance_bits=instance_bits,
            by="both" if twin else "hamming", expand=score.EXPAND if twin else 0, learn_from=setting.learned,
            last_only=True,
        )  # fmt: skip
        found = list(islice(results, n_rounds))
        rounds = [{"round": it.round, "map": it.map, "seconds": it.seconds} for it in found]
        measured = {name: getattr(found[-1], name) for name in Quality._fields}
        n = len(streamed)
        packed = made[0].database(everything[:n], np.vstack(made[0].learned))
        packed = beside_encoded(made[0], packed, everything[n:])
        distinct = len(np.unique(packed, axis=0)) / len(packed)
        if cell.method == "woh-paper" and not cell.hyper:
            falling = by_iteration(chunk.rows(parts(streamed, chunks)[0]), config, vectors)
        queries, database = made[0].encode(X), packed
        n_bytes = cell.bits // 8
        if twin:
            half, end = StreamInstanceBits(instance_bits, config.seed), 0
            for rows in parts(streamed, chunks):  # frozen when it was in the stream
                end += len(rows)
                instance = half.codes(everything[:end])
            instance = half.beside_encoded(instance, everything[n:])
            ranking = ScoreRanking(made[0].hasher_.beside(half.function), packed, instance, score.EXPAND)
            queries, database, distance = X, everything, lambda Q, _: ranking(Q)
    else:
        queries, database = X, everything
        distance, n_bytes = _fixed(cell, everything)
        result = quality(lambda Q: distance(Q, database), X, everything, asked, held, cell.seed)
        measured = result._asdict()
        rounds = [{"round": n_rounds, "map": result.map, "seconds": 0.0}]
    precision, recall = _curves(queries, database, asked, held, distance)
    return {
        "rounds": rounds,
        "queries": len(held_out),
        "database": len(rest),
        "bytes": n_bytes,
        "distinct": distinct,
        "first": [n for n in FIRST if n <= len(rest)],
        "precision": precision,
        "recall": recall,
        "objective": falling,
        "quality": measured,
    }


def _fixed(cell: Cell, X: NDArray[Any]) -> tuple[Distance, int]:
    """The distance of a method that learns no stream, and its bytes an item."""
    if cell.method in MAKERS:
        assert cell.bits is not None  # noqa: S101 - tells mypy: `cells` gives them lengths
        return ranker(cell.method, X, cell.bits // 8), cell.bits // 8
    return {"float-l2": l2, "float-cosine": cosine}[cell.method], X.shape[1] * X.dtype.itemsize


def _curves(
    queries: NDArray[Any],
    database: NDArray[Any],
    asked: NDArray[Any],
    held: NDArray[Any],
    distance: Distance,
) -> tuple[list[float], list[float]]:
    """Mean precision and recall after each of the first hits; a query without any has recall 0."""
    at = np.array([n for n in FIRST if n <= len(database)])
    precision, recall = np.zeros(len(at)), np.zeros(len(at))
    for D, relevant in query_blocks(queries, database, asked, held, distance):
        hits = np.take_along_axis(relevant, np.argsort(D, axis=1, kind="stable"), axis=1)
        found = hits.cumsum(axis=1)[:, at - 1]
        precision += (found / at).sum(axis=0)
        recall += (found / np.maximum(hits.sum(axis=1), 1)[:, None]).sum(axis=0)
    n = len(queries)
    return (precision / n).tolist(), (recall / n).tolist()


Matrix = NDArray[np.float64]


def objective(config: WOHConfig, phi: Matrix, Y: Any, Z: Matrix, B: Matrix, W: Matrix, P: Matrix) -> float:
    """Eq. 4 of codes B; U and V are solved for B, as the next iteration would (Eq. 6, 9).

    Parameters
    ----------
    config : WOHConfig
        The weights of the blocks.
    phi : (n, m) array
        Kernel features.
    Y : (n, c) CSR matrix
        Tags, 0 and 1.
    Z : (n, f) array
        Word-vector means.
    B : (n, r) array
        Codes, ±1.
    W, P : (r, c) and (m, r) arrays
        Those of the round.
    """
    alpha, beta, theta, mu = config.alpha, config.beta, config.theta, config.mu
    residual = squared_lengths(Y) - 2 * np.einsum("ij,ij->i", B, Y @ W.T)
    residual += np.einsum("ij,ij->i", B @ (W @ W.T), B)
    residual = np.maximum(residual, 0)
    value = (np.sqrt(residual) if config.weighted else residual).sum() + alpha * np.square(W).sum()
    for weight, target in ((beta, phi), (theta, Z)):
        if weight:
            M = regression(B.T @ B, B.T @ target, alpha / weight)
            value += weight * np.square(target - B @ M).sum() + alpha * np.square(M).sum()
    if mu:
        value += mu * np.square(B - phi @ P).sum() + alpha * np.square(P).sum()
    return float(value)


def by_iteration(
    chunk: Chunk, config: WOHConfig, vectors: WordVectors | None = None, most: int = 10
) -> list[float]:
    """The objective after 1, 2, ... outer iterations on a chunk, each from the same random start.

    Parameters
    ----------
    chunk : Chunk
        With tags.
    config : WOHConfig
        With a random start.
    vectors : WordVectors, optional
        Vectors of the tags' words.
    most : int
        Outer iterations of the last value.
    """
    values = []
    for iterations in range(1, most + 1):
        woh = WOH(replace(config, iterations=iterations))
        woh.partial_fit(chunk.features, chunk.tags, word_vectors=vectors)
        assert chunk.tags is not None  # noqa: S101 - partial_fit has checked; this tells mypy
        Y, Z, _ = woh.vocabulary_.matrices(chunk.tags)
        rows = woh.trained_
        phi = woh.hasher_.kernel.map(chunk.features[rows])
        B = codes.unpack(woh.codes_[rows]).astype(np.float64)
        values.append(objective(config, phi, Y[rows], Z[rows], B, woh.state()["W"], woh.hasher_.P))
    return values
