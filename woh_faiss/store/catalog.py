"""The catalogue: SQLite connections, their errors in words, and what the tables say."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from woh_faiss.errors import LockedError, StoreError, WOHError

from . import schema, sums
from .records import Item, Round, Snapshot, State

T = TypeVar("T")
#: Values a SELECT asks for at once; far below SQLite's limit on parameters.
BATCH = 500
#: Seconds a reader waits for the moment in which the last writer folds up the write-ahead log.
_READER_PATIENCE = 10.0


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
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{folder / schema.CATALOG} {way_out} (SQLite: {reason})") from error


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
    with failures(folder, _READER_PATIENCE), _sense(path):
        try:
            with closing(_connect(path, "mode=ro", _READER_PATIENCE)) as connection:
                return query(connection)
        except sqlite3.OperationalError as error:
            # SQLite wants its two side files even to read; in a folder closed to us it cannot make them.
            closed = _primary(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not closed or os.access(folder, os.W_OK):
                raise
        while True:
            _refuse_log(path)  # immutable would look past what is in there
            before = path.stat()
            with closing(_connect(path, "immutable=1", 0)) as connection:
                answer = query(connection)
            after = path.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                _refuse_log(path)  # a writer that came meanwhile may have renamed files already
                return answer


@contextmanager
def _sense(path: Path) -> Iterator[None]:
    """Values that SQLite reads and we cannot as a StoreError: no query depends on what a user gave."""
    try:
        yield
    except WOHError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise StoreError(f"{path} holds what has no meaning ({reason}); restore it from a backup") from error


def _refuse_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"{path.parent} is read-only and its last writer did not end cleanly; "
            "open it once where it can be written"
        )


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """A connection that holds the writer lock (BEGIN IMMEDIATE); LockedError after `timeout` seconds."""
    with failures(folder, timeout):
        connection = _connect(folder / schema.CATALOG, "mode=rw", timeout)
    with closing(connection):
        with failures(folder, timeout):
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("BEGIN IMMEDIATE")
        yield connection


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


def create(path: Path, meta: dict[str, str]) -> None:
    """A catalogue without rounds at `path`, closed: one file, with its log folded in."""
    with closing(_connect(path, "mode=rwc", 0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN")
        for statement in schema.SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        _sum_up(connection)
        connection.execute("COMMIT")


def _sum_up(connection: sqlite3.Connection) -> None:
    found = sums.Sums(connection)
    found.renew(*sums.SELECTS)
    found.store()


def migrate(connection: sqlite3.Connection) -> None:
    """Make the tables of an older format this one's, within the transaction that is open."""
    if _format(connection) == schema.FORMAT:
        return
    state, newest = read_state(connection), snapshot(connection)
    for statement in schema.FROM_1:
        connection.execute(statement)
    state.restorable = newest.round
    if state.anchors:  # by when they were written no one remembers; nobody goes back that far
        state.anchors_round = newest.round
    write_state(connection, state)
    _sum_up(connection)


