"""`Store`: one index folder, opened; readers map it and never lock, one writer at a time appends."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError

from . import catalog, database, files, fork_safety, item_metadata, schema
from .ann_search import AnnCache, AnnScan
from .model import Model
from .records import Round, Snapshot, TagRow
from .view import View, open_view

if TYPE_CHECKING:
    from .compaction import Forget
    from .write_transaction import WriteTransaction

T = TypeVar("T")
#: Distinct model files kept unless the config says otherwise.
_KEEP_MODELS = 2


class Store:
    """An index folder; make one with :meth:`create`, or open one with :meth:`open`.

    What it answers is one committed state, its `snapshot`, until :meth:`refresh` or an update through it.
    Searches may run in several threads; a Store opened before a fork works in the child.

    Attributes
    ----------
    path : Path
        The folder, absolute.
    config : dict
        What :meth:`create` was given.
    d : int
        Bits of a stored code, a multiple of 8.
    auto_refresh : float or None
        See :meth:`follow`.
    """

    def __init__(
        self,
        path: Path,
        auto_refresh: float | None = None,
        wanted: Snapshot | None = None,
    ) -> None:
        self.path, self.auto_refresh = path, auto_refresh
        view = open_view(path, wanted)
        self.config, self.d = view.config, 8 * view.mapped.codes.shape[1]
        self._view: View | None = view
        self._anns = AnnCache()
        self._refreshing = threading.RLock()
        self._looked = time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as its place and state: the copy opens that state again, or says it is gone."""
        return Store, (self.path, self.auto_refresh, self.snapshot)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, config: dict[str, Any], d: int) -> Store:
        """A new folder with no rounds and no codes; what a creation that died left behind is replaced.

        Raises
        ------
        StoreError
            The folder holds an index or anything else, or cannot be written.
        InputError
            d is not a positive multiple of 8, or the config is not made of JSON values.
        """
        folder = Path(os.fsdecode(path)).absolute()
        if d <= 0 or d % 8:
            raise InputError(f"d is {d} bits, expected a positive multiple of 8")
        from .creation import create  # what a search never does is imported when it is done

        create(folder, config, d)
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str], auto_refresh: float | None = None) -> Store:
        """The index at `path`, at its newest committed round; `auto_refresh` as in :meth:`follow`.

        Raises
        ------
        StoreError
            Nothing is there, it is not an index folder, it is damaged, or newer than this package.
        InputError
            auto_refresh is no number of at least 0.
        """
        if auto_refresh is not None:
            auto_refresh = validate.seconds(auto_refresh, "auto_refresh", ", or None")
        return cls(_folder(path), auto_refresh)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the mapped files; the Store cannot be used afterwards."""
        self._view = None
        self._anns.clear()

    @property
    def view(self) -> View:
        """The committed state that is being served, which stays what it is whatever this Store does next."""
        if self._view is None:
            raise StoreError(f"{self.path} was closed; open it again")
        return self._view

    @property
    def snapshot(self) -> Snapshot:
        """The committed state that is being served."""
        return self.view.snapshot

    @property
    def ntotal(self) -> int:
        """Items that can be found."""
        return self.snapshot.ntotal

    def pinned(self) -> Store:
        """This state as a Store that stays at it; what is mapped and copied is shared."""
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        found.auto_refresh, found._refreshing = None, threading.RLock()
        return found

    def refresh(self, prepare: Callable[[View], object] = lambda view: None) -> bool:
        """Follow the writer to the newest committed state; True if it is another one."""
        with fork_safety.gate, self._refreshing:
            self._looked = time.monotonic()
            if self.newest() == self.snapshot:
                return False
            view = open_view(self.path, before=self.view).after(self.view)
            prepare(view)
            self._view = view
            return True

    def newest(self) -> Snapshot:
        """The newest committed state, which may not be the one that is being served."""
        seen = self.snapshot  # another thread may refresh this Store to one that is newer than what is read

        def look(connection: sqlite3.Connection) -> Snapshot:
            with database.moment(connection):
                found = catalog.snapshot(connection)
                if found != seen:
                    catalog.rewritten(connection, self.path, seen)
                return found

        return database.read(self.path, look)

    def ask(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """What `query` finds in the catalogue, of one state; StoreError if another index took its place."""
        seen = self.snapshot  # as of `newest`

        def look(connection: sqlite3.Connection) -> T:
            with database.moment(connection):
                catalog.rewritten(connection, self.path, seen)
                return query(connection)

        return database.read(self.path, look)

    def follow(self, prepare: Callable[[View], object]) -> View:
        """The state to answer from: refreshed first if it was last `auto_refresh` seconds ago or more.

        While one thread refreshes, others answer from the state before, until `prepare` is done with the new.
        """
        due = self.auto_refresh is not None and time.monotonic() - self._looked >= self.auto_refresh
        if due:
            with fork_safety.gate:
                if self._refreshing.acquire(blocking=False):
                    try:
                        self.refresh(prepare)
                    finally:
                        self._refreshing.release()
        return self.view

    def ann_scan(self, view: View, kind: str, r: int, s: int) -> AnnScan:
        """See `ann_search.AnnCache.scan`."""
        return self._anns.scan(view, kind, r, s)

    def rounds(self) -> list[Round]:
        """Every round up to the snapshot's, oldest first."""
        last = self.snapshot.round
        return self.ask(lambda connection: catalog.rounds(connection, 1, last))

    def round(self, number: int) -> Round:
        """The record of one committed round; StoreError if there is none."""
        found = self.ask(lambda connection: catalog.rounds(connection, number, number))
        if not found:
            raise StoreError(f"{self.path} has no round {number}; its newest is {self.snapshot.round}")
        return found[0]

    def history(self) -> tuple[list[Round], list[tuple[int, int]]]:
        """Every round up to the snapshot's, and (row, round that removed it) of the rows removed by then.

        Raises
        ------
        StoreError
            The snapshot's rows have other numbers since, by `compact` or `rollback`.
        """
        seen = self.snapshot

        def look(connection: sqlite3.Connection) -> tuple[list[Round], list[tuple[int, int]]] | None:
            if catalog.rewritten(connection, self.path, seen):
                return None
            return catalog.rounds(connection, 1, seen.round), catalog.removals(connection, seen)

        found = self.ask(look)
        if found is None:
            raise self._rewritten()
        return found

    def early_features(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows (m,), ascending, of the snapshot of which features are kept, and these, (m, d); or (0, 0).

        Raises
        ------
        StoreError
            As `history`, or codes were made anew from them since; or they are damaged.
        """
        seen = self.snapshot

        def look(
            connection: sqlite3.Connection,
        ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
            if catalog.rewritten(connection, self.path, seen):
                return None
            return catalog.early_features(connection, seen)

        found = self.ask(look)
        if found is None:
            raise self._rewritten()
        return found

    def _rewritten(self) -> StoreError:
        return StoreError(f"the codes of {self.path} were rewritten meanwhile; try again")

    def metadata_types(self) -> dict[str, str]:
        """Types of the columns of metadata by name, as of the newest commit."""
        return {it.name: it.type for it in self.ask(item_metadata.columns)}

    def doubted(self, most: int) -> list[int]:
        """Ids of the items whose tags are trusted least, the least first."""
        last = self.snapshot.round
        return self.ask(lambda connection: catalog.doubted(connection, last, most))

    def earlier_models(self) -> list[tuple[int, Model]]:
        """The models before the snapshot's that are kept, with the rounds that wrote them, oldest first."""
        newest, found = self.snapshot.model, []
        for name in self.ask(catalog.read_state).models:
            number = schema.model_round(name)
            if newest is not None and number < schema.model_round(newest):
                with suppress(FileNotFoundError):  # a writer keeps newer ones by now
                    found.append((number, Model(self.path / name)))
        return found

    def tag_rows(self) -> list[TagRow]:
        """(column, tag, count, vector) of every tag, by column, as of the newest commit."""
        return self.ask(catalog.tags)

    def sizes(self) -> dict[str, int]:
        """Bytes of every file in the folder, by name."""
        with files.failures(self.path, "list"), os.scandir(self.path) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in sorted(entries, key=lambda entry: entry.name)
            }

    @contextmanager
    def writing(self, timeout: float = 10.0) -> Iterator[WriteTransaction]:
        """The writer lock, the files repaired, this Store refreshed; nothing is kept without a commit.

        Parameters
        ----------
        timeout : float
            Seconds to wait for another writer.

        Raises
        ------
        LockedError
            Another writer held the index for all of `timeout`.
        StoreError
            The folder cannot be written, or a file is damaged.
        """
        self.view  # noqa: B018 - says so where it was closed
        with _locked(self.path, self.config, self.d, timeout) as update:
            self.refresh()
            yield update
        self.refresh()

    def compact(
        self, timeout: float = 10.0, forget: Forget | None = None, form: Callable[[str], str] = str
    ) -> tuple[int, bool]:
        """Rewrite the files without removed rows: how many went, and whether no trace of them is left.

        `forget` takes removed items out of a model: see `compaction.Forget`.
        """
        from . import compaction

        if self.snapshot.rows != self.snapshot.ntotal:
            self.ask(compaction.check_kept)
        with self.writing(timeout) as writing:
            if self.snapshot.model is not None:
                self.view.check_model()  # files of another index may lie here: then nothing is rewritten
            gone = compaction.compact(writing, forget, form)
            writing.end()
            clean = compaction.scrub(writing, validate.seconds(timeout))
        return gone, clean

    def backup(self, destination: str | os.PathLike[str]) -> Snapshot:
        """The newest committed state copied to a new folder; see `backup.backup`."""
        from .backup import backup

        return backup(self.path, self.d, self.snapshot, Path(os.fsdecode(destination)).absolute())

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """All faults of the index at `path`, a line each; it need not be one that can be opened."""
        from .verify import verify

        return verify(Path(path).absolute())

    def rollback(self, number: int, timeout: float = 10.0) -> int:
        """`restore` of this index, which then serves that state."""
        self.view  # noqa: B018 - says so where it was closed
        undone = self.restore(self.path, number, timeout)
        self.refresh()
        return undone

    @staticmethod
    def restore(path: str | os.PathLike[str], number: int, timeout: float = 10.0) -> int:
        """Go back to the state after a round, and say how many are undone; see `compaction.rollback`.

        The index need not be one that can be opened: the newest model may be damaged or missing.
        """
        folder = _folder(path)
        config, d = database.read(folder, catalog.settings)
        with _locked(folder, config, d, timeout) as writing:
            from . import compaction

            return compaction.rollback(writing, number)


def _folder(path: str | os.PathLike[str]) -> Path:
    """The folder at `path`, absolute; StoreError where there is no index."""
    folder = Path(os.fsdecode(path)).absolute()
    with files.failures(folder, "open"):  # a name too long for the file system, say
        if not folder.exists():
            raise StoreError(f"no index at {folder}; 'woh-index build' makes one")
        if not folder.is_dir():
            raise StoreError(f"{folder} is a file, expected an index folder; 'woh-index build' makes one")
        if not files.plain(folder / schema.CATALOG):
            raise StoreError(
                f"no index at {folder}: {schema.CATALOG} is missing; 'woh-index build' makes one"
            )
    return folder


@contextmanager
def _locked(folder: Path, config: dict[str, Any], d: int, timeout: float) -> Iterator[WriteTransaction]:
    """The writer lock on the index in `folder`, its files repaired."""
    from .write_transaction import WriteTransaction

    keep = max(1, int(config.get("keep_models", _KEEP_MODELS)))
    with database.locked(folder, validate.seconds(timeout)) as (connection, lock):
        update = WriteTransaction(folder, connection, lock, d, keep)
        try:
            yield update
        finally:
            update.end()
