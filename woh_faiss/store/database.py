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

from . import files, fork_safety, schema, writer_lock

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
    sqlite3.SQLITE_IOERR: "cannot be read or written; check its disk and the free space on it",
    sqlite3.SQLITE_PERM: "cannot be opened; check the permissions of the folder and its files",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is; end other programs and try again",
    sqlite3.SQLITE_INTERRUPT: "was being read when that was interrupted; try again",
    sqlite3.SQLITE_PROTOCOL: "is held by a process that keeps a lock on its -shm file; "
    "end that process ('fuser' names it) and try again",
    sqlite3.SQLITE_ERROR: "does not hold what a catalogue holds; restore it from a backup, or build the "
    "index again",
}
#: Where nothing says that it is damaged.
_ASK = "cannot be used; 'woh-index verify' tells whether it is damaged"


def _primary(error: sqlite3.Error) -> int:
    """The primary result code; the extended ones keep it in their low byte."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) or 0) & 0xFF


def _holder(folder: Path) -> str:
    """Who holds the lock, for a message; what is said there may be of one who died."""
    try:
        pid, since = writer_lock.holder(folder) or (0, 0)
        with suppress(PermissionError):  # somebody else's process
            os.kill(max(pid, 1), 0)
        when = datetime.fromtimestamp(since).astimezone()
    except (OSError, ValueError, OverflowError):
        pid = 0
    if pid < 1:
        return "another process"
    return f"{'this ' if pid == os.getpid() else ''}process {pid} since {when:%Y-%m-%d %H:%M:%S}"


def _locked_out(folder: Path, waited: float) -> LockedError:
    return LockedError(
        f"{folder} is being written by {_holder(folder)}; waited {waited:g} s; "
        "try again when that has ended, or give a longer timeout"
    )


@contextmanager
def failures(folder: Path, waited: float) -> Iterator[None]:
    """SQLite's errors inside as a StoreError or LockedError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary(error)
        if code in _TAKEN:
            raise _locked_out(folder, waited) from error
        raise StoreError(f"{folder / schema.CATALOG} {way_out(error)}") from error
    except UnicodeDecodeError as error:  # it quotes damaged bytes
        damaged = _WAYS_OUT[sqlite3.SQLITE_CORRUPT]
        raise StoreError(f"{folder / schema.CATALOG} {damaged} ({type(error).__name__})") from error
    except (MemoryError, OverflowError) as error:  # damaged bytes may ask for that, and so may an argument
        raise StoreError(f"{folder / schema.CATALOG} {_ASK} ({type(error).__name__})") from error


def way_out(error: sqlite3.Error) -> str:
    """What an error of SQLite, or one of our checks of what it read, says of the file, and what to do."""
    if not hasattr(error, "sqlite_errorcode"):  # ours have no code
        return f"{_WAYS_OUT[sqlite3.SQLITE_CORRUPT]} ({error})"
    return f"{_WAYS_OUT.get(_primary(error), _ASK)} (SQLite: {error})"


def taken(error: sqlite3.Error) -> bool:
    """Whether another connection holds what was wanted."""
    return _primary(error) in _TAKEN


def check_members(path: Path) -> None:
    """StoreError unless SQLite may open the file at `path`: a plain one, and so are its log and its index.

    They are kept in WAL mode, where a rollback journal never is. One that lies there was put there: SQLite
    would play it back, and delete whatever file it names as its super-journal.
    """
    for end in ("", "-wal", "-shm"):
        files.plain(f"{path}{end}")
    journal = path.with_name(path.name + "-journal")
    if os.path.lexists(journal):
        raise StoreError(
            f"{journal} is not a file of this package, and might change or delete others when SQLite sees "
            "it; move it elsewhere"
        )


def connect(
    path: Path, options: str, timeout: float, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """A connection that begins no transaction by itself; StoreError as `check_members`.

    SQLite opens its files by their names: whoever may write to the folder may still exchange them in between.
    """
    check_members(path)
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
    with fork_safety.gate, failures(folder, _READER_PATIENCE):
        writer_lock.settle_doubt(folder, _READER_PATIENCE, lambda lock: _resolve_for_reader(folder, lock))
        try:
            with closing(connect(path, "mode=ro", _READER_PATIENCE)) as connection:
                schema.check(connection, folder)
                return query(connection)
        except sqlite3.OperationalError as error:
            # SQLite wants its two side files even to read; it cannot make them in a folder closed to us or on
            # a full disk.
            if _primary(error) not in _NO_SIDE_FILES:
                raise
            failed = error
        while True:
            _refuse_log(path, failed)  # immutable would look past what is in there
            before = _stat(path)
            with closing(connect(path, "immutable=1", 0)) as connection:
                schema.check(connection, folder)
                answer = query(connection)
            after = _stat(path)
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                _refuse_log(path, failed)  # a writer that came meanwhile may have renamed files already
                return answer


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise StoreError(
            f"{path} is missing: its folder was removed or renamed; open it where it is now"
        ) from None


#: What SQLite says where it cannot make its side files.
_NO_SIDE_FILES = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)


def _refuse_log(path: Path, failed: sqlite3.Error) -> None:
    if _log_is_empty(path):
        return
    if os.access(path.parent, os.W_OK):
        raise failed
    raise _unfinished(path.parent)


def _log_is_empty(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return not files.plain(log) or not log.stat().st_size


def _unfinished(folder: Path) -> StoreError:
    return StoreError(
        f"{folder} is read-only and its last writer did not end cleanly; open it once where it can be written"
    )


def resolve(connection: sqlite3.Connection, lock: writer_lock.WriterLock) -> None:
    """Make certain which state is the newest: a COMMIT of the same content, after the log's counted frames.

    Frames that nobody counted are overwritten by it, or recovery has counted them by now.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA user_version = {version}")  # writes a page, whatever is in it
        with files.step("COMMIT of a resolution"):
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    lock.resolved()


def _resolve_for_reader(folder: Path, lock: writer_lock.WriterLock) -> None:
    """`resolve`, as far as a reader can: where the disk is full the state that is counted is good enough."""
    if not lock.writable:
        if _log_is_empty(folder / schema.CATALOG):
            return
        raise _unfinished(folder)
    try:
        with closing(connect(folder / schema.CATALOG, "mode=rw", _READER_PATIENCE)) as connection:
            schema.check(connection, folder)
            resolve(connection, lock)
    except sqlite3.OperationalError as error:
        if _primary(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise _unfinished(folder) from error
        if _primary(error) not in (*_TAKEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[tuple[sqlite3.Connection, writer_lock.WriterLock]]:
    """A connection in a transaction under the writers' lock; LockedError after `timeout` seconds.

    What a writer that died left in doubt is resolved by then.
    """
    end = time.monotonic() + timeout
    lock = None
    try:
        with failures(folder, timeout), files.failures(folder, "write"), fork_safety.gate:
            connection = connect(folder / schema.CATALOG, "mode=rw", timeout, fork_safety.Connection)
        with closing(connection):
            with failures(folder, timeout), files.failures(folder, "write"):
                schema.check(connection, folder)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA secure_delete = ON")
                lock = writer_lock.take(folder, timeout, lambda lock: resolve(connection, lock))
                if lock is None:
                    raise _locked_out(folder, timeout)
                _begin(connection, max(0.0, end - time.monotonic()))
            yield connection, lock
    finally:
        if lock is not None:
            lock.free()


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
