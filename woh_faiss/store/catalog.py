"""The catalogue: SQLite connections, their errors in words, and what the tables say."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from woh_faiss.errors import LockedError, StoreError
from woh_faiss.validate import short

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
        said = f"SQLite: {error}" if hasattr(error, "sqlite_errorcode") else str(error)  # ours have no code
        raise StoreError(f"{folder / schema.CATALOG} {way_out} ({said})") from error
    except (UnicodeDecodeError, MemoryError) as error:  # SQLite quotes, or believes, damaged bytes
        way_out = _WAYS_OUT[sqlite3.SQLITE_CORRUPT]
        raise StoreError(f"{folder / schema.CATALOG} {way_out} ({type(error).__name__})") from error


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
    if found < 1:
        raise sqlite3.DatabaseError(f"its format is {found}")
    rows = connection.execute("SELECT name, value FROM meta")
    return dict(_typed("meta", row, {"name": str, "value": str}) for row in rows)


def settings(connection: sqlite3.Connection, folder: Path) -> tuple[dict[str, Any], int]:
    """The config, and the bits of a stored code."""
    named = meta(connection, folder)
    d = named.get("d", "")
    if not re.fullmatch("[0-9]{1,9}", d) or int(d) % 8 or not int(d):
        raise sqlite3.DatabaseError(f"meta.d is {short(d)}, expected a multiple of 8")
    return _json("meta.config", named.get("config", ""), dict), int(d)


def state(connection: sqlite3.Connection) -> dict[str, Any]:
    """The model files that are kept (`models`) and the SHA-256 of the anchors or None (`anchors`)."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
    found = _json("meta.state", row and row[0], dict)
    models = found.get("models")
    if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
        raise sqlite3.DatabaseError(f"meta.state has the models {short(models)}, expected a list of names")
    if not isinstance(found.get("anchors", 0), str | None):
        raise sqlite3.DatabaseError("meta.state has anchors that are not a SHA-256")
    return found


#: A whole number that counts something.
_COUNT = "a whole number of at least 0"


def _typed(table: str, row: tuple[Any, ...], kinds: dict[str, Any]) -> tuple[Any, ...]:
    """`row`, if its cells are of these kinds: SQLite puts any type into any column."""
    for (column, kind), value in zip(kinds.items(), row, strict=True):
        fits = isinstance(value, int) and value >= 0 if kind is _COUNT else isinstance(value, kind)
        if not fits:
            wanted = kind if kind is _COUNT else getattr(kind, "__name__", kind)
            raise sqlite3.DatabaseError(f"{table}.{column} is {short(value)}, expected {wanted}")
    return row


def _json(where: str, text: Any, kind: type[T]) -> T:
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, not JSON") from error
    if not isinstance(value, kind):
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, expected a {kind.__name__}")
    return value


def _model_name(value: str | None) -> str | None:
    """The name of a model file: never a path out of the folder."""
    if value is not None and not re.fullmatch(r"model-[0-9]{1,19}\.npz", value):
        raise sqlite3.DatabaseError(f"rounds.model is {short(value)}, expected model-NUMBER.npz")
    return value


_SNAPSHOT = {
    **{"round": _COUNT, "ntotal": _COUNT, "model": str | None, "fingerprint": str | None},
    "max_id": int,
}
_ROUND = {
    **{"round": _COUNT, "time": float, "kind": str, "n": _COUNT, "first_row": _COUNT, "ntotal": _COUNT},
    **{"max_id": int, "trained": _COUNT, "checksum": str, "model": str | None, "fingerprint": str | None},
    **{"chunk_hash": str, "seconds": float, "health": str | None},
}
_TAG = {"column": int | None, "tag": str, "count": _COUNT, "vector": bytes | None}
_ITEM = {"id": int, "row": _COUNT, "key": str | None, "tags": str | None, "round": _COUNT}


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    """The newest committed state: one SELECT, so it is one moment's."""
    row = connection.execute(
        "SELECT round, ntotal, model, fingerprint, max_id FROM rounds ORDER BY round DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return Snapshot(0, 0, None, None, 0)
    number, ntotal, model, fingerprint, max_id = _typed("rounds", row, _SNAPSHOT)
    if max_id < -1 or (model is None) != (fingerprint is None):
        raise sqlite3.DatabaseError(f"round {number} has max_id {max_id} and the model {short(model)}")
    return Snapshot(number, ntotal, _model_name(model), fingerprint, max_id + 1)


def rounds(connection: sqlite3.Connection, first: int, last: int) -> list[Round]:
    """Rounds `first` to `last`."""
    columns = ", ".join(Round.__slots__)
    select = f"SELECT {columns} FROM rounds WHERE round BETWEEN ? AND ? ORDER BY round"  # noqa: S608
    rows = connection.execute(select, (first, last))
    return [Round(*(*_typed("rounds", row, _ROUND)[:-1], _health(row[-1]))) for row in rows]


def _health(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    health = _json("rounds.health", text, dict)
    if not all(
        isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
        for value in health.values()
    ):
        raise sqlite3.DatabaseError(f"rounds.health is {short(text)}, expected numbers")
    return health


def tags(connection: sqlite3.Connection) -> list[tuple[int | None, str, int, bytes | None]]:
    """(column, tag, count, vector) of every tag, by column; those without one last."""
    rows = connection.execute(
        'SELECT "column", tag, count, vector FROM tags ORDER BY "column" IS NULL, "column", tag'
    )
    found: list[Any] = [_typed("tags", row, _TAG) for row in rows]
    return found


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


def items(connection: sqlite3.Connection, ids: Iterable[int], ntotal: int) -> dict[int, Item]:
    """Live items among the first `ntotal` rows, by id."""
    select = "SELECT id, row, key, tags, round FROM items WHERE deleted IS NULL AND id IN"
    rows = (_typed("items", row, _ITEM) for row in where_in(connection, select, ids))
    return {
        id_: Item(id_, row, key, [] if tags_ is None else _item_tags(tags_), number)
        for id_, row, key, tags_, number in rows
        if row < ntotal
    }


def _item_tags(text: str) -> list[str]:
    tags = _json("items.tags", text, list)
    if not all(isinstance(tag, str) for tag in tags):
        raise sqlite3.DatabaseError(f"items.tags is {short(text)}, expected a list of text")
    return tags
