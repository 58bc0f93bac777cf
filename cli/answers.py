"""What a page shows of each query: read from the index some queries at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from woh_faiss import Chunk, WOHIndex
    from woh_faiss.reading import Neighbour

#: Queries that are described at once.
BATCH = 64


class Asked(NamedTuple):
    """One query: what to call it, the key that may be its picture's path, its tags (None: not known)."""

    name: str
    key: str | None
    tags: Sequence[str] | None


class Answer(NamedTuple):
    """A query, its neighbours in order, and the tags that each one's code predicts, by id."""

    asked: Asked
    found: Sequence[Neighbour]
    predicted: dict[int, list[tuple[str, float]]]


def asked(
    index: WOHIndex, names: Sequence[Any], chunk: Chunk | None, item_id: int | None, tags: str | None
) -> Iterator[Asked]:
    """The queries of a chunk, of an indexed item, or of tags."""
    if item_id is not None:
        (item,) = index.items([item_id])
        yield Asked(item.key or f"id {item.id}", item.key, item.tags)
    elif chunk is None:
        yield Asked(str(tags), None, None)
    else:
        for row, name in enumerate(names):
            key = None if chunk.keys is None else name
            yield Asked(key or f"row {row}", key, None if chunk.tags is None else chunk.tags.of_row(row))


def answers(index: WOHIndex, queries: Iterator[Asked], D: Any, I: Any) -> Iterator[Answer]:
    """The queries with what `search` found for them."""
    for start in range(0, len(I), BATCH):
        batch = slice(start, start + BATCH)
        found = index.describe(D[batch], I[batch])
        predicted = predicted_tags(index, found)
        for neighbours in found:
            yield Answer(next(queries), neighbours, predicted)


def predicted_tags(index: WOHIndex, found: list[list[Neighbour]]) -> dict[int, list[tuple[str, float]]]:
    """The tags that each neighbour's code predicts, by id."""
    ids = sorted({neighbour.id for neighbours in found for neighbour in neighbours})
    return dict(zip(ids, index.explain(ids), strict=True)) if ids else {}
