"""SQLite connections to a catalogue, and its errors in words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from woh_faiss.errors import LockedError, StoreError

from . import files, forking, schema

T = TypeVar("T")
#: Values a SELECT asks for at once; far below SQLite's limit on parameters.
BATCH = 500
#: Seconds a reader waits for the moment in which the last writer folds up the write-ahead log.
_READER_PATIENCE = 10.0

#: Seconds between two tries for the writer lock.
_RETRY = 0.01
#: What SQLite says where another connection holds what is wanted.
_TAKEN = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_WAYS_OUT = {
    sqlite3.SQLITE_NOTADB: "is not a catalogue; restore it from a backup, or build the index again",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup, or build the index again",
    sqlite3.SQLITE_FULL: "cannot be written; free space on its disk, the index is as before",
    sqlite3.SQLITE_READONLY: "cannot be written; check the permissions of the folder and its files",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the permissions of the folder and its files",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check its disk",
}


def _primary(error: sqlite3.Error) -> int:
    """The primary result code; the extended ones keep it in their low byte."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) or 0) & 0xFF


#: Who holds the writer lock: its process id, and since when, in seconds since 1970.
HOLDER = f"{schema.CATALOG}-writer"
#: Bytes of that which are read.
_NOTE = 64


def _holder(folder: Path) -> str:
    """Who holds the lock, for a message; what is said there may be of one who died."""
    try:
        with files.open_member(folder / HOLDER) as note:
            pid, since = map(int, note.read(_NOTE).split())
        with suppress(PermissionError):  # somebody else's process
            os.kill(max(pid, 1), 0)
        when = datetime.fromtimestamp(since).astimezone()
    except (OSError, ValueError, OverflowError, StoreError):
        return "another process"
    return f"{'this ' if pid == os.getpid() else ''}process {pid} since {when:%Y-%m-%d %H:%M:%S}"


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Says meanwhile who holds the lock; a hint that nothing depends on."""
    note = folder / HOLDER
    with suppress(OSError, StoreError), files.open_new(note) as file:
        file.write(b"%d %d\n" % (os.getpid(), time.time()))
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()


@contextmanager
def failures(folder: Path, waited: float) -> Iterator[None]:
    """SQLite's errors inside as a StoreError or LockedError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary(error)
        if code in _TAKEN:
            raise LockedError(
                f"{folder} is being written by {_holder(folder)}; waited {waited:g} s; "
                "try again when that has ended, or give a longer timeout"
            ) from error
        way_out = _WAYS_OUT.get(code, "cannot be used; restore it from a backup, or build the index again")
        said = f"SQLite: {error}" if hasattr(error, "sqlite_errorcode") else str(error)  # ours have no code
        raise StoreError(f"{folder / schema.CATALOG} {way_out} ({said})") from error
    except (UnicodeDecodeError, MemoryError, OverflowError) as error:  # it quotes, or believes, damaged bytes
        way_out = _WAYS_OUT[sqlite3.SQLITE_CORRUPT]
        raise StoreError(f"{folder / schema.CATALOG} {way_out} ({type(error).__name__})") from error


def connect(
    path: Path, options: str, timeout: float, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """A connection that begins no transaction by itself; SQLite's files must be plain ones.

    SQLite opens them by their names: whoever may write to the folder may still exchange them in between.
    """
    for end in ("", "-wal", "-shm"):
        files.plain(f"{path}{end}")
    # A journal of the other kind is never ours; SQLite would play it back into the catalogue.
    if files.plain(journal := f"{path}-journal"):
        raise StoreError(f"{journal} does not belong to an index; move it elsewhere")
    connection = sqlite3.connect(
        f"{path.as_uri()}?{options}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )
    try:
        schema.distrust(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def read(folder: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """`query`'s answer, on a read-only connection of its own: safe in threads and after a fork.

    Raises
    ------
    StoreError
        The catalogue is missing, damaged, or may not be read.
    """
    path = folder / schema.CATALOG
    with forking.gate, failures(folder, _READER_PATIENCE):
        try:
            with closing(connect(path, "mode=ro", _READER_PATIENCE)) as connection:
                schema.check(connection, folder)
                return query(connection)
        except sqlite3.OperationalError as error:
            # SQLite wants its two side files even to read; in a folder closed to us it cannot make them.
            closed = _primary(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not closed or os.access(folder, os.W_OK):
                raise
        while True:
            _refuse_log(path)  # immutable would look past what is in there
            before = path.stat()
            with closing(connect(path, "immutable=1", 0)) as connection:
                schema.check(connection, folder)
                answer = query(connection)
            after = path.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                _refuse_log(path)  # a writer that came meanwhile may have renamed files already
                return answer


def _refuse_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    if files.plain(log) and log.stat().st_size:
        raise StoreError(
            f"{path.parent} is read-only and its last writer did not end cleanly; "
            "open it once where it can be written"
        )


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """A connection that holds the writer lock (BEGIN IMMEDIATE); LockedError after `timeout` seconds."""
    with failures(folder, timeout), forking.gate:
        connection = connect(folder / schema.CATALOG, "mode=rw", timeout, forking.Connection)
    with closing(connection):
        with failures(folder, timeout):
            schema.check(connection, folder)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            _begin(connection, timeout)
        with _held(folder):
            yield connection


def _begin(connection: sqlite3.Connection, timeout: float) -> None:
    """BEGIN IMMEDIATE, tried again until `timeout` is over: SQLite's own waiting hears no Ctrl-C."""
    end = time.monotonic() + timeout
    connection.execute("PRAGMA busy_timeout = 0")
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
            return
        except sqlite3.OperationalError as error:
            if _primary(error) not in _TAKEN or time.monotonic() >= end:
                raise
        time.sleep(min(_RETRY, max(0, end - time.monotonic())))


@contextmanager
def moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Statements inside see one state, whatever is committed meanwhile."""
    outermost = not connection.in_transaction
    if outermost:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if outermost and connection.in_transaction:
            connection.execute("ROLLBACK")


def batches(values: Iterable[T]) -> Iterator[list[T]]:
    """`values` in lists of at most BATCH."""
    rest = iter(values)
    while batch := list(islice(rest, BATCH)):
        yield batch


def where_in(connection: sqlite3.Connection, select: str, values: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of `select` (which ends in IN) for the values, a batch at a time."""
    for batch in batches(values):
        # All at once: a generator that is given up must not be left with an open cursor.
        yield from connection.execute(f"{select} ({', '.join('?' * len(batch))})", batch).fetchall()
