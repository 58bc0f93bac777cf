"""What a reader holds of one committed state: mapped codes, ids and the open model file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError

from . import catalog, codefile, database, files, schema
from .model import Model, Npy
from .records import Snapshot
from .scan import NO_ID, Scan, members

#: How often an opening reader follows a writer that removes the model just read about.
_ATTEMPTS = 5


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

    @cached_property
    def everything(self) -> Scan:
        """A search among all items."""
        return Scan(self.mapped, self._alive if len(self.dead) else None)

    def among(self, allow: Any = None, deny: Any = None) -> Scan:
        """A search among the items that `allow` names (None: all) and `deny` does not."""
        scan = self.everything
        if allow is not None:
            scan = scan.among(members(self.ids, allow, "allow"))
        if deny is not None:
            scan = scan.among(~members(self.ids, deny, "deny"))
        return scan

    def search(
        self, codes: Any, k: Any, allow: Any = None, deny: Any = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See :meth:`Store.search`."""
        distances, rows = self.among(allow, deny).nearest(codes, k)
        return distances, self._ids_at(rows)

    def search_codes(
        self, codes: Any, k: Any, allow: Any = None, deny: Any = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
        """As `search`, with the codes found, (n, k, d // 8): zeros where there are fewer than k."""
        distances, rows = self.among(allow, deny).nearest(codes, k)
        stored = np.zeros((*rows.shape, self.mapped.codes.shape[1]), dtype=np.uint8)
        there = rows != NO_ID
        stored[there] = self.mapped.codes[rows[there]]
        return distances, self._ids_at(rows), stored

    def range_search(
        self, codes: Any, radius: Any, allow: Any = None, deny: Any = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """See :meth:`Store.range_search`."""
        lims, distances, rows = self.among(allow, deny).within(codes, radius)
        return lims, distances, self._ids_at(rows)

    def _ids_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of rows, NO_ID where there is none."""
        found = np.full(rows.shape, NO_ID, dtype=np.int64)
        there = rows != NO_ID
        found[there] = self.ids[rows[there]]
        return found


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
