"""Which rows are those of removed items: a bit each, in blocks. Opening reads no record of a removal.

`removed` has the same rows with all that is known of them; verify compares the two.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import cell_types
from .database import where_in

#: Rows of a block: its bits fill a page of SQLite's, which is what opening pays for.
BLOCK = 32_000
#: A row of `dead`: block, rows with a bit, bits, CRC-32 of these three.
Cells = tuple[int, int, bytes, int]


@dataclass(frozen=True, slots=True)
class DeadRows:
    """Rows of removed items, of one committed state.

    Attributes
    ----------
    blocks : tuple of (int, bytes)
        Number of a block, and a bit for each of its rows, least significant first.
    count : int
        How many rows.
    """

    blocks: tuple[tuple[int, bytes], ...] = ()
    count: int = 0

    @classmethod
    def of(cls, rows: Iterable[int]) -> DeadRows:
        """These rows."""
        return cls._of(marked((), rows))

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> DeadRows:
        """Those of the newest state; DatabaseError where they are not as they were written."""
        return cls._of(
            _checked(connection.execute("SELECT block, count, bits, crc FROM dead ORDER BY block"))
        )

    @classmethod
    def _of(cls, cells: list[Cells]) -> DeadRows:
        return cls(tuple((block, bits) for block, _, bits, _ in cells), sum(count for _, count, *_ in cells))

    def __len__(self) -> int:
        return self.count

    def alive(self, rows: int) -> NDArray[np.bool_]:
        """Of rows 0 to `rows`, which are not among these: (rows,)."""
        found = np.ones(rows, np.bool_)
        for block, bits in self.blocks:
            part = found[block * BLOCK : (block + 1) * BLOCK]
            part[:] = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=len(part)) == 0
        return found

    def rows(self) -> NDArray[np.int64]:
        """Ascending: (count,)."""
        found = [
            np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")) + block * BLOCK
            for block, bits in self.blocks
        ]
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


def among(connection: sqlite3.Connection, rows: Iterable[int]) -> list[Cells]:
    """The rows of `dead` that have bits for these rows."""
    blocks = sorted({row // BLOCK for row in rows})
    return _checked(where_in(connection, "SELECT block, count, bits, crc FROM dead WHERE block IN", blocks))


def _checked(rows: Iterable[tuple[Any, ...]]) -> list[Cells]:
    found: list[Cells] = cell_types.all_typed("dead", rows, cell_types.DEAD)
    for block, count, bits, known in found:
        if _crc(block, count, bits) != known or len(bits) != BLOCK // 8:
            raise sqlite3.DatabaseError("a row of table dead is not as it was written")
    return found


def _crc(block: int, count: int, bits: bytes) -> int:
    return zlib.crc32(bits, zlib.crc32(b"%d;%d;" % (block, count)))


def marked(known: Iterable[Cells], rows: Iterable[int]) -> list[Cells]:
    """Rows of `dead` for the blocks of these rows, which are added to those `known` of such blocks."""
    by_block: dict[int, list[int]] = {}
    for row in rows:
        by_block.setdefault(row // BLOCK, []).append(row % BLOCK)
    before, made = {block: bits for block, _, bits, _ in known}, []
    for block, places in sorted(by_block.items()):
        marks = np.unpackbits(
            np.frombuffer(before.get(block, bytes(BLOCK // 8)), np.uint8), bitorder="little"
        )
        marks[places] = 1
        count, bits = int(marks.sum()), np.packbits(marks, bitorder="little").tobytes()
        made.append((block, count, bits, _crc(block, count, bits)))
    return made
