"""Sources of rows: one file (or a pair of files) that gives its chunks in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.encoders.encoder import EncoderRecord
from woh_faiss.errors import InputError, MemoryBudgetError
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

from .bad_rows import BadRows, of_features
from .chunk import Chunk, OnDuplicate
from .columns import Columns

#: Rows of a chunk unless a user says otherwise: as many as the first round of a good index has.
CHUNK_SIZE = 2000


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """Where labels of a file may be; they are read for evaluation only.

    Attributes
    ----------
    choose : callable
        The column that is meant by a name, or None for none there; None guesses.
    read : callable
        All labels in a column: a 0/1 matrix (n, L), class numbers (n,), or n lists of classes' names.
    """

    choose: Callable[[str | None], str | None]
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """Rows of one file.

    Attributes
    ----------
    where : str
        What a message calls it.
    n : int or None
        Rows; None for a chunk file that is one chunk, and read when it is its turn.
    d : int or None
        Numbers of a row's features; None where `n` is, and where there are no rows.
    columns : Columns
        What its columns (or arrays) are called, None for those that are not there.
    read : callable
        The chunks, of so many rows each and what is left over in the last; None for all rows in one.
    note : str, optional
        What a person should know of what was taken.
    labels : LabelColumn, optional
        None for a chunk file, whose chunks have them.
    encoder : EncoderRecord, optional
        What made the features, where the file says it.
    """

    where: str
    n: int | None
    d: int | None
    columns: Columns
    read: Callable[[int | None], Iterator[Chunk]]
    note: str | None = None
    labels: LabelColumn | None = None
    encoder: EncoderRecord | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was asked of all inputs.

    Attributes
    ----------
    split_as : TagTexts
        How texts become tags.
    on_duplicate : "error", "skip" or "replace"
        As `Chunk.of` takes it.
    bad : BadRows or None
        Takes rows that cannot be used; without it they are errors.
    metadata : tuple of str
        Columns of metadata, by name.
    """

    split_as: TagTexts
    on_duplicate: OnDuplicate = "error"
    bad: BadRows | None = None
    metadata: tuple[str, ...] = ()


def chunk_at(where: str, start: int, on_duplicate: OnDuplicate, features: Any, **values: Any) -> Chunk:
    """`Chunk.of` rows from `start` on; its errors say where."""
    with at(where, start):
        return Chunk.of(features, on_duplicate=on_duplicate, **values)


def good_chunk(reading: Reading, where: str, start: int, features: Any, **more: Any) -> Chunk | None:
    """As `chunk_at`, of the rows without a fault if bad ones are taken out; None where none is left."""
    if reading.bad is not None:
        kept = reading.bad.kept(where, start, len(features), of_features(np.asarray(features)))
        if not kept.any():
            return None
        if not kept.all():
            features = features[kept]
            more = {name: selected(values, kept) for name, values in more.items()}
    return chunk_at(where, start, reading.on_duplicate, features, **more)


def selected(values: Any, kept: NDArray[np.bool_]) -> Any:
    """The values of the rows that are kept: of an array, a list, tags, or columns of any."""
    if isinstance(values, TagLists):
        return values.rows(kept).own()
    if isinstance(values, np.ndarray):
        return values[kept]
    if isinstance(values, Mapping):
        return {name: selected(column, kept) for name, column in values.items()}
    return [value for value, keep in zip(values, kept.tolist(), strict=True) if keep]


@contextmanager
def at(where: str, start: int) -> Iterator[None]:
    """An InputError about rows of a chunk says in which file they are, and where it counts them from."""
    try:
        yield
    except MemoryBudgetError:
        raise
    except InputError as error:
        if str(error).startswith(where):
            raise
        counted = f" (rows are counted from row {start} of the file)" if start else ""
        raise InputError(f"{where}: {error}{counted}") from error
    except MemoryError as error:
        raise budget.ran_out(where) from error
