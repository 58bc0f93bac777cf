"""Queries in order, searched and described a few at a time: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from woh_faiss import Chunk, WOHIndex, WordVectors
    from woh_faiss.index.neighbours import Neighbour
    from woh_faiss.integrations.remote import Remote
    from woh_faiss.store import Item

#: Queries that are searched and described at once.
BATCH = 64


class Query(NamedTuple):
    """One query: its name for people, the key that may be its picture's path, its tags (None: not known), and
    what JSON calls it."""

    name: str
    key: str | None
    tags: Sequence[str] | None
    query: Any = None


class Answer(NamedTuple):
    """A query, its neighbours in order, and the tags that each one's code predicts, by id."""

    asked: Query
    found: Sequence[Neighbour]
    predicted: dict[int, list[tuple[str, float]]]


@dataclass(frozen=True)
class QueryBatch:
    """What is asked: the rows of a chunk, an indexed item, or tags (with a chunk, beside each row).

    `text` is the key or the tags as they were typed.
    """

    chunk: Chunk | None = None
    item: Item | None = None
    words: Sequence[str] | None = None
    text: str | None = None

    def __len__(self) -> int:
        return 1 if self.chunk is None else len(self.chunk)

    def __getitem__(self, row: int) -> Query:
        if self.item is not None:
            name = self.item.key or f"id {self.item.id}"
            return Query(
                name, self.item.key, self.item.tags, self.item.id if self.text is None else self.text
            )
        if self.chunk is None:
            return Query(str(self.text), None, None, self.text)
        key = None if self.chunk.keys is None else str(self.chunk.keys[row])
        tags = None if self.chunk.tags is None else self.chunk.tags.of_row(row)
        return Query(key or f"row {row}", key, tags, row if key is None else key)


@dataclass(frozen=True)
class SearchOptions:
    """How to search: the k nearest, or all within a radius (in bits, inclusive); among which ids; where."""

    k: int
    radius: int | None = None
    rerank: int | None = None
    vectors: WordVectors | None = None
    allow: Sequence[int] | None = None
    deny: Sequence[int] | None = None
    remote: Remote | None = None
    ann: str | None = None

    def search(self, index: WOHIndex, asked: QueryBatch, rows: range) -> tuple[Any, Any]:
        """Distances or scores, and ids, of some of the queries: a row each."""
        import numpy as np

        among: dict[str, Any] = {"allow": self.allow, "deny": self.deny}
        xq = None if asked.chunk is None else asked.chunk.features[rows.start : rows.stop]
        if asked.words is not None:
            rerank = max(self.rerank or 1000, self.k)
            lists = [asked.words] * len(rows)
            return index.search_tags(lists, self.k, xq=xq, rerank=rerank, word_vectors=self.vectors, **among)
        if self.remote is not None:
            if asked.item is not None:
                return self.remote.search_ids([asked.item.id], self.k)
            return self.remote.search(np.asarray(xq), self.k)
        if self.radius is None:
            if asked.item is not None:
                return index.search_ids([asked.item.id], self.k, **among)
            return index.search(np.asarray(xq), self.k, rerank=self.rerank, ann=self.ann, **among)
        if asked.item is not None:
            lims, D, I = index.range_search_ids([asked.item.id], self.radius + 1, **among)
        else:
            lims, D, I = index.range_search(np.asarray(xq), self.radius + 1, **among)
        return np.split(D, lims[1:-1]), np.split(I, lims[1:-1])


def answers(index: WOHIndex, asked: QueryBatch, how: SearchOptions, explain: bool) -> Iterator[Answer]:
    """Each query with what a search found for it; with the tags that codes predict if `explain`."""
    for start in range(0, len(asked), BATCH):
        rows = range(start, min(start + BATCH, len(asked)))
        found = index.describe(*how.search(index, asked, rows))
        predicted = _predicted(index, found) if explain else {}
        for row, neighbours in zip(rows, found, strict=True):
            yield Answer(asked[row], neighbours, predicted)


def _predicted(index: WOHIndex, found: list[list[Neighbour]]) -> dict[int, list[tuple[str, float]]]:
    """The tags that each neighbour's code predicts, by id."""
    ids = sorted({neighbour.id for neighbours in found for neighbour in neighbours})
    return dict(zip(ids, index.explain(ids), strict=True)) if ids else {}
