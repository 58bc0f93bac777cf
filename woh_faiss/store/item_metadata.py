"""Metadata of items in the catalogue: which columns there are, each in a slot of one table, and their cells.

A row of `metadata` belongs to the row of the codes that has its number: what is removed keeps its own until
`compact`. The CRC-32 of an item covers its cells.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from woh_faiss.errors import short
from woh_faiss.metadata import MOST, TYPES, Metadata, fitted, new_types, shown

from . import cell_types, schema, table_checksums
from .database import where_in

_PYTHON = {"integer": int, "real": float, "boolean": int}


@dataclass(frozen=True, slots=True)
class ColumnSlot:
    """A column of metadata: the slot that has its cells, its name and type, and the round that brought it."""

    slot: int
    name: str
    type: str
    round: int


#: An item's cells by slot, without the empty ones behind the last.
Cells = tuple[Any, ...]


def columns(connection: sqlite3.Connection) -> list[ColumnSlot]:
    """The columns there are, by slot; DatabaseError where they are not as they were written."""
    rows = connection.execute("SELECT slot, name, type, round FROM metadata_columns ORDER BY slot")
    found = [
        ColumnSlot(*row) for row in cell_types.all_typed("metadata_columns", rows, cell_types.METADATA_COLUMN)
    ]
    table_checksums.TableChecksums(connection).check("metadata_columns")
    for it in found:
        if it.slot >= MOST or it.type not in TYPES:
            raise sqlite3.DatabaseError(f"metadata_columns has {short(it.name)} of {short(it.type)}")
    return found


def n_slots(known: Iterable[ColumnSlot]) -> int:
    """How many slots may have cells: those up to the last column's."""
    return max((it.slot + 1 for it in known), default=0)


def trimmed(cells: Sequence[Any]) -> Cells:
    """The cells without the empty ones behind the last."""
    end = len(cells)
    while end and cells[end - 1] is None:
        end -= 1
    return tuple(cells[:end])


def select_items(table: str, kinds: cell_types.Kinds, slots: int) -> str:
    """What gives rows of `items` or `removed` with the cells of `slots` behind them."""
    names = [f"{table}.row", *list(kinds)[1:]]
    if not slots:
        return f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608
    names += schema.slots(slots)
    return f"SELECT {', '.join(names)} FROM {table} LEFT JOIN metadata ON metadata.row = {table}.row"  # noqa: S608


def checked_items(
    table: str, rows: Iterable[tuple[Any, ...]], kinds: cell_types.Kinds
) -> list[tuple[tuple[Any, ...], Cells]]:
    """Rows that `select_items` gives as (row of the table, cells); DatabaseError if not as written."""
    given, n = list(rows), len(kinds)
    found = cell_types.all_typed(table, [row[:n] for row in given], kinds)
    pairs = [(row, trimmed(whole[n:])) for row, whole in zip(found, given, strict=True)]
    table_checksums.check_crcs(table, (((*row[1:6], *cells), row[6]) for row, cells in pairs))
    return pairs


def read_items(
    connection: sqlite3.Connection,
    table: str,
    kinds: cell_types.Kinds,
    column: str,
    values: Iterable[Any],
    slots: int,
) -> list[tuple[tuple[Any, ...], Cells]]:
    """Rows of `items` or `removed` whose `column` is among the values, with their cells, checked."""
    select = f"{select_items(table, kinds, slots)} WHERE {column} IN"
    return checked_items(table, where_in(connection, select, values), kinds)


def values(known: Sequence[ColumnSlot], cells: Cells) -> dict[str, Any]:
    """An item's cells as values by name, None for a missing one; DatabaseError for one of another type."""
    found = {}
    for it in known:
        cell = cells[it.slot] if it.slot < len(cells) else None
        if cell is not None and type(cell) is not _PYTHON.get(it.type, str):
            raise sqlite3.DatabaseError(f"metadata {short(it.name)} is {short(cell)}, expected {it.type}")
        found[it.name] = shown(it.type, cell)
    return found


def placed(
    known: Sequence[ColumnSlot], given: Metadata, n: int, number: int
) -> tuple[list[ColumnSlot], list[Cells]]:
    """Columns that are new with round `number`, and the cells of each of n items; InputError where they do
    not fit."""
    new, free = [], iter(sorted({*range(MOST)} - {it.slot for it in known}))
    for name, type_ in new_types({it.name: it.type for it in known}, given).items():
        new.append(ColumnSlot(next(free), name, type_, number))
    slot_of = {it.name: it for it in [*known, *new]}
    by_slot: list[Sequence[Any]] = [()] * n_slots(slot_of.values())
    for name, column in given.items():
        if name in slot_of:  # else all its cells are missing
            by_slot[slot_of[name].slot] = fitted(name, slot_of[name].type, column)
    empty = [None] * n
    rows = zip(*(column or empty for column in by_slot), strict=True)
    return new, [trimmed(row) for row in rows] if by_slot else [()] * n