def _format(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def meta(connection: sqlite3.Connection, folder: Path) -> dict[str, str]:
    """The catalogue's few named values, after a look at whose file it is and of which format."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
        raise sqlite3.DatabaseError("no woh-faiss catalogue")
    if (found := _format(connection)) > schema.FORMAT:
        raise StoreError(
            f"{folder} has format {found}, this package reads up to {schema.FORMAT}: upgrade woh-faiss"
        )
    return dict(connection.execute("SELECT name, value FROM meta"))


def read_state(connection: sqlite3.Connection) -> State:
    """What the files beside the catalogue are."""
    state = State.parse(connection.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()[0])
    if _format(connection) == 1:
        state.max_id = connection.execute("SELECT ifnull(max(max_id), -1) FROM rounds").fetchone()[0]
    return state


def write_state(connection: sqlite3.Connection, state: State) -> None:
    """Store `state`; its sum is the caller's."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (state.text(),))


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    """The newest committed state."""
    with moment(connection):
        state = read_state(connection)
        end = "ntotal" if _format(connection) == 1 else "end_row"
        row = connection.execute(
            f"SELECT round, {end}, ntotal, model, fingerprint FROM rounds ORDER BY round DESC LIMIT 1"  # noqa: S608
        ).fetchone()
    number, rows, ntotal, model, fingerprint = row or (0, 0, 0, None, None)
    if not 0 <= ntotal <= rows < 2**48 or not isinstance(state.generation, int):
        raise ValueError(f"{ntotal} items in {rows} rows, generation {state.generation}")
    if model is not None:
        schema.model_round(model)  # a name of ours, and no path
    return Snapshot(
        number,
        rows,
        ntotal,
        model,
        fingerprint,
        state.max_id + 1,
        state.generation,
        state.anchors is not None,
    )


def dead_rows(connection: sqlite3.Connection, seen: Snapshot) -> list[int]:
    """Rows of items removed by then, ascending."""
    if seen.rows == seen.ntotal:
        return []
    select = "SELECT row FROM removed WHERE row < ? AND removed <= ? ORDER BY row"
    return [row for (row,) in connection.execute(select, (seen.rows, seen.round))]


def rounds(connection: sqlite3.Connection, first: int, last: int) -> list[Round]:
    """Rounds `first` to `last`."""
    columns = ", ".join(Round.__slots__)
    if _format(connection) == 1:
        columns = columns.replace(" removed,", " 0,").replace(" end_row,", " ntotal,")
    select = f"SELECT {columns} FROM rounds WHERE round BETWEEN ? AND ? ORDER BY round"  # noqa: S608
    rows = connection.execute(select, (first, last)).fetchall()
    _demand(all(isinstance(value, (int, float)) for row in rows for value in (*row[:2], *row[3:9], row[-2])))
    return [Round(*(*row[:-1], None if row[-1] is None else json.loads(row[-1]))) for row in rows]


def tags(connection: sqlite3.Connection) -> list[tuple[int | None, str, int, bytes | None]]:
    """(column, tag, count, vector) of every tag, by column; those without one last."""
    rows = connection.execute(
        'SELECT "column", tag, count, vector FROM tags ORDER BY "column" IS NULL, "column", tag'
    ).fetchall()
    _demand(all(isinstance(tag, str) and isinstance(count, int) for _, tag, count, _ in rows))
    return rows


def batches(values: Iterable[T]) -> Iterator[list[T]]:
    """`values` in lists of at most BATCH."""
    rest = iter(values)
    while batch := list(islice(rest, BATCH)):
        yield batch


def where_in(
    connection: sqlite3.Connection, statement: str, values: Iterable[Any]
) -> Iterator[tuple[Any, ...]]:
    """Rows of `statement` (which ends in IN) for the values, a batch at a time."""
    for batch in batches(values):
        yield from connection.execute(f"{statement} ({', '.join('?' * len(batch))})", batch)


def items(
    connection: sqlite3.Connection, column: str, values: Iterable[Any], seen: Snapshot
) -> tuple[list[Item], bool]:
    """The items of the state `seen` whose `column` ("id" or "key") is among the values; and if it is stale.

    Stale: codes and ids were written anew since. Then these are all items of that id or key, removed ones
    too, and their rows are not those that `seen` has.
    """
    wanted = list(values)
    with moment(connection):
        stale = read_state(connection).generation != seen.generation
        select = f"SELECT id, row, key, tags, round FROM items WHERE {column} IN"  # noqa: S608
        rows = list(where_in(connection, select, wanted))
        if _format(connection) > 1:
            select = f"SELECT id, row, key, tags, round, removed FROM removed WHERE {column} IN"  # noqa: S608
            gone = where_in(connection, select, wanted)
            rows += [row[:5] for row in gone if stale or row[5] > seen.round]
    found = [
        Item(id_, row, key, [] if tags_ is None else json.loads(tags_), number)
        for id_, row, key, tags_, number in rows
        if stale or 0 <= row < seen.rows
    ]
    _demand(all(isinstance(item.key, (str, NoneType)) and isinstance(item.tags, list) for item in found))
    return found, stale


def _demand(sound: bool) -> None:
    """Columns of SQLite hold any type, and what was damaged might have another."""
    if not sound:
        raise ValueError("a value of another type than was written")
