"""What a reader holds of one committed state: mapped codes, ids and the open model file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError

from . import catalog, codefile, database, files, schema
from .model import Model, Npy
from .records import Snapshot

#: How often an opening reader follows a writer that removes the model just read about.
_ATTEMPTS = 5
#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
#: What Faiss answers where there is no neighbour.
NO_DISTANCE, NO_ID = np.iinfo(np.int32).max, -1
#: Codes compared by a search below which it stays on one thread: about 10 ms of scanning 64-bit codes.
#: Waking other threads costs 0.05 ms where cores are idle, and was seen to cost 100 ms where they are not.
_SMALL = 20_000_000
#: Neighbours from which sorting by counting distances beats a heap: at 1,000 by 1.2 times.
_MANY = 200
#: Share of dead rows up to which asking for more and dropping some beats a bitmap: of a million codes of 64
#: bits, k = 10, 0.7 against 3 ms with a tenth dead, 0.7 against 3.6 with four fifths (one core).
_MANY_DEAD = 0.8
#: Neighbours asked for beyond k and its share of dead rows: few queries then end short.
_SPARE = 16
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


@dataclass(frozen=True)
class View:
    """One committed state, mapped; nothing in it changes while a writer appends.

    Attributes
    ----------
    snapshot : Snapshot
    mapped : MappedCodes
        Of all rows, removed ones too.
    ids : (rows,) array of int64
    dead : (m,) array of int64
        Rows of items removed by then, ascending.
    model : Model or None
    anchors : Npy or None
    """

    snapshot: Snapshot
    mapped: codefile.MappedCodes
    ids: NDArray[np.int64]
    dead: NDArray[np.int64]
    model: Model | None
    anchors: Npy | None

    @classmethod
    def open(cls, folder: Path, d: int, snapshot: Snapshot, dead: Sequence[int]) -> View:
        """Map the files of `snapshot`; FileNotFoundError if its model file is gone."""
        rows = snapshot.rows
        mapped = codefile.open_mapped(files.newest(folder, schema.CODES, snapshot.generation), d, rows)
        path = files.newest(folder, schema.IDS, snapshot.generation)
        size, expected = files.file_size(path), 8 * rows
        if size < expected:
            raise files.short(path, size, expected)
        ids: Any = np.empty(0, dtype="<i8")  # an empty file cannot be mapped
        if rows:
            ids = np.memmap(path, dtype="<i8", mode="r", shape=(rows,))
        model = None if snapshot.model is None else Model(folder / snapshot.model)
        anchors = Npy(folder / schema.ANCHORS) if snapshot.anchors else None
        return cls(snapshot, mapped, ids, np.array(dead, np.int64), model, anchors)

    def rows_of(self, ids: Sequence[int]) -> dict[int, int]:
        """Rows of the live items with these ids, looked up in the mapped ids: a walk over all of them."""
        rows = np.flatnonzero(np.isin(self.ids, np.array(ids, np.int64)) & self._alive)
        return dict(zip(self.ids[rows].tolist(), rows.tolist(), strict=True))

    @cached_property
    def _alive(self) -> NDArray[np.bool_]:
        """Which rows an answer may have: (rows,)."""
        alive = np.ones(self.snapshot.rows, np.bool_)
        alive[self.dead] = False
        return alive

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
        """Distances and rows of the k nearest live codes, NO_ID where there is none."""
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
            codes = np.ascontiguousarray(codes)
            find = self._faiss if self.snapshot.rows == self.snapshot.ntotal else self._live
            distances[:, :some], rows[:, :some] = find(codes, some)
        return distances, rows

    def _faiss(
        self, codes: NDArray[np.uint8], k: int, params: Any = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What Faiss answers, for k up to the number of rows."""
        # Faiss shares out queries, not rows: a second thread has nothing to do for one query.
        n = len(codes)
        alone = _forked or n == 1 or n * self.snapshot.rows < _SMALL
        index = self.mapped.index if k < _MANY else self.mapped.counting
        with _one_thread() if alone else nullcontext():
            found: tuple[NDArray[np.int32], NDArray[np.int64]] = (
                index.search(codes, k) if params is None else index.search(codes, k, params=params)
            )
        return found

    def _live(self, codes: NDArray[np.uint8], k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The k nearest live codes, for k up to their number: exactly what a file without the others gives.

        While few rows are dead, more are asked for and the dead ones dropped; the few queries that end short
        of k, and all where many rows are dead, go through a bitmap that Faiss looks at for each row.
        """
        rows, dead = self.snapshot.rows, len(self.dead)
        more = min(rows, k + _SPARE + 2 * k * dead // (rows - dead))
        if dead > _MANY_DEAD * rows:
            return self._faiss(codes, k, self._bitmap)
        D, I = self._faiss(codes, more)
        alive = self._alive[I]
        first = np.argsort(~alive, axis=1, kind="stable")[:, :k]  # live ones first, in Faiss's order
        D, I = np.take_along_axis(D, first, axis=1), np.take_along_axis(I, first, axis=1)
        short = alive.sum(axis=1) < k
        if short.any():
            D[short], I[short] = self._faiss(codes[short], k, self._bitmap)
        return D, I

    @cached_property
    def _bitmap(self) -> Any:
        """Search parameters that leave dead rows out."""
        bits = np.packbits(self._alive, bitorder="little")
        selector = _swig.IDSelectorBitmap(len(self._alive), faiss.swig_ptr(bits))
        parameters = _swig.SearchParameters(sel=selector)
        parameters.bits = bits  # Faiss keeps only the address
        return parameters


def latest(folder: Path, d: int) -> View:
    """The newest committed state, mapped."""

    def look(connection: sqlite3.Connection) -> View | StoreError:
        with database.moment(connection):
            newest = catalog.snapshot(connection)
            dead = catalog.dead_rows(connection, newest)
        try:
            with files.failures(folder, "open"):
                view = View.open(folder, d, newest, dead)
        except StoreError as error:
            if isinstance(missing := error.__cause__, FileNotFoundError):
                return StoreError(f"{missing.filename} is missing; restore it from a backup")
            return error
        # A writer replaces files after its COMMIT: if there was none, these belong together.
        if catalog.snapshot(connection).generation != newest.generation:
            return StoreError(f"{folder} was rewritten each time it was opened; try again")
        return view

    for _ in range(_ATTEMPTS):  # a writer removes models and renames files
        view = database.read(folder, look)
        if isinstance(view, View):
            return view
        failed = view
    raise failed
