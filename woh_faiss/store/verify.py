"""Every byte of an index compared with what the catalogue knows of it, even where it cannot be opened."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss.display import display_text
from woh_faiss.errors import StoreError, WOHError
from woh_faiss.metadata import MOST

from . import (
    ann_search,
    catalog,
    cell_types,
    codefile,
    database,
    files,
    generations,
    item_metadata,
    schema,
    table_checksums,
    writer_lock,
)
from .dead_rows import DeadRows
from .model import Model, Npy
from .records import Snapshot, State
from .recovery import is_made, strays

#: How often a look is repeated that a writer may have disturbed.
_ATTEMPTS = 5
_RESTORE = "restore it from a backup, or build the index again"


def verify(folder: Path) -> list[str]:
    """All faults of the index in `folder`, a line each: which file, what, what to do; none if it is sound.

    What a writer that died left, and the next one puts right, is a `Note` among them.
    Reads every file once. Writers wait for a moment, in which what is left of one that died is looked for.
    """
    faults: list[str] = []
    for _ in range(_ATTEMPTS):
        before = _state(folder)
        check = _Check(folder)
        check.everything()
        faults = check.faults
        if not faults or _state(folder) == before:
            break
    return faults


def _state(folder: Path) -> Snapshot | None:
    try:
        return database.read(folder, catalog.snapshot)
    except (WOHError, OSError):
        return None


class Note(str):
    """What a dead writer left, which the next write repairs: not a fault."""

    __slots__ = ()


class _Check:
    """One look; what is found wrong is in `faults`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[str] = []

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Whatever goes wrong inside is a fault of the file `name`: on damaged bytes anything may."""
        try:
            yield
        except StoreError as error:
            self.faults.append(str(error))
        except OSError as error:  # which says nothing of its bytes
            self.fault(name, f"cannot be read ({_one_line(error)}); check its permissions and its disk")
        except Exception as error:
            self.fault(name, f"cannot be read ({_one_line(error)}); {_RESTORE}")

    def fault(self, name: str, what: str) -> None:
        self.faults.append(f"{self.folder / name}: {what}")

    def everything(self) -> None:
        if not self.folder.is_dir() or not os.path.lexists(self.folder / schema.CATALOG):
            self.faults.append(f"no index at {self.folder}; 'woh-index build' makes one")
            return
        with self.noting(schema.CATALOG):
            database.read(self.folder, self._catalogue)

    def _catalogue(self, run: sqlite3.Connection) -> None:
        _, d = catalog.settings(run)
        with database.moment(run):
            with self.noting(schema.CATALOG):
                for (line,) in run.execute("PRAGMA integrity_check(10)"):
                    if line != "ok":
                        self.fault(schema.CATALOG, f"is damaged ({_one_line(line)}); {_RESTORE}")
            with self.noting(schema.CATALOG):
                (page,) = run.execute("PRAGMA page_size").fetchone()
                if extra := files.file_size(self.folder / schema.CATALOG) % page:  # SQLite thinks of zeros
                    self.fault(schema.CATALOG, f"ends {extra} bytes into a page: it was cut; {_RESTORE}")
            with self.noting(schema.CATALOG):
                self._sums(run)
            seen, state = catalog.snapshot(run), catalog.read_state(run)
            with self.noting(schema.CATALOG):
                self._counts(run, seen)
            with self.noting(schema.CATALOG):
                self._records(run, seen)
            with self.noting(schema.CATALOG):
                self._early_features(run, seen)
            self._codes_and_ids(run, seen, d)
            self._models(run, seen, state)
            self._ann(seen, d)
        self._leftovers(seen, state, d)

    def _sums(self, run: sqlite3.Connection) -> None:
        found = table_checksums.TableChecksums(run)
        for table in table_checksums.SELECTS:
            if not found.fits(table):
                self.fault(schema.CATALOG, f"table {table} is not as it was written; {_RESTORE}")

    def _counts(self, run: sqlite3.Connection, seen: Snapshot) -> None:
        rounds = catalog.rounds(run, 0, 2**62)
        ends = [0, *(done.end_row for done in rounds)]
        chain = [done.first_row for done in rounds] == ends[:-1] and ends == sorted(ends)
        numbers = [done.round for done in rounds]
        if not chain or numbers != sorted({*numbers}):
            self.fault(schema.CATALOG, f"the rounds do not follow each other; {_RESTORE}")
        (live,) = run.execute("SELECT count(*) FROM items").fetchone()
        if live != seen.ntotal:
            self.fault(schema.CATALOG, f"has {live} items, its rounds count {seen.ntotal}; {_RESTORE}")

    def _records(self, run: sqlite3.Connection, seen: Snapshot) -> None:
        """What readers compare: checksums of single rows; and rows that are no item's, in both places."""
        for table, kinds in (("items", cell_types.ITEM), ("removed", cell_types.REMOVED)):
            with self.noting(schema.CATALOG):
                known = item_metadata.columns(run)
                found = run.execute(item_metadata.select_items(table, kinds, MOST))
                for rows in database.batches(found):
                    for _, cells in item_metadata.checked_items(table, rows, kinds):
                        item_metadata.values(known, cells)
                        if len(cells) > item_metadata.n_slots(known):
                            raise sqlite3.DatabaseError("metadata has cells that no column has")
        select = "SELECT count(*) FROM metadata WHERE row NOT BETWEEN 0 AND ? - 1"
        (lost,) = run.execute(select, (seen.rows,)).fetchone()
        if lost:
            self.fault(schema.CATALOG, f"has metadata of {lost} rows that are not there; {_RESTORE}")
        dead = DeadRows.read(run)
        removed = {row for (row,) in run.execute("SELECT row FROM removed")}
        if removed != {*dead.rows().tolist()} or len(dead) != seen.rows - seen.ntotal:
            self.fault(schema.CATALOG, f"tables removed and dead name different rows; {_RESTORE}")

    def _early_features(self, run: sqlite3.Connection, seen: Snapshot) -> None:
        catalog.early_features(run, seen)
        select = "SELECT count(*) FROM early_features WHERE row NOT BETWEEN 0 AND ? - 1"
        (lost,) = run.execute(select, (seen.rows,)).fetchone()
        if lost:
            self.fault(schema.CATALOG, f"keeps features of {lost} rows that are not there; {_RESTORE}")

    def _codes_and_ids(self, run: sqlite3.Connection, seen: Snapshot, d: int) -> None:
        codes, ids = (files.newest(self.folder, name, seen.generation) for name in (schema.CODES, schema.IDS))
        whole = True
        for path, length in ((codes, codefile.end(d, seen.rows)), (ids, 8 * seen.rows)):
            long_enough = False
            with self.noting(path.name):
                if (size := files.file_size(path)) < length:
                    raise files.short(path, size, length)
                long_enough = True
                if path == codes:
                    codefile.check(path, d)
                    self._header(path, d, seen.rows)
            whole = whole and long_enough
        if whole:
            with self.noting(codes.name):
                self._rows(run, seen, codes, ids, d)

    def _header(self, path: Path, d: int, rows: int) -> None:
        counted, size = codefile.counts(path)
        if (counted, size) != (rows, rows * (d // 8)) and counted > rows:
            self.fault(
                path.name, f"counts {counted} codes, the catalogue {rows}: it has lost rounds; {_RESTORE}"
            )
        elif size != counted * (d // 8):
            self.fault(path.name, f"says that {counted} codes have {size} bytes; the next write repairs it")

    def _rows(self, run: sqlite3.Connection, seen: Snapshot, codes: Path, ids: Path, d: int) -> None:
        """Checksums of every round's rows, and each row's id against the catalogue."""
        C, names = generations.mapped(codes, ids, d, seen.rows)
        for done in catalog.rounds(run, 1, seen.round):
            rows = slice(done.first_row, done.end_row)
            if done.checksum != codefile.checksum(C[rows], names[rows]):
                self.faults.append(
                    f"{codes} or {ids.name}: the bytes of round {done.round} (rows {done.first_row} to "
                    f"{done.end_row}) are not what was written; restore both from a backup"
                )
        found = np.full(seen.rows, -1, np.int64)
        times = np.zeros(seen.rows, np.int64)
        for table in ("items", "removed"):
            select = f"SELECT row, id FROM {table}"  # noqa: S608
            pairs = np.array(run.execute(select).fetchall(), np.int64).reshape(-1, 2)
            pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < seen.rows)]
            found[pairs[:, 0]] = pairs[:, 1]
            np.add.at(times, pairs[:, 0], 1)
        wrong = np.flatnonzero((found != names) | (times != 1))
        if wrong.size:
            self.fault(
                ids.name,
                f"row {wrong[0]} has id {names[wrong[0]]}, the catalogue has "
                f"{found[wrong[0]]} there ({wrong.size} rows differ); {_RESTORE}",
            )

    def _models(self, run: sqlite3.Connection, seen: Snapshot, state: State) -> None:
        known: dict[str, str] = dict(
            run.execute("SELECT model, model_digest FROM rounds WHERE model IS NOT NULL")
        )
        if seen.model is not None and seen.model not in state.models:
            self.fault(schema.CATALOG, f"does not keep {seen.model}, the newest model; {_RESTORE}")
        wanted = {name: known.get(name) for name in state.models}
        if state.anchors:
            wanted[schema.ANCHORS] = state.anchors
        for name, model_digest in wanted.items():
            with self.noting(name):
                if not files.plain(self.folder / name):
                    self.fault(name, "is missing; restore it from a backup")
                    continue
                if name == schema.ANCHORS:
                    anchors = Npy(self.folder / name)
                    anchors.check(model_digest)
                    anchors.read()
                else:
                    Model(self.folder / name).check(model_digest)

    def _ann(self, seen: Snapshot, d: int) -> None:
        """Every approximate index: its bytes, and that it holds each row once."""
        for known in seen.ann:
            with self.noting(known.name):
                ann_search.load(self.folder, known, d)

    def _leftovers(self, seen: Snapshot, state: State, d: int) -> None:
        """Files that do not belong here; what a writer left only if none is at work."""
        with self.noting("."):
            ours = {schema.CATALOG, schema.CODES, schema.IDS, *state.models}
            ours |= {schema.CATALOG + end for end in ("-wal", "-shm")} | {writer_lock.NAME}
            ours |= {schema.ANCHORS} if state.anchors else set()
            ours |= {known.name for known in state.ann}
            with os.scandir(self.folder) as entries:  # once: a writer makes files between two
                foreign = [it.name for it in entries if it.name not in ours and not is_made(it)]
            for name in sorted(foreign):
                self.fault(name, "is not a file of an index; move it elsewhere")
        with self.noting(writer_lock.NAME):
            files.plain(self.folder / writer_lock.NAME)
        # Of a writer at work these are its files.
        with writer_lock.no_writer(self.folder, 0) as alone:
            if alone:
                self._left(seen, state, d)

    def _left(self, seen: Snapshot, state: State, d: int) -> None:
        with self.noting("."):
            died = "left by a writer that died; the next write puts it right"
            for path in strays(self.folder, state):
                self.faults.append(Note(f"{path}: {died}"))
            for name, end in ((schema.CODES, codefile.end(d, seen.rows)), (schema.IDS, 8 * seen.rows)):
                path = self.folder / name
                if seen.generation and os.path.lexists(self.folder / schema.pending(name, seen.generation)):
                    continue
                if not path.is_file() or path.is_symlink():
                    continue
                if (extra := path.stat().st_size - end) > 0:
                    self.faults.append(Note(f"{path}: has {extra} bytes behind its end, {died}"))
                elif name == schema.CODES and codefile.counts(path)[0] < seen.rows:
                    self.faults.append(Note(f"{path}: counts fewer codes than the catalogue, {died}"))


def _one_line(error: Any) -> str:
    return display_text(" ".join(str(error).split())[:160] or type(error).__name__)
