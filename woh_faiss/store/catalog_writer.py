"""Changes of a commit to the catalogue's tables and their checksums."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from woh_faiss.metadata import MOST

from . import cell_types, dead_rows, item_metadata, table_checksums
from .database import where_in
from .item_metadata import Cells, ColumnSlot
from .records import Round
from .schema import slots
from .table_checksums import TableChecksums

#: A row of `items`: row, id, key, tags as JSON, round, trust (None for 1), CRC-32.
ItemRow = tuple[int, int, str | None, str | None, int, float | None, int]


def item_row(
    row: int,
    id_: int,
    key: str | None,
    tags: str | None,
    number: int,
    trust: float | None,
    cells: Cells = (),
) -> ItemRow:
    """A row of `items` with its CRC-32, which covers the cells of its metadata."""
    return row, id_, key, tags, number, trust, table_checksums.crc((id_, key, tags, number, trust, *cells))


class CatalogWriter:
    """The tables of one catalogue within a transaction; `close` it before the COMMIT."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection
        self._sums = TableChecksums(connection)

    def add_round(self, record: Round, id_sums: bytes) -> None:
        """One more row of `rounds`, whose columns are the fields of `Round`, and checksums."""
        row: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields(record)}
        row["health"] = None if record.health is None else json.dumps(record.health)
        row["id_sums"] = id_sums
        row["crc"] = table_checksums.crc(tuple(row.values()))
        columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
        self._run.execute(f"INSERT INTO rounds ({columns}) VALUES ({places})", row)  # noqa: S608
        self._sums.change("rounds", new=[tuple(row.values())])

    def add_items(self, rows: Sequence[ItemRow]) -> None:
        """New live items."""
        self._run.executemany(
            "INSERT INTO items (row, id, key, tags, round, trust, crc) VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )
        self._sums.change("items", new=(row[1:] for row in rows))

    def retire(self, rows: Sequence[ItemRow], number: int) -> None:
        """Items that round `number` removes; their old rows stay for readers of older states."""
        gone = [(*row, number) for row in rows]
        self._run.executemany("DELETE FROM items WHERE id = ?", ((id_,) for _, id_, *_ in rows))
        self._run.executemany(
            "INSERT INTO removed (row, id, key, tags, round, trust, crc, removed) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            gone,
        )
        self._sums.change("items", gone=(row[1:] for row in rows))
        self._sums.change("removed", new=gone)
        self._mark_dead([row for row, *_ in rows])

    def _mark_dead(self, rows: Sequence[int]) -> None:
        """Rows that are no longer an item's."""
        gone = dead_rows.among(self._run, rows)
        new = dead_rows.marked(gone, rows)
        self._run.executemany(
            "INSERT OR REPLACE INTO dead (block, count, bits, crc) VALUES (?, ?, ?, ?)", new
        )
        self._sums.change("dead", gone=gone, new=new)

    def renew_dead(self) -> None:
        """Rows that are no longer an item's are those of `removed`."""
        rows = self._run.execute("SELECT row FROM removed")
        found = cell_types.all_typed("removed", rows, {"row": cell_types.COUNT})
        self._run.execute("DELETE FROM dead")
        self._run.executemany(
            "INSERT INTO dead (block, count, bits, crc) VALUES (?, ?, ?, ?)",
            dead_rows.marked((), (row for (row,) in found)),
        )
        self._sums.renew("dead")

    def add_early_features(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Features of new rows, as (row, float32 bytes)."""
        self._run.executemany("INSERT INTO early_features (row, x) VALUES (?, ?)", rows)
        self._sums.change("early_features", new=rows)

    def recode(self, checksums: Sequence[tuple[str, int]]) -> None:
        """Other codes of earlier rounds, as (checksum, round); features are no longer kept."""
        self._run.executemany("UPDATE rounds SET checksum = ? WHERE round = ?", checksums)
        self._run.execute("DELETE FROM early_features")
        self.renew("rounds", "early_features")

    def add_metadata(self, new: Sequence[ColumnSlot], rows: Sequence[tuple[int, Cells]]) -> None:
        """Columns that are new, and cells of new items, as (row, cells)."""
        added = [(it.slot, it.name, it.type, it.round) for it in new]
        self._run.executemany(
            "INSERT INTO metadata_columns (slot, name, type, round) VALUES (?, ?, ?, ?)", added
        )
        self._sums.change("metadata_columns", new=added)
        rows = [(row, cells) for row, cells in rows if cells]
        for n, some in groupby(sorted(rows, key=lambda it: (len(it[1]), it[0])), key=lambda it: len(it[1])):
            names, places = ", ".join(slots(n)), ", ?" * n
            self._run.executemany(
                f"INSERT INTO metadata (row, {names}) VALUES (?{places})",  # noqa: S608
                ((row, *cells) for row, cells in some),
            )
        self._sums.change("metadata", new=(cells for _, cells in rows))

    def forget_metadata(self, rows: Sequence[int]) -> None:
        """Cells of rows that are erased, and columns of which none is left."""
        select = f"SELECT {', '.join(slots(MOST))} FROM metadata WHERE row IN"  # noqa: S608
        self._sums.change("metadata", gone=where_in(self._run, select, rows))
        self._run.executemany("DELETE FROM metadata WHERE row = ?", ((row,) for row in rows))
        known = item_metadata.columns(self._run)
        if known:
            counts = ", ".join(f"count(c{it.slot})" for it in known)
            left = self._run.execute(f"SELECT {counts} FROM metadata").fetchone()  # noqa: S608
            gone = [it.slot for it, n in zip(known, left, strict=True) if not n]
            self._run.executemany("DELETE FROM metadata_columns WHERE slot = ?", ((it,) for it in gone))
            self._sums.renew("metadata_columns")

    def put_tags(self, rows: Sequence[tuple[str, int | None, int, bytes | None]], number: int) -> None:
        """New and changed tags (tag, column, count, vector), and what round `number` found in their place."""
        # In the tables' own order: else each of many new tags is put among those before it.
        rows = sorted(rows, key=lambda row: row[0].encode())
        now = {tag: (tag, column, count) for tag, column, count, _ in rows}
        select = 'SELECT tag, "column", count FROM tags WHERE tag IN'
        found = cell_types.all_typed("tags", where_in(self._run, select, now), cell_types.TAG)
        were = {tag: (tag, column, count) for tag, column, count in found}
        self._run.executemany(
            'INSERT INTO tags (tag, "column", count) VALUES (?, ?, ?) ON CONFLICT (tag) '
            'DO UPDATE SET "column" = excluded."column", count = excluded.count',
            now.values(),
        )
        self._sums.change("tags", gone=were.values(), new=now.values())
        # A vector comes with the column, and stays.
        placed = {tag for tag, column, _ in found if column is not None}
        new = ((tag, vector) for tag, column, _, vector in rows if column is not None and tag not in placed)
        vectors = {tag: vector for tag, vector in new if vector is not None}
        self._run.executemany("INSERT INTO vectors (tag, vector) VALUES (?, ?)", vectors.items())
        self._sums.change("vectors", new=vectors.items())
        if now:
            undo = number, json.dumps([were.get(tag, (tag, None, None)) for tag in now])
            self._run.execute("INSERT INTO undo (round, tags) VALUES (?, ?)", undo)
            self._sums.change("undo", new=[undo])

    def forget_undo(self, restorable: int) -> None:
        """Drop what no rollback can need: it would go back beyond round `restorable`."""
        found = self._run.execute("SELECT round, tags FROM undo WHERE round <= ?", (restorable,))
        self._sums.change("undo", gone=cell_types.all_typed("undo", found, cell_types.UNDO))
        self._run.execute("DELETE FROM undo WHERE round <= ?", (restorable,))

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
        """Tables that were changed as a whole are summed again."""
        if "rounds" in tables:
            self._seal_rounds()
        self._sums.renew(*tables)

    def _seal_rounds(self) -> None:
        """Records of rounds that were changed get the CRC-32 of what they say now."""
        rows = self._run.execute(f"SELECT {', '.join(cell_types.ROUND_ROW)} FROM rounds").fetchall()  # noqa: S608
        now = ((table_checksums.crc(row[:-1]), row[0], row[-1]) for row in rows)
        self._run.executemany(
            "UPDATE rounds SET crc = ? WHERE round = ?",
            ((crc, number) for crc, number, known in now if crc != known),
        )

    def close(self) -> None:
        """Store the sums."""
        self._sums.store()
