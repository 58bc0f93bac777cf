"""Queries in order, searched and described a few at a time: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from woh_faiss import Chunk, Refine, WOHIndex, WordVectors
    from woh_faiss.index.neighbours import Neighbour
    from woh_faiss.integrations.remote import Remote
    from woh_faiss.store import Item

#: Queries that are searched and described at once.
BATCH = 64
#: Heads of the columns that say why.
WHY = ("kind", "instance", "predicted", "trust")


class Query(NamedTuple):
    """One query: its name for people, the key that may be its picture's path, its tags (None: not known), and
    what JSON calls it."""

    name: str
    key: str | None
    tags: Sequence[str] | None
    query: Any = None


class Answer(NamedTuple):
    """A query, its neighbours in order, and by id why: kind, instance, tags its code predicts, trust."""

    asked: Query
    found: Sequence[Neighbour]
    explained: dict[int, dict[str, Any]]

    def why(self, id_: int) -> list[str]:
        """The cells of `WHY` for one neighbour, empty where there is nothing to say."""
        why = self.explained[id_]
        terms = [f"{why[name]:.3f}" if name in why else "" for name in ("kind", "instance")]
        predicted = ", ".join(f"{tag} {score:.2f}" for tag, score in why["predicted"])
        return [*terms, predicted, f"{why['trust']:.2f}"]


@dataclass(frozen=True)
class QueryBatch:
    """What is asked: the rows of a chunk, an indexed item, or tags (with a chunk, beside each row).

    `text` is the key or the tags as they were typed; `places` are the rows' numbers in their file.
    """

    chunk: Chunk | None = None
    item: Item | None = None
    words: Sequence[str] | None = None
    text: str | None = None
    places: Sequence[int] | None = None

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
        place = row if self.places is None else self.places[row]
        return Query(key or f"row {place}", key, tags, place if key is None else key)


@dataclass(frozen=True)
class SearchOptions:
    """How to search: the k nearest, or all within a radius (in bits, inclusive); among which ids; where; of
    which items (`where`)."""

    k: int
    radius: int | None = None
    by: Any = "both"
    expand: int = 3
    vectors: WordVectors | None = None
    allow: Sequence[int] | None = None
    deny: Sequence[int] | None = None
    remote: Remote | None = None
    ann: str | None = None
    where: str | None = None
    refine: Refine | None = None
    refine_k: int | None = None

    def search(self, index: WOHIndex, asked: QueryBatch, rows: range) -> tuple[Any, Any]:
        """Distances or scores, and ids, of some of the queries: a row each."""
        import numpy as np

        among: dict[str, Any] = {"allow": self.allow, "deny": self.deny, "where": self.where}
        xq = None if asked.chunk is None else asked.chunk.features[rows.start : rows.stop]
        if asked.words is not None:
            lists = [asked.words] * len(rows)
            return index.search_tags(lists, self.k, xq=xq, word_vectors=self.vectors, **among)
        if self.remote is not None:
            if asked.item is not None:
                return self.remote.search_ids([asked.item.id], self.k, by=self.by)
            return self.remote.search(np.asarray(xq), self.k, by=self.by, expand=self.expand)
        if self.radius is None:
            if asked.item is not None:
                return index.search_ids([asked.item.id], self.k, by=self.by, **among)
            how: dict[str, Any] = {"by": self.by, "expand": self.expand, "ann": self.ann}
            how |= {"refine": self.refine, "refine_k": self.refine_k}
            return index.search(np.asarray(xq), self.k, **how, **among)
        if asked.item is not None:
            lims, D, I = index.range_search_ids([asked.item.id], self.radius + 1, **among)
        else:
            lims, D, I = index.range_search(np.asarray(xq), self.radius + 1, **among)
        return np.split(D, lims[1:-1]), np.split(I, lims[1:-1])

    def terms(self, index: WOHIndex, asked: QueryBatch, rows: range, D: Any, I: Any) -> list[Any]:
        """(kind, instance) of each answer of each query, where the score has two terms; else nothing."""
        if self.by != "both" or self.radius is not None or self.refine is not None:
            return [None] * len(rows)
        if asked.item is not None:
            kind, instance = index.explain_score(D, I, ids=[asked.item.id])
        elif asked.chunk is not None:
            kind, instance = index.explain_score(D, I, xq=asked.chunk.features[rows.start : rows.stop])
        else:
            return [None] * len(rows)
        return [list(zip(*pair, strict=True)) for pair in zip(kind.tolist(), instance.tolist(), strict=True)]


def answers(
    index: WOHIndex, batches: Iterable[QueryBatch], how: SearchOptions, explain: bool
) -> Iterator[Answer]:
    """Each query with what a search found for it, and why if `explain`."""
    for asked in batches:
        yield from _answers(index, asked, how, explain)


def _answers(index: WOHIndex, asked: QueryBatch, how: SearchOptions, explain: bool) -> Iterator[Answer]:
    for start in range(0, len(asked), BATCH):
        rows = range(start, min(start + BATCH, len(asked)))
        D, I = how.search(index, asked, rows)
        found = index.describe(D, I)
        if not explain:
            yield from (Answer(asked[row], hits, {}) for row, hits in zip(rows, found, strict=True))
            continue
        predicted = _predicted(index, found)
        if how.remote is not None:
            I = _held(I, found)
        for row, hits, ids, terms in zip(rows, found, I, how.terms(index, asked, rows, D, I), strict=True):
            why = {hit.id: {"predicted": predicted.get(hit.id, []), "trust": hit.trust} for hit in hits}
            for id_, (kind, instance) in zip(ids.tolist(), terms or [], strict=False):
                if id_ in why:
                    why[id_] = {"kind": round(kind, 4), "instance": round(instance, 4), **why[id_]}
            yield Answer(asked[row], hits, why)


def _held(I: Any, found: list[list[Neighbour]]) -> Any:
    """Ids, -1 in the place of those that the index does not hold: a table may be at another round."""
    import numpy as np

    return np.where(np.isin(I, [neighbour.id for neighbours in found for neighbour in neighbours]), I, -1)


def _predicted(index: WOHIndex, found: list[list[Neighbour]]) -> dict[int, list[tuple[str, float]]]:
    """The tags that each neighbour's code predicts, by id; none where no bits are learned."""
    ids = sorted({neighbour.id for neighbours in found for neighbour in neighbours})
    return dict(zip(ids, index.explain(ids), strict=True)) if ids and index.config.bits else {}
