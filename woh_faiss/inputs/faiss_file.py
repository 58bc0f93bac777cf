"""A Faiss index of float vectors, and a file of their tags, as inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.flat_faiss_file import read_floats
from woh_faiss.io.npz import damage
from woh_faiss.metadata import check_names
from woh_faiss.tags.splitting import TagTexts

from .arrow_values import cells
from .chunk import Chunk, OnDuplicate
from .columns import Columns
from .open import Inputs
from .source import ChunkSource, at, chunk_at
from .tag_file import open_side
from .text_table import read_metadata


def open_faiss(
    path: str | os.PathLike[str],
    tags: str | os.PathLike[str] | None,
    *,
    columns: Columns | None = None,
    chunk_size: int | None = None,
    tag_separator: str | None = None,
    note: Callable[[str], object] | None = None,
    on_duplicate: OnDuplicate = "error",
    metadata: Sequence[str] = (),
) -> Inputs:
    """The vectors of a Faiss file as features, its ids as ids, and the tags of a side file, by position.

    Parameters
    ----------
    path : path
        As `read_floats` reads; ids of a flat index that is alone are places.
    tags : path
        As `tag_file.open_side` reads. Its ids, if it has any, must be those of the index, in order; or
        are the ids, where the index has none.
    tag_separator, note, on_duplicate
        As `open_inputs` takes them.
    metadata : sequence of str
        Columns of the side file, a table, that are metadata.

    Raises
    ------
    InputError
        Either is missing, damaged or not of these kinds; there are no tags; they do not fit each other; a
        column of metadata is not there.
    """
    check_names(metadata)
    where = os.fsdecode(path)
    with budget.reading(display_path(path)):
        found = read_floats(Path(where))
    if tags is None:
        raise InputError(
            f"{where} has vectors but no tags, and nothing is learned without: give a file with --tags"
        )
    with budget.reading(display_path(tags)):
        split_as = TagTexts(tag_separator, note)
        side = open_side(Path(os.fsdecode(tags)), columns or Columns(), split_as)
    n, d = found.vectors.shape
    if side.n != n:
        raise InputError(
            f"{side.where} has tags of {side.n} items, {where} {n} vectors; give one each, in order"
        )

    if metadata:
        with budget.reading(side.where), damage(side.where):
            table = read_metadata(Path(os.fsdecode(tags)), side.where, metadata, n)

    def read(size: int | None) -> Iterator[Chunk]:
        step = size or n
        tags = side.read(step)
        for start in range(0, n, step):
            with budget.reading(side.where):
                known = next(tags)
            stop = min(start + step, n)
            if found.ids is not None:
                ids: Any = np.asarray(found.ids[start:stop])
                with at(side.where, start):
                    _same(known.get("ids"), ids, where)
                known["ids"] = ids
            if metadata:
                with at(side.where, start):
                    part = table.slice(start, step)
                    known["metadata"] = {name: cells(part.column(name), name) for name in metadata}
            yield chunk_at(where, start, on_duplicate, found.vectors[start:stop], **known)

    return Inputs([ChunkSource(where, n, d, side.columns, read)], chunk_size)


def _same(given: Any, ids: Any, where: str) -> None:
    if given is not None and (differ := np.flatnonzero(np.asarray(given) != ids)).size:
        row = int(differ[0])
        raise InputError(
            f"row {row} has id {given[row]}, {where} has {ids[row]} there; put both in one order"
        )
