"""The catalogue: SQLite connections, their errors in words, and what the tables say."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from woh_faiss.errors import LockedError, StoreError

from . import schema

T = TypeVar("T")
#: Values a SELECT asks for at once; far below SQLite's limit on parameters.
BATCH = 500
#: Seconds a reader waits for the moment in which the last writer folds up the write-ahead log.
_READER_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state.

    Attributes
    ----------
    round : int
        The newest round, 0 for none.
    ntotal : int
        Rows in the codes file.
    model : str or None
        Name of the newest model file.
    fingerprint : str or None
        SHA-256 of its bytes, in hex.
    next_id : int
        The largest id ever used, plus 1.
    """

    round: int
    ntotal: int
    model: str | None
    fingerprint: str | None
    next_id: int


@dataclass(frozen=True, slots=True)
class Round:
    """One committed update.

    Attributes
    ----------
    round : int
        From 1.
    time : float
        Seconds since 1970, UTC.
    kind : str
        "trained" or "encoded".
    n, first_row, ntotal : int
        Items added, row of the first, rows afterwards.
    max_id : int
        The largest id ever used up to this round, -1 for none.
    trained : int
        Items the model learned from.
    checksum : str
        SHA-256 of the appended code bytes followed by the appended id bytes, in hex.
    model, fingerprint : str or None
        Model file in force after the round and the SHA-256 of its bytes.
    chunk_hash : str
        The caller's own hash of the chunk.
    seconds : float
        What the round took.
    health : dict or None
        Figures of the codes, as the caller gave them.
    """

    round: int
    time: float
    kind: str
    n: int
    first_row: int
    ntotal: int
    max_id: int
    trained: int
    checksum: str
    model: str | None
    fingerprint: str | None
    chunk_hash: str
    seconds: float
    health: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Item:
    """One live item: the user's id and key, its row in the codes file, its tags, the round that added it."""

    id: int
    row: int
    key: str | None
    tags: list[str]
    round: int


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


@contextmanager
def failures(folder: Path, waited: float) -> Iterator[None]:
    """SQLite's errors inside as a StoreError or LockedError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise LockedError(
                f"{folder} is being written by another process; waited {waited:g} s; "
                "try again when that has ended, or give a longer timeout"
            ) from error
        way_out = _WAYS_OUT.get(code, "cannot be used; restore it from a backup, or build the index again")
        raise StoreError(f"{folder / schema.CATALOG} {way_out} (SQLite: {error})") from error


def _connect(path: Path, options: str, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )


def read(folder: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """`query`'s answer, on a read-only connection of its own: safe in threads and after a fork.

    Raises
    ------
    StoreError
        The catalogue is missing, damaged, or may not be read.
    """
    path = folder / schema.CATALOG
    with failures(folder, _READER_PATIENCE):
        try:
            with closing(_connect(path, "mode=ro", _READER_PATIENCE)) as connection:
                return query(connection)
        except sqlite3.OperationalError as error:
            # SQLite wants its two side files even to read; in a folder closed to us it cannot make them.
            closed = _primary(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not closed or os.access(folder, os.W_OK):
                raise
        log = path.with_name(path.name + "-wal")
        while True:
            if log.exists() and log.stat().st_size:  # immutable would look past what is in there
                raise StoreError(
                    f"{folder} is read-only and its last writer did not end cleanly; "
                    "open it once where it can be written"
                )
            before = path.stat()
            with closing(_connect(path, "immutable=1", 0)) as connection:
                answer = query(connection)
            after = path.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return answer


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """A connection that holds the writer lock (BEGIN IMMEDIATE); LockedError after `timeout` seconds."""
    with failures(folder, timeout):
        connection = _connect(folder / schema.CATALOG, "mode=rw", timeout)
    with closing(connection):
        with failures(folder, timeout):
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
        yield connection


def create(path: Path, meta: dict[str, str]) -> None:
    """A catalogue without rounds at `path`, closed: one file, with its log folded in."""
    with closing(_connect(path, "mode=rwc", 0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN; {schema.SCHEMA}")
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")


def meta(connection: sqlite3.Connection, folder: Path) -> dict[str, str]:
    """The catalogue's few named values, after a look at whose file it is and of which format."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
        raise sqlite3.DatabaseError("no woh-faiss catalogue")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > schema.FORMAT:
        raise StoreError(
            f"{folder} has format {found}, this package reads up to {schema.FORMAT}: upgrade woh-faiss"
        )
    return dict(connection.execute("SELECT name, value FROM meta"))


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    """The newest committed state: one SELECT, so it is one moment's."""
    row = connection.execute(
        "SELECT round, ntotal, model, fingerprint, max_id FROM rounds ORDER BY round DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return Snapshot(0, 0, None, None, 0)
    number, ntotal, model, fingerprint, max_id = row
    return Snapshot(number, ntotal, model, fingerprint, max_id + 1)


def rounds(connection: sqlite3.Connection, first: int, last: int) -> list[Round]:
    """Rounds `first` to `last`."""
    columns = ", ".join(Round.__slots__)
    select = f"SELECT {columns} FROM rounds WHERE round BETWEEN ? AND ? ORDER BY round"  # noqa: S608
    rows = connection.execute(select, (first, last))
    return [Round(*(*row[:-1], None if row[-1] is None else json.loads(row[-1]))) for row in rows]


def tags(connection: sqlite3.Connection) -> list[tuple[int | None, str, int, bytes | None]]:
    """(column, tag, count, vector) of every tag, by column; those without one last."""
    return connection.execute(
        'SELECT "column", tag, count, vector FROM tags ORDER BY "column" IS NULL, "column", tag'
    ).fetchall()


def batches(values: Iterable[T]) -> Iterator[list[T]]:
    """`values` in lists of at most BATCH."""
    rest = iter(values)
    while batch := list(islice(rest, BATCH)):
        yield batch


def where_in(connection: sqlite3.Connection, select: str, values: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of `select` (which ends in IN) for the values, a batch at a time."""
    for batch in batches(values):
        yield from connection.execute(f"{select} ({', '.join('?' * len(batch))})", batch)


def items(connection: sqlite3.Connection, ids: Iterable[int], ntotal: int) -> dict[int, Item]:
    """Live items among the first `ntotal` rows, by id."""
    select = "SELECT id, row, key, tags, round FROM items WHERE deleted IS NULL AND id IN"
    return {
        id_: Item(id_, row, key, [] if tags_ is None else json.loads(tags_), number)
        for id_, row, key, tags_, number in where_in(connection, select, ids)
        if row < ntotal
    }
