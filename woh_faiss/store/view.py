"""What a reader holds of one committed state: mapped codes, ids and the open model file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError

from . import codefile, files, schema
from .catalog import Snapshot
from .model import Model

#: What Faiss answers where there is no neighbour.
NO_DISTANCE, NO_ID = np.iinfo(np.int32).max, -1
#: Codes compared by a search below which it stays on one thread: about 10 ms of scanning 64-bit codes.
#: Waking other threads costs 0.05 ms where cores are idle, and was seen to cost 100 ms where they are not.
_SMALL = 20_000_000
#: Neighbours from which sorting by counting distances beats a heap: at 1,000 by 1.2 times.
_MANY = 200
_forked = False


def _after_fork() -> None:
    # A child has none of its parent's OpenMP threads, and Faiss would wait for them for ever.
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Faiss uses one OpenMP thread inside, for calls from this thread only."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@dataclass(frozen=True, slots=True)
class View:
    """One committed state, mapped; nothing in it changes while a writer appends."""

    snapshot: Snapshot
    mapped: codefile.MappedCodes
    ids: NDArray[np.int64]
    model: Model | None

    @classmethod
    def open(cls, folder: Path, d: int, snapshot: Snapshot) -> View:
        """Map the files of `snapshot`; FileNotFoundError if its model file is gone."""
        mapped = codefile.open_mapped(folder / schema.CODES, d, snapshot.ntotal)
        path = folder / schema.IDS
        size, expected = files.file_size(path), 8 * snapshot.ntotal
        if size < expected:
            raise files.short(path, size, expected)
        ids: Any = np.empty(0, dtype="<i8")  # an empty file cannot be mapped
        if snapshot.ntotal:
            ids = np.memmap(path, dtype="<i8", mode="r", shape=(snapshot.ntotal,))
        return cls(snapshot, mapped, ids, None if snapshot.model is None else Model(folder / snapshot.model))

    def search(self, codes: Any, k: Any) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See :meth:`Store.search`."""
        distances, rows = self._scan(codes, k)
        found = np.full(rows.shape, NO_ID, dtype=np.int64)
        found[rows != NO_ID] = self.ids[rows[rows != NO_ID]]
        return distances, found

    def search_codes(
        self, codes: Any, k: Any
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
        """See :meth:`Store.search_codes`."""
        distances, rows = self._scan(codes, k)
        found = np.full(rows.shape, NO_ID, dtype=np.int64)
        stored = np.zeros((*rows.shape, self.mapped.codes.shape[1]), dtype=np.uint8)
        there = rows != NO_ID
        found[there], stored[there] = self.ids[rows[there]], self.mapped.codes[rows[there]]
        return distances, found, stored

    def _scan(self, codes: Any, k: Any) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Distances and rows of the k nearest codes, NO_ID where there is none."""
        k = validate.neighbours(k)
        codes = np.asarray(codes)
        width = self.mapped.codes.shape[1]
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
            raise InputError(
                f"queries have shape {codes.shape} and dtype {codes.dtype}, "
                f"expected (n, {width}) bytes of uint8 for codes of {8 * width} bits"
            )
        n = len(codes)
        distances = np.full((n, k), NO_DISTANCE, dtype=np.int32)
        rows = np.full((n, k), NO_ID, dtype=np.int64)
        some = min(k, self.snapshot.ntotal)  # Faiss does not clamp k
        if n and some:
            # Faiss shares out queries, not rows: a second thread has nothing to do for one query.
            alone = _forked or n == 1 or n * self.snapshot.ntotal < _SMALL
            index = self.mapped.index if some < _MANY else self.mapped.counting
            with _one_thread() if alone else nullcontext():
                distances[:, :some], rows[:, :some] = index.search(np.ascontiguousarray(codes), some)
        return distances, rows
