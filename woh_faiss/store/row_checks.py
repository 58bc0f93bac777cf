"""Codes and ids of a reader compared with what the catalogue knows of them, as far as they are used.

Opening an index reads neither. A search reads all codes and some ids: the ids of its answers are compared
with checksums of their blocks; codes where they are copied, or all of them where the index is small.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError

from . import codefile, fork_safety, schema

#: Ids with one CRC-32: those of a query's answers cost some tenths of a millisecond the first time.
BLOCK = 1 << 12
#: Bytes of codes and ids up to which all are compared when the first of them are used: 1 ms.
SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class RoundSums:
    """Rows of a round, SHA-256 of their codes and ids in hex, CRC-32 of each block of their ids."""

    round: int
    first_row: int
    end_row: int
    checksum: str
    id_sums: bytes


def id_sums(ids: NDArray[np.int64]) -> bytes:
    """CRC-32 of each block of the ids of a round, 4 bytes each, least significant first."""
    stored = np.ascontiguousarray(ids, "<i8")
    sums = [zlib.crc32(stored[start : start + BLOCK].data) for start in range(0, len(stored), BLOCK)]
    return struct.pack(f"<{len(sums)}I", *sums)


def n_sums(rows: int) -> int:
    """Bytes of the `id_sums` of a round of so many rows."""
    return 4 * -(-rows // BLOCK)


class RowChecks:
    """What of one state's codes and ids was found to be as it was written; threads share it.

    Parameters
    ----------
    folder : Path
        For messages.
    codes, ids : (rows, width) uint8 and (rows,) int64
        Mapped.
    load : callable
        Given the last round that is known, it gives the `RoundSums` of later ones, None if they are gone:
        codes and ids were written again since, and nobody knows the sums of those that are mapped here.
    earlier : RowChecks, optional
        Of an earlier state of the same rows.
    """

    def __init__(
        self,
        folder: Path,
        codes: NDArray[np.uint8],
        ids: NDArray[np.int64],
        load: Callable[[int], list[RoundSums] | None],
        earlier: RowChecks | None = None,
    ) -> None:
        self._folder, self._codes, self._ids, self._load = folder, codes, ids, load
        self._loading = threading.RLock()
        self._rounds: list[RoundSums] = []
        self._starts = np.empty(0, np.int64)  # of blocks of ids
        self._whole_blocks = np.empty(0, np.bool_)
        self._whole_rounds = 0
        #: Whether there is nothing left to compare: all was, or the sums are gone.
        self.done = False
        self._loaded = False
        if earlier is not None:
            with earlier._loading:
                self._rounds, self._starts = earlier._rounds, earlier._starts
                self._whole_blocks = earlier._whole_blocks.copy()
                self._whole_rounds = earlier._whole_rounds
                if len(earlier._ids) == len(ids):
                    self.done, self._loaded = earlier.done, earlier._loaded

    def of_ids(self, rows: NDArray[np.int64]) -> None:
        """StoreError unless the ids at these rows, and those of their blocks, are what was written."""
        if self.done:
            return
        self._prepare()
        if self.done or not rows.size:
            return
        blocks = np.searchsorted(self._starts, rows.ravel(), "right") - 1
        if not self._whole_blocks[blocks].all():
            for block in np.unique(blocks[~self._whole_blocks[blocks]]).tolist():
                self._check_block(block)

    def all_ids(self) -> None:
        """StoreError unless all ids are what was written."""
        if not self.done:
            self._prepare()
            self.of_ids(self._starts)

    def everything(self) -> None:
        """StoreError unless all codes and ids are what was written."""
        if self.done:
            return
        with fork_safety.gate, self._loading:
            self._load_rounds()
            for known in self._rounds[self._whole_rounds :]:
                rows = slice(known.first_row, known.end_row)
                codefile.check_round(
                    self._folder, known.round, self._codes[rows], self._ids[rows], known.checksum
                )
                self._whole_rounds += 1
            self.done = True

    def _prepare(self) -> None:
        """The sums, read once; all is compared at once where there is little."""
        if not self._loaded:
            with fork_safety.gate, self._loading:
                self._load_rounds()
                if self._codes.nbytes + self._ids.nbytes <= SMALL:
                    self.everything()

    def _load_rounds(self) -> None:
        if self._loaded:
            return
        new = self._load(self._rounds[-1].round if self._rounds else 0)
        if new is None:
            self.done = True
        else:
            starts = [np.arange(it.first_row, it.end_row, BLOCK, dtype=np.int64) for it in new]
            self._rounds = [*self._rounds, *new]
            ends = [0, *(it.end_row for it in self._rounds)]
            if [*(it.first_row for it in self._rounds), len(self._ids)] != ends:
                raise StoreError(
                    f"{self._folder / schema.CATALOG} is damaged: its rounds do not follow each other; "
                    "restore it from a backup"
                )
            self._starts = np.concatenate([self._starts, *starts])
            more = len(self._starts) - len(self._whole_blocks)
            self._whole_blocks = np.concatenate([self._whole_blocks, np.zeros(more, np.bool_)])
        self._loaded = True

    def _check_block(self, block: int) -> None:
        start = int(self._starts[block])
        place = int(np.searchsorted([it.first_row for it in self._rounds], start, "right")) - 1
        known = self._rounds[place]
        at = (start - known.first_row) // BLOCK * 4
        ids = np.ascontiguousarray(self._ids[start : min(start + BLOCK, known.end_row)], "<i8")
        if struct.pack("<I", zlib.crc32(ids.data)) != known.id_sums[at : at + 4]:
            raise StoreError(
                f"{self._folder / schema.IDS}: ids of round {known.round} are not what was written; restore "
                "it from a backup ('woh-index verify' tells all faults)"
            )
        self._whole_blocks[block] = True
