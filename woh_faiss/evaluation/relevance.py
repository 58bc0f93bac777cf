"""What is relevant to a query, as far as its held-out tags or its labels say: gains of items, 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.tag_text import normalise

Rows = NDArray[np.intp]
#: A tag of more than this share of the items says too little about any of them.
MOST_COMMON = 0.2


@dataclass(frozen=True, eq=False)
class Relevance:
    """Gains of a database's items for queries; an item with any gain is relevant.

    Attributes
    ----------
    queries, items : (q, c) and (n, c) sparse
        What each is about.
    graded : bool
        Gains are inner products; otherwise 1 where one is above 0.
    """

    queries: csr_array
    items: csr_array
    graded: bool

    @classmethod
    def of_tags(cls, chunk: Chunk, held_out: Rows, rest: Rows) -> Relevance:
        """Items share informative tags: the cosine of their idf weights, ln(items / items with the tag).

        A tag is informative if two items or more have it, and at most `MOST_COMMON` of all. Tags are compared
        as an index compares them, whatever their case.

        Parameters
        ----------
        chunk : Chunk
            With tags.
        held_out, rest : (q,) and (n,) int
            Rows of queries and database.

        Raises
        ------
        InputError
            The chunk has no tags.
        """
        if chunk.tags is None:
            raise InputError("the data has no tags, expected tags of most items to tell what is relevant by")
        T = _pattern(chunk.tags)
        both = csr_array(T[np.concatenate([held_out, rest])])
        n, count = both.shape[0], both.sum(axis=0)
        informative = (count >= 2) & (count <= MOST_COMMON * n)
        idf = np.where(informative, np.log(n / np.maximum(count, 1)), 0.0)
        unit = csr_array((idf[both.indices], both.indices, both.indptr), shape=both.shape)
        length = np.sqrt(unit.multiply(unit).sum(axis=1))
        unit.data /= np.repeat(np.where(length > 0, length, 1), np.diff(unit.indptr))
        unit.eliminate_zeros()
        return cls(unit[: len(held_out)], unit[len(held_out) :], graded=True)

    @classmethod
    def of_labels(cls, chunk: Chunk, held_out: Rows, rest: Rows) -> Relevance:
        """Items that share a label have the gain 1.

        Parameters
        ----------
        chunk : Chunk
            With labels.
        held_out, rest : (q,) and (n,) int
            Rows of queries and database.

        Raises
        ------
        InputError
            The chunk has no labels.
        """
        if chunk.labels is None:
            raise InputError("the data has no labels to tell what is relevant by; use its tags")
        labels = csr_array(chunk.labels.astype(np.float32))
        return cls(labels[held_out], labels[rest], graded=False)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Queries to which any item is relevant: (q,)."""
        carried = np.asarray(self.items.sum(axis=0)).ravel()
        return np.asarray(self.queries @ carried > 0)

    def gains_at(self, rows: Rows, places: Rows) -> NDArray[np.float32]:
        """Gains of some items, (m, k) places, for m queries: (m, k)."""
        each = np.repeat(rows, places.shape[1])
        product = np.asarray(self.queries[each].multiply(self.items[places.ravel()]).sum(axis=1))
        return np.asarray(product if self.graded else product > 0, np.float32).reshape(places.shape)

    def gains(self, rows: NDArray[Any] | slice) -> NDArray[np.float32]:
        """Gains of all items for some of the queries: (rows, n)."""
        product = (self.queries[rows] @ self.items.T).toarray()
        return np.asarray(product if self.graded else product > 0, np.float32)


def _pattern(tags: TagLists) -> csr_array:
    """(n, c) 0 and 1, spellings of a tag as one column."""
    place: dict[str, int] = {}
    column = np.array([place.setdefault(normalise(name), len(place)) for name in tags.names], np.int64)
    marks = csr_array(
        (np.ones(len(tags.indices)), column[tags.indices], tags.indptr), shape=(len(tags), max(1, len(place)))
    )
    marks.sum_duplicates()
    marks.data[:] = 1
    return marks
