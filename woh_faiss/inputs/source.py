"""Sources of rows: one file (or a pair of files) that gives its chunks in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from woh_faiss import budget
from woh_faiss.errors import InputError, MemoryBudgetError
from woh_faiss.tags.splitting import TagTexts

from .chunk import Chunk, OnDuplicate
from .columns import Columns

#: Rows of a chunk unless a user says otherwise: as many as the first round of a good index has.
CHUNK_SIZE = 2000


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
    """

    where: str
    n: int | None
    d: int | None
    columns: Columns
    read: Callable[[int | None], Iterator[Chunk]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was asked of all inputs.

    Attributes
    ----------
    split_as : TagTexts
        How texts become tags.
    on_duplicate : "error", "skip" or "replace"
        As `Chunk.of` takes it.
    """

    split_as: TagTexts
    on_duplicate: OnDuplicate = "error"


def chunk_at(where: str, start: int, on_duplicate: OnDuplicate, features: Any, **values: Any) -> Chunk:
    """`Chunk.of` rows from `start` on; its errors say where."""
    with at(where, start):
        return Chunk.of(features, on_duplicate=on_duplicate, **values)


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
