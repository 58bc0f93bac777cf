"""`Store`: one index folder, opened; readers map it and never lock, one writer at a time appends."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss.errors import InputError, StoreError

from . import catalog, codefile, files, schema
from .catalog import Item, Round, Snapshot
from .model import Model, check_file, read_npy
from .view import View
from .writing import TagRow, Writing

#: How often an opening reader follows a writer that removes the model just read about.
_ATTEMPTS = 5
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
    """

    def __init__(self, path: Path, config: dict[str, Any], d: int) -> None:
        self.path, self.config, self.d = path, config, d
        self._view: View | None = self._look()
        self._refreshing = threading.Lock()

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
        try:
            text = json.dumps(config)
        except (TypeError, ValueError) as error:
            raise InputError(f"config cannot be stored as JSON: {error}") from error
        state = json.dumps({"models": [], "anchors": None})
        with files.failures(folder, "create"), catalog.failures(folder, 0):
            if folder.exists() and not folder.is_dir():
                raise StoreError(f"{folder} is a file; choose another path for the index folder")
            with files.step("make folder"):
                folder.mkdir(parents=True, exist_ok=True)
            with _creating(folder):
                codefile.create(folder / schema.CODES, d)
                files.replace(folder / schema.IDS, lambda file: None)
                # The catalogue gets its name last: until then there is no index here.
                unnamed = folder / (schema.CATALOG + files.TEMPORARY)
                with files.step(f"write {schema.CATALOG}"):
                    catalog.create(unnamed, {"config": text, "d": str(d), "state": state})
                files.sync_folder(folder)
                with files.step(f"rename {schema.CATALOG}"):
                    unnamed.replace(folder / schema.CATALOG)
                files.sync_folder(folder)
                files.sync_folder(folder.parent)
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """The index at `path`, at its newest committed round.

        Raises
        ------
        StoreError
            Nothing is there, it is not an index folder, it is damaged, or newer than this package.
        """
        folder = Path(os.fsdecode(path)).absolute()
        with files.failures(folder, "open"):  # a name too long for the file system, say
            if not folder.exists():
                raise StoreError(f"no index at {folder}; 'woh-index build' makes one")
            if not folder.is_dir():
                raise StoreError(f"{folder} is a file, expected an index folder; 'woh-index build' makes one")
            if not (folder / schema.CATALOG).exists():
                raise StoreError(
                    f"no index at {folder}: {schema.CATALOG} is missing; 'woh-index build' makes one"
                )
            files.file_size(folder / schema.CATALOG)  # which a pipe has not
        return cls(folder, *catalog.read(folder, lambda connection: catalog.settings(connection, folder)))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapped files; the Store cannot be used afterwards."""
        self._view = None

    @property
    def snapshot(self) -> Snapshot:
        """The committed state that is being served."""
        return self._seen().snapshot

    @property
    def ntotal(self) -> int:
        """Rows in the codes file."""
        return self.snapshot.ntotal

    def refresh(self) -> bool:
        """Follow the writer to the newest committed state; True if it is another one."""
        with self._refreshing:
            newest = catalog.read(self.path, catalog.snapshot)
            if newest == self._seen().snapshot:
                return False
            self._view = self._look()
            return True

    def search(self, codes: NDArray[np.uint8], k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Hamming distances and ids of the k nearest codes, both (n, k).

        Ties: smaller distance first, then the smaller row. Where there are fewer than k codes the rest is
        2147483647 and -1.

        Parameters
        ----------
        codes : (n, d // 8) array of uint8
            Packed and padded as the stored ones; any strides.
        k : int
            At least 1; may exceed ntotal.

        Raises
        ------
        InputError
            Another shape or dtype, or k below 1.
        """
        return self._seen().search(codes, k)

    def search_codes(
        self, codes: NDArray[np.uint8], k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
        """As :meth:`search`, with the codes found, (n, k, d // 8): zeros where there are fewer than k."""
        return self._seen().search_codes(codes, k)

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The stored codes of `ids`, (n, d // 8); StoreError names the first id that is not there."""
        rows = [item.row for item in self.items(ids)]
        found: NDArray[np.uint8] = self._seen().mapped.codes[np.asarray(rows, dtype=np.intp)]
        return found

    def items(self, ids: ArrayLike) -> list[Item]:
        """The items with these ids, in the order asked; StoreError names the first that is not there."""
        wanted = np.asarray(ids)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"ids have dtype {wanted.dtype}, expected integers")
        asked = wanted.ravel().tolist()
        ntotal = self.ntotal
        # Sorted and without repeats: each leaf of the table is visited once. Beyond int64 is never there.
        sought = sorted({id_ for id_ in asked if id_ < 2**63})
        found = catalog.read(self.path, lambda connection: catalog.items(connection, sought, ntotal))
        missing = next((id_ for id_ in asked if id_ not in found), None)
        if missing is not None:
            raise StoreError(f"id {missing} is not in {self.path}")
        return [found[id_] for id_ in asked]

    def id_of_key(self, key: str) -> int | None:
        """The id of the item with this key, None if no item has it."""
        select, values = (
            "SELECT id FROM items WHERE deleted IS NULL AND key = ? AND row < ?",
            (key, self.ntotal),
        )
        row = catalog.read(self.path, lambda connection: connection.execute(select, values).fetchone())
        return None if row is None else int(row[0])

    def rounds(self) -> list[Round]:
        """Every round up to the snapshot's, oldest first."""
        last = self.snapshot.round
        return catalog.read(self.path, lambda connection: catalog.rounds(connection, 1, last))

    def round(self, number: int) -> Round:
        """The record of one committed round; StoreError if there is none."""
        found = catalog.read(self.path, lambda connection: catalog.rounds(connection, number, number))
        if not found:
            raise StoreError(f"{self.path} has no round {number}; its newest is {self.snapshot.round}")
        return found[0]

    def tag_rows(self) -> list[TagRow]:
        """(column, tag, count, vector) of every tag, by column, as of the newest commit."""
        return catalog.read(self.path, catalog.tags)

    def model(self) -> Model:
        """The snapshot's model: arrays by name, read when asked for.

        Raises
        ------
        StoreError
            No round has written a model yet.
        """
        model = self._seen().model
        if model is None:
            raise StoreError(f"{self.path} has no model yet; learn a first chunk with 'woh-index update'")
        return model

    def anchors(self) -> NDArray[Any] | None:
        """The anchors, memory-mapped; None while the model carries its own, since they may still change."""
        if "A" in self.model():
            return None
        return read_npy(self.path / schema.ANCHORS)

    def check_model(self) -> None:
        """StoreError unless the files of the model are those that were committed, to the byte.

        For what must not go wrong silently: a query is content with the CRC of each array it reads.
        """
        self.model().check(self.snapshot.fingerprint)
        if "A" not in self.model():
            with files.failures(self.path, "read"):
                check_file(self.path / schema.ANCHORS, catalog.read(self.path, catalog.state)["anchors"])

    def sizes(self) -> dict[str, int]:
        """Bytes of every file in the folder, by name."""
        with files.failures(self.path, "list"), os.scandir(self.path) as entries:
            return {
                entry.name: entry.stat().st_size for entry in sorted(entries, key=lambda entry: entry.name)
            }

    @contextmanager
    def writing(self, timeout: float = 10.0) -> Iterator[Writing]:
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
        self._seen()
        keep = max(1, int(self.config.get("keep_models", _KEEP_MODELS)))
        with catalog.locked(self.path, timeout) as connection:
            update = Writing(self.path, connection, self.d, keep)
            try:
                self.refresh()
                yield update
            finally:
                update.end()
        self.refresh()

    def _seen(self) -> View:
        if self._view is None:
            raise StoreError(f"{self.path} was closed; open it again")
        return self._view

    def _look(self) -> View:
        """The newest committed state, mapped."""
        for _ in range(_ATTEMPTS):
            newest = catalog.read(self.path, catalog.snapshot)
            try:
                with files.failures(self.path, "open"):
                    return View.open(self.path, self.d, newest)
            except StoreError as error:
                # The model of a state that a writer has just left may be gone; the next state has its own.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                failed = error
        raise StoreError(f"{self.path / str(newest.model)} is missing; restore it from a backup") from failed


@contextmanager
def _creating(folder: Path) -> Iterator[None]:
    """Alone in an empty folder; two creations at once, or one over anything of value, are refused."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"another process is making an index at {folder}; wait for it, or choose another path"
            ) from None
        if (folder / schema.CATALOG).exists():
            raise StoreError(f"{folder} holds an index already; add to it, or choose another path")
        for path in folder.iterdir():
            # A creation that died leaves only these, without a code or an id in them.
            unnamed = path.name.removesuffix(files.TEMPORARY)
            limit = {schema.CODES: codefile.START, schema.IDS: 0}.get(unnamed, -1)
            unborn = path.name.startswith(schema.CATALOG + files.TEMPORARY)
            if not unborn and not (path.is_file() and path.stat().st_size <= limit):
                raise StoreError(f"{folder} is not empty ({path.name}); choose another path for the index")
            if unborn:
                path.unlink()
        yield
    finally:
        os.close(handle)
