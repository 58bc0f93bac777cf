"""The paper's preparation of a set: rare tags out, then images without tags, then chunks of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists, row_ends
from woh_faiss.tags.vocabulary import normalise
from woh_faiss.validate import positive_int

if TYPE_CHECKING:
    from woh_faiss.tags.word_vectors import WordVectors


def usual_tags(tags: TagLists, *, min_count: int = 50, word_vectors: WordVectors | None = None) -> TagLists:
    """Only the tags that at least `min_count` items carry and, where vectors are given, that have one.

    Tags count together where their normalised forms are equal; all n items stay.

    Parameters
    ----------
    tags : TagLists
        Of n items.
    min_count : int
        Items that must carry a tag.
    word_vectors : WordVectors, optional
        Where a tag must have a vector.

    Raises
    ------
    InputError
        `min_count` is less than 1, or no tag is left.
    """
    min_count = positive_int(min_count, "min_count")
    forms: dict[str, int] = {}
    form = np.array([forms.setdefault(normalise(name), len(forms)) for name in tags.names], np.int64)
    rows = np.repeat(np.arange(len(tags)), np.diff(tags.indptr))
    # An item that typed two forms of one tag carries it once.
    carried = np.unique(np.stack([rows, form[tags.indices]]), axis=1)[1]
    good = np.bincount(carried, minlength=len(forms)) >= min_count
    for text, j in forms.items():
        good[j] &= text != "" and (word_vectors is None or word_vectors.lookup(text) is not None)
    columns = good[form]
    kept = columns[tags.indices]
    if not kept.any():
        also = "" if word_vectors is None else " and known to the word vectors"
        raise InputError(
            f"none of {len(tags.names)} tags is carried by {min_count} of {len(tags)} items{also}; "
            "lower min_count or look at the tags"
        )
    names = tuple(name for name, keep in zip(tags.names, columns.tolist(), strict=True) if keep)
    return TagLists(names, row_ends(rows[kept], len(tags)), (np.cumsum(columns) - 1)[tags.indices[kept]])


def prepared(
    chunk: Chunk, *, min_count: int = 50, word_vectors: WordVectors | None = None, own: int = 0
) -> Chunk:
    """A whole set as the paper learns it: `usual_tags`, without images that have no tag left.

    Parameters
    ----------
    chunk : Chunk
        The set, with tags.
    min_count, word_vectors
        As `usual_tags`.
    own : int
        The first so many items are queries of the set's own split, which stay, whatever their tags.

    Raises
    ------
    InputError
        The set has no tags, or as `usual_tags`.
    """
    if chunk.tags is None:
        raise InputError("the data has no tags to prepare; read it with its tags")
    tags = usual_tags(chunk.tags, min_count=min_count, word_vectors=word_vectors)
    stays = np.diff(tags.indptr) > 0
    stays[:own] = True
    rows = np.flatnonzero(stays)
    left = chunk.rows(rows)
    return Chunk(left.features, tags.rows(rows), left.ids, left.keys, left.labels, left.groups)


def cut(n: int, size: int) -> list[int]:
    """Lengths of the chunks of n items: `size` each; the rest goes with the last.

    The paper cut MIRFlickr this way: 2,000 each, the last 2,833.

    Raises
    ------
    InputError
        `n` or `size` is less than 1.
    """
    n, size = positive_int(n, "n"), positive_int(size, "size")
    sizes = [size] * max(1, n // size)
    sizes[-1] += n - sum(sizes)
    return sizes
