"""What a commit changes in the catalogue's tables, with their sums carried along."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from . import cells
from .database import where_in
from .sums import Sums

#: (column, tag, count, vector)
TagRow = tuple[int | None, str, int, bytes | None]
#: A row of `items`: row, id, key, tags as JSON, round.
ItemRow = tuple[int, int, str | None, str | None, int]


class Ledger:
    """The tables of one catalogue within a transaction; `close` it before the COMMIT."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection
        self._sums = Sums(connection)

    def add_round(self, row: tuple[Any, ...]) -> None:
        """One more row of `rounds`."""
        places = ", ".join("?" * len(row))
        self._run.execute(f"INSERT INTO rounds VALUES ({places})", row)  # noqa: S608
        self._sums.change("rounds", new=[row])

    def add_items(self, rows: Sequence[ItemRow]) -> None:
        """New live items."""
        self._run.executemany("INSERT INTO items (row, id, key, tags, round) VALUES (?, ?, ?, ?, ?)", rows)
        self._sums.change("items", new=rows)

    def retire(self, rows: Sequence[ItemRow], number: int) -> None:
        """Items that round `number` removes; their old rows stay for readers of older states."""
        gone = [(*row, number) for row in rows]
        self._run.executemany("DELETE FROM items WHERE id = ?", ((id_,) for _, id_, *_ in rows))
        self._run.executemany(
            "INSERT INTO removed (row, id, key, tags, round, removed) VALUES (?, ?, ?, ?, ?, ?)", gone
        )
        self._sums.change("items", gone=rows)
        self._sums.change("removed", new=gone)
        ids = [id_ for _, id_, *_ in rows]
        select = "SELECT id, round, bits FROM misfits WHERE id IN"
        self._sums.change(
            "misfits", gone=cells.all_typed("misfits", where_in(self._run, select, ids), cells.MISFIT)
        )
        self._run.executemany("DELETE FROM misfits WHERE id = ?", ((id_,) for id_ in ids))

    def add_misfits(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Items (id, round, bits) whose code and features agree least."""
        self._run.executemany("INSERT INTO misfits (id, round, bits) VALUES (?, ?, ?)", rows)
        self._sums.change("misfits", new=rows)

    def put_tags(self, rows: Sequence[tuple[str, int | None, int, bytes | None]], number: int) -> None:
        """New and changed tags (tag, column, count, vector), and what round `number` found in their place."""
        tags = [tag for tag, *_ in rows]
        before = self._tags(tags)
        self._run.executemany(
            'INSERT INTO tags (tag, "column", count, vector) VALUES (?, ?, ?, ?) ON CONFLICT (tag) '
            'DO UPDATE SET "column" = excluded."column", count = excluded.count, vector = excluded.vector',
            rows,
        )
        self._sums.change("tags", gone=before, new=self._tags(tags))
        were = {tag: (column, count) for tag, column, count, _ in before}
        undo = [(number, tag, *were.get(tag, (None, None))) for tag in dict.fromkeys(tags)]
        self._run.executemany('INSERT INTO undo (round, tag, "column", count) VALUES (?, ?, ?, ?)', undo)
        self._sums.change("undo", new=undo)

    def _tags(self, tags: Iterable[str]) -> list[tuple[Any, ...]]:
        select = 'SELECT tag, "column", count, vector FROM tags WHERE tag IN'
        return cells.all_typed("tags", where_in(self._run, select, dict.fromkeys(tags)), cells.TAG)

    def forget_undo(self, restorable: int) -> None:
        """Drop what no rollback can need: it would go back beyond round `restorable`."""
        select = 'SELECT round, tag, "column", count FROM undo WHERE round <= ?'
        gone = cells.all_typed("undo", self._run.execute(select, (restorable,)), cells.UNDO)
        self._run.execute("DELETE FROM undo WHERE round <= ?", (restorable,))
        self._sums.change("undo", gone=gone)

    def spend(self, digests: Sequence[bytes]) -> None:
        """Ids that are erased and not to be used again; some may be known as such."""
        rows = [(digest,) for digest in sorted(digests)]
        known = where_in(self._run, "SELECT digest FROM spent WHERE digest IN", sorted(digests))
        self._sums.change("spent", gone=known, new=rows)
        self._run.executemany("INSERT OR IGNORE INTO spent VALUES (?)", rows)

    def check(self, *tables: str) -> None:
        """DatabaseError for a table that is not as it was written."""
        self._sums.check(*tables)

    def renew(self, *tables: str) -> None:
        """Tables that were changed as a whole are summed anew."""
        self._sums.renew(*tables)

    def close(self) -> None:
        """Store the sums."""
        self._sums.store()
