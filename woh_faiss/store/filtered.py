"""Which rows of a committed state a filter lets through.

Conditions that must all hold are asked one table at a time, as far as they need only one: a scan of the table
of metadata costs a third of one of the items.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import catalog, cell_types, item_metadata
from .database import batches, moment
from .records import Snapshot
from .where import Condition, compiled, register

Mask = NDArray[np.bool_]
#: Rows whose numbers differ in as many of the last bits are one text.
_TOGETHER = 20
#: Share of the items up to which those left by conditions of metadata are looked up one by one.
_FEW = 0.02


def matching(
    connection: sqlite3.Connection,
    folder: Path,
    where: str,
    form: Callable[[str], str],
    seen: Snapshot,
    ids: NDArray[np.int64],
    first: Mask | None = None,
) -> Mask:
    """Rows of the state `seen` for which a filter holds: (rows,); those of removed items may be among them.

    `form` is that of tags, `ids` are those of the rows. `first` is the answer for the first rows, where an
    earlier state of the generation has it: what a row holds never changes.

    Raises
    ------
    InputError
        As `where.compiled`.
    """
    with moment(connection):
        stale = catalog.rewritten(connection, folder, seen)
        conditions = compiled(where, item_metadata.columns(connection), form)
        register(connection, form)
        (newest,) = connection.execute("SELECT ifnull(max(round), 0) FROM rounds").fetchone()
        start = 0 if first is None else len(first)
        found = np.arange(seen.rows) >= start
        for together in _by_table(conditions):
            if stale:
                found &= np.isin(ids, _ids(connection, together, seen))
                continue
            few = "i" in together.tables and np.count_nonzero(found) <= _FEW * seen.rows
            left = ids[found].tolist() if few else None
            found &= _rows(connection, together, seen, newest != seen.round, left, start)
        if first is not None:
            found[:start] = first
        return found


def _by_table(conditions: Sequence[Condition]) -> list[Condition]:
    """The conditions as one for each choice of tables that they need, those of metadata alone first."""
    by_tables: dict[frozenset[str], list[Condition]] = {}
    for it in conditions:
        tables = frozenset("im") if it.of_nothing else it.tables
        by_tables.setdefault(tables, []).append(it)
    return [
        Condition(" AND ".join(it.sql for it in some), tuple(v for it in some for v in it.values), tables)
        for tables, some in sorted(by_tables.items(), key=lambda it: "i" in it[0])
    ]


def _rows(
    connection: sqlite3.Connection,
    condition: Condition,
    seen: Snapshot,
    removed_since: bool,
    ids: list[int] | None,
    start: int,
) -> Mask:
    """Rows of the generation that is in place, from `start` on; of few items with these ids alone."""
    found = np.zeros(seen.rows, np.bool_)
    row = "m.row" if condition.tables == {"m"} else "i.row"
    selects = [_select(f"json_group_array({row})", condition, "items")]
    if removed_since and condition.tables != {"m"}:  # of removed items metadata are where they were
        selects.append(_select(f"json_group_array({row})", condition, "removed"))
    if ids is None:
        asked = [(f"{select} AND {row} >= ?", (*condition.values, start)) for select in selects]
    else:
        asked = [
            (f"{select} AND i.id IN ({', '.join('?' * len(batch))})", (*condition.values, *batch))
            for select in selects
            for batch in batches(ids)
        ]
    for select, values in asked:
        # Rows as text: of 500,000 SQLite makes it in 25 ms, where Python would take 150 for as many tuples.
        for (text,) in connection.execute(f"{select} GROUP BY {row} >> {_TOGETHER}", values):
            rows = np.array(cell_types.parsed("rows of a filter", text, list))
            if rows.dtype != np.int64 or rows.min() < 0:
                raise sqlite3.DatabaseError("items have rows that are no whole numbers of at least 0")
            found[rows[rows < seen.rows]] = True
    return found


def _ids(connection: sqlite3.Connection, condition: Condition, seen: Snapshot) -> NDArray[np.int64]:
    """Ids of items that were there in the state `seen`, whose rows have other numbers now."""
    condition = Condition(condition.sql, condition.values, frozenset("im"))
    rows: list[Any] = []
    for table, removed in (("items", "NULL"), ("removed", "i.removed")):
        select = _select(f"i.id, i.round, {removed}", condition, table)
        rows += connection.execute(select, condition.values).fetchall()
    kinds = cell_types.some(cell_types.ROUND, "round", "time")
    times = dict(cell_types.all_typed("rounds", connection.execute("SELECT round, time FROM rounds"), kinds))
    kept = [
        (id_,)
        for id_, number, removed in rows
        if times.get(number, inf) <= seen.time and (removed is None or times.get(removed, inf) > seen.time)
    ]
    return np.array(cell_types.all_typed("items", kept, {"id": cell_types.COUNT}), np.int64).reshape(-1)


def _select(what: str, condition: Condition, table: str) -> str:
    if condition.tables == {"m"}:
        source = "metadata AS m"
    elif condition.tables == {"i"}:
        source = f"{table} AS i"
    else:
        source = f"{table} AS i LEFT JOIN metadata AS m ON m.row = i.row"
    return f"SELECT {what} FROM {source} WHERE {condition.sql}"  # noqa: S608 - our words only: see `where`
