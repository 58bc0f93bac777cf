"""All items of some inputs as one labelled chunk, for evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from woh_faiss import budget
from woh_faiss.errors import InputError

from .chunk import Chunk, concatenate
from .columns import Columns
from .open import Inputs, open_inputs
from .source import ChunkSource

if TYPE_CHECKING:
    from .pictures import PictureOptions


def read_labelled(
    paths: Sequence[str | os.PathLike[str]],
    *,
    columns: Columns | None = None,
    labels: str | None = None,
    limit: int | None = None,
    learn: bool = True,
    keys: bool = False,
    note: Callable[[str], object] | None = None,
    pictures: PictureOptions | None = None,
    tag_separator: str | None = None,
    split_note: Callable[[str], object] | None = None,
) -> Chunk:
    """The items of all inputs as one chunk, with their labels where all have them; without ids.

    Parameters
    ----------
    paths : sequence of paths
        As `open_inputs`.
    columns : Columns, optional
        Names of columns; that of ids is not read.
    labels : str, optional
        Name of the column of labels: class numbers, lists of 0 and 1, text (a class), or lists of text. It is
        guessed where none is given; '' means none.
    limit : int, optional
        The first so many items only.
    learn : bool
        Whether tags are needed.
    keys : bool
        Whether keys are kept where all inputs have them; a key may then be there twice.
    note : callable, optional
        Gets a line for each guess of columns.
    pictures : PictureOptions, optional
        As `open_inputs`; there are to be some then.
    tag_separator, split_note : str and callable, optional
        `tag_separator` and `note` of `open_inputs`.

    Raises
    ------
    InputError
        As `open_inputs`, or the labels of inputs are of different kinds or widths.
    """
    wanted = (columns or Columns())._replace(id="")
    wanted = wanted if keys else wanted._replace(key="")
    how: dict[str, Any] = {"tag_separator": tag_separator, "note": split_note, "pictures": pictures}
    inputs = open_inputs(paths, columns=wanted, learn=learn, **how)
    if pictures is not None and not inputs.has_pictures:
        raise InputError("there are no pictures among the inputs; leave the encoder out")
    with budget.reading("all inputs together"):
        chunks, sources = _first(inputs, limit)
        names = [source.where for source in sources]
        chosen = [_chosen(source, labels) for source in sources]
        told = inputs.notes(wanted)
        if labels is None:  # the first file of each guess
            guesses = {
                name: where for name, where in zip(reversed(chosen), reversed(names), strict=True) if name
            }
            told += [f"{where}: labels from {name!r}" for name, where in reversed(guesses.items())]
        for line in told if note is not None else ():
            note(line)  # type: ignore[misc]
        named = _keys(chunks) if keys else None
        if not any(chosen) and labels != "":
            return replace(concatenate(chunks, names), ids=None, keys=named)
        whole = concatenate([replace(chunk, labels=None) for chunk in chunks], names)
        found = [_labels(*each) for each in zip(sources, chosen, chunks, strict=True)]
        marks = None if labels == "" or any(part is None for part in found) else _joined(found, names)
        return replace(Chunk.of(whole.features, whole.tags, labels=marks, groups=whole.groups), keys=named)


def _keys(chunks: list[Chunk]) -> Any:
    """The keys of all chunks, or None; nothing is asked by a key here, so one may be there twice."""
    if any(chunk.keys is None for chunk in chunks):
        return None
    longest = max(chunk.keys.itemsize for chunk in chunks if chunk.keys is not None)
    budget.take(longest * sum(map(len, chunks)), "keys of all inputs")
    return np.concatenate([chunk.keys for chunk in chunks])


def _chosen(source: ChunkSource, name: str | None) -> str | None:
    """The column of labels; None for none, and for a chunk file, where they have their place."""
    if source.labels is not None:
        return source.labels.choose(name)
    if name:
        raise InputError(f"{source.where} has its labels in an array 'labels'; leave --labels-column out")
    return None


def _labels(source: ChunkSource, name: str | None, chunk: Chunk) -> Any:
    """The labels of a source's first rows: a matrix, class numbers, or lists of classes' names."""
    if source.labels is None:
        return chunk.labels
    return None if name is None else source.labels.read(name)[: len(chunk)]


def _first(inputs: Inputs, limit: int | None) -> tuple[list[Chunk], list[ChunkSource]]:
    """The first items, a chunk a source, and those sources."""
    left = inputs.count() if limit is None else limit
    chunks, sources = [], []
    for source in inputs.sources:
        if left == 0:
            break
        if source.n == 0:
            continue
        chunk = next(source.read(None if source.n is None else min(left, source.n)))
        if len(chunk) > left:
            chunk = chunk.rows(slice(0, left))
            chunk = chunk if chunk.tags is None else replace(chunk, tags=chunk.tags.own())
        chunks.append(chunk)
        sources.append(source)
        left -= len(chunk)
    return chunks, sources


def _joined(found: list[Any], names: list[str]) -> Any:
    """Labels as `Chunk.of` takes them."""
    kinds = ["names" if isinstance(part, list) else f"{part.ndim}-D" for part in found]
    if len(set(kinds)) > 1:
        other = next(place for place, kind in enumerate(kinds) if kind != kinds[0])
        raise InputError(
            f"labels of {names[other]} are of another kind than those of {names[0]}; give class "
            "numbers, 0/1 columns or names everywhere"
        )
    if kinds[0] == "names":
        return _multi_hot([row for part in found for row in part])
    for part, where in zip(found, names, strict=True):
        if part.shape[1:] != found[0].shape[1:]:
            raise InputError(
                f"labels of {where} have {part.shape[1]} columns, those of {names[0]} "
                f"{found[0].shape[1]}; give labels of one data set"
            )
    return np.concatenate(found)


def _multi_hot(rows: list[list[str]]) -> Any:
    names = sorted({name for row in rows for name in row})
    if not names:
        raise InputError("labels are empty lists of all items; give the items classes")
    budget.take(len(rows) * len(names), "labels")
    places = {name: place for place, name in enumerate(names)}
    marks = np.zeros((len(rows), len(names)), bool)
    for row, own in enumerate(rows):
        marks[row, [places[name] for name in own]] = True
    return marks
