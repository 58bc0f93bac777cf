"""Checksums of the catalogue's tables, which a change updates without reading the table.

SQLite has none: a flipped bit in a key would go unseen. A table's sum is the sum of hashes of its rows, so
that rows may come in any order and be taken out again.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from woh_faiss.metadata import MOST

from . import cell_types, schema

#: What is summed, by table; the sums themselves are the row "sums" of `meta`.
SELECTS = {
    "meta": "SELECT name, value FROM meta WHERE name != 'sums'",
    "rounds": "SELECT * FROM rounds",
    "items": "SELECT id, key, tags, round, trust, crc FROM items",  # rows: ids.i64 has what is there
    "removed": "SELECT row, id, key, tags, round, trust, crc, removed FROM removed",
    "dead": "SELECT block, count, bits, crc FROM dead",
    "tags": 'SELECT tag, "column", count FROM tags',
    "vectors": "SELECT tag, vector FROM vectors",
    "spent": "SELECT digest FROM spent",
    "undo": "SELECT round, tags FROM undo",
    "early_features": "SELECT row, x FROM early_features",
    "metadata_columns": "SELECT slot, name, type, round FROM metadata_columns",
    "metadata": f"SELECT {', '.join(schema.slots(MOST))} FROM metadata",  # noqa: S608 - rows: items' CRCs tell
}
_MODULUS = 1 << 128


def of(rows: Iterable[tuple[Any, ...]]) -> int:
    """The sum of `rows`, each a tuple of what SQLite holds."""
    return sum(int.from_bytes(hashlib.sha256(encoded(row)).digest()[:16]) for row in rows)


def crc(cells: tuple[Any, ...]) -> int:
    """CRC-32 of the cells of a row, kept with it: a reader compares it without the rest of the table."""
    return zlib.crc32(encoded(cells))


def check_crcs(table: str, rows: Iterable[tuple[tuple[Any, ...], int]]) -> None:
    """DatabaseError for cells that are not as they were written, of (cells, CRC-32 kept with them)."""
    for cells, known in rows:
        if crc(cells) != known:
            raise sqlite3.DatabaseError(f"a row of table {table} is not as it was written")


def encoded(row: tuple[Any, ...]) -> bytes:
    """One encoding of a row's cells, which no other row has, NULLs at the end apart: docs/format.md."""
    parts, end = [], len(row)
    while end and row[end - 1] is None:
        end -= 1
    for cell in row[:end]:
        if cell is None:
            parts.append(b"n")
        elif isinstance(cell, int):
            parts.append(b"i%d;" % cell)
        elif isinstance(cell, float):
            parts.append(b"f" + struct.pack("<d", cell))
        else:
            kind, data = (b"s", cell.encode()) if isinstance(cell, str) else (b"b", cell)
            parts.append(kind + b"%d:" % len(data) + data)
    return b"".join(parts)


class TableChecksums:
    """The sums of one committed state, to be carried forward and stored again.

    Attributes
    ----------
    values : dict
        The sums so far, in hex.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        found = connection.execute("SELECT value FROM meta WHERE name = 'sums'").fetchone()
        self.values: dict[str, str] = {} if found is None else cell_types.parsed("meta.sums", found[0], dict)
        if not all(re.fullmatch("[0-9a-f]{32}", str(value)) for value in self.values.values()):
            raise sqlite3.DatabaseError("meta.sums holds an invalid sum")

    def change(
        self, table: str, gone: Iterable[tuple[Any, ...]] = (), new: Iterable[tuple[Any, ...]] = ()
    ) -> None:
        """Rows that left a table, and rows that came."""
        now = int(self.values.get(table, "0"), 16)
        self.values[table] = _text(now - of(gone) + of(new))

    def fits(self, table: str) -> bool:
        """Whether a table is as it was written."""
        return self.values.get(table) == self._whole(table)

    def check(self, *tables: str) -> None:
        """DatabaseError for a table that is not as it was written: renewing its sum would hide that."""
        for table in tables:
            if not self.fits(table):
                raise sqlite3.DatabaseError(f"table {table} is not as it was written")

    def renew(self, *tables: str) -> None:
        """Tables that were changed as a whole are read."""
        for table in tables:
            self.values[table] = self._whole(table)

    def store(self) -> None:
        """Write the sums, with that of `meta` as it is now."""
        self.renew("meta")
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('sums', ?)", (json.dumps(self.values, sort_keys=True),)
        )

    def _whole(self, table: str) -> str:
        return _text(of(self._connection.execute(SELECTS[table])))


def _text(total: int) -> str:
    return f"{total % _MODULUS:032x}"
