"""A copy of one committed state, whole or not at all, while a writer may continue."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, NamedTuple

from woh_faiss.errors import InputError, StoreError

from . import catalog, codefile, database, files, schema
from .records import Snapshot

#: How often a writer is followed that takes away what is about to be opened.
_ATTEMPTS = 20
#: Bytes copied at a time.
_BLOCK = 1 << 20


class _Part(NamedTuple):
    """A file to be copied: its name in the copy, the bytes it begins with, then those of an open file."""

    name: str
    head: bytes
    file: IO[bytes]
    start: int
    length: int


def backup(folder: Path, d: int, known: Snapshot, destination: Path) -> Snapshot:
    """Copy the newest committed state to `destination`, which must not exist; see `WOHIndex.backup`.

    Parameters
    ----------
    folder : Path
    d : int
        Bits of a stored code.
    known : Snapshot
        A state of this index: a folder that another index has taken is not copied.
    destination : Path

    Raises
    ------
    InputError
        The destination is there, is in the index folder, or its parent is missing.
    StoreError
        A file is missing or damaged, or the copy cannot be written; nothing is left of it.
    """
    _check_place(folder, destination)
    with files.failures(destination, "write"), ExitStack() as undo:
        unfinished = Path(tempfile.mkdtemp(".backup", ".woh-index-", destination.parent))
        undo.callback(shutil.rmtree, unfinished, ignore_errors=True)
        with ExitStack() as opened:
            seen, parts = _pinned(folder, d, known, unfinished, opened)
            for part in parts:
                _copy(part, unfinished, folder)
        files.sync_folder(unfinished)
        unfinished.chmod(stat.S_IMODE(folder.stat().st_mode))
        _check_place(folder, destination)  # somebody else may have been there meanwhile
        files.publish(unfinished, destination)
    return seen


def _check_place(folder: Path, destination: Path) -> None:
    if os.path.lexists(destination):
        raise InputError(f"{destination} exists already; choose another place for the copy")
    parent = destination.parent
    if not parent.is_dir():
        raise InputError(f"{parent} is not a folder; make it, or choose another place for the copy")
    if folder.resolve() in (parent.resolve(), *parent.resolve().parents):
        raise InputError(f"{destination} is in the index folder {folder}; choose another place for the copy")


def _pinned(
    folder: Path, d: int, known: Snapshot, unfinished: Path, opened: ExitStack
) -> tuple[Snapshot, list[_Part]]:
    """The newest state, its catalogue copied, and its other files, open: no writer takes them away now."""

    def look(connection: sqlite3.Connection) -> tuple[Snapshot, list[_Part]] | None:
        with database.moment(connection):
            catalog.rewritten(connection, folder, known)
            seen, state = catalog.snapshot(connection), catalog.read_state(connection)
            names = [*state.models, *([schema.ANCHORS] if state.anchors else [])]
            with ExitStack() as attempt:
                parts = _open(folder, d, seen, [*names, *(it.name for it in state.ann)], attempt)
                # A writer renames files after its COMMIT: if there was none, these belong together.
                if database.read(folder, catalog.snapshot).generation != seen.generation:
                    return None
                opened.push(attempt.pop_all())
            _copy_catalogue(connection, unfinished, folder)
        return seen, parts

    missing: FileNotFoundError | None = None
    for _ in range(_ATTEMPTS):
        try:
            if (found := database.read(folder, look)) is not None:
                return found
            missing = None
        except FileNotFoundError as error:  # a writer removed it, if it was ever there
            missing = error
    if missing is not None:
        raise StoreError(f"{missing.filename} is missing; restore it from a backup") from missing
    raise StoreError(f"{folder} was rewritten each time it was copied; try again")


def _open(folder: Path, d: int, seen: Snapshot, names: list[str], opened: ExitStack) -> list[_Part]:
    codes, ids = (files.newest(folder, name, seen.generation) for name in (schema.CODES, schema.IDS))
    codefile.check(codes, d)
    length, head = seen.rows * (d // 8), codefile.header(d, seen.rows)
    parts = [
        _Part(schema.CODES, head, opened.enter_context(files.open_member(codes)), codefile.START, length),
        _Part(schema.IDS, b"", opened.enter_context(files.open_member(ids)), 0, 8 * seen.rows),
    ]
    for name in names:
        file = opened.enter_context(files.open_member(folder / name))
        parts.append(_Part(name, b"", file, 0, os.fstat(file.fileno()).st_size))
    return parts


def _copy(part: _Part, unfinished: Path, folder: Path) -> None:
    size = os.fstat(part.file.fileno()).st_size
    if size < part.start + part.length:
        raise files.short(folder / part.name, size, part.start + part.length)
    part.file.seek(part.start)
    with files.open_member(unfinished / part.name, "xb") as file:
        with files.step(f"write {part.name}"):
            file.write(part.head)
            left = part.length
            while left and (block := part.file.read(min(left, _BLOCK))):
                file.write(block)
                left -= len(block)
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(part.file.fileno()).st_mode))
        files.sync(file, part.name)


def _copy_catalogue(connection: sqlite3.Connection, unfinished: Path, folder: Path) -> None:
    """What the transaction that is open sees, by SQLite's own means; an earlier attempt is written over."""
    path = unfinished / schema.CATALOG
    with closing(database.connect(path, "mode=rwc", 0)) as copy, files.step(f"write {schema.CATALOG}"):
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL")
    path.chmod(stat.S_IMODE((folder / schema.CATALOG).stat().st_mode))
    with files.open_member(path) as file:
        files.sync(file, schema.CATALOG)
