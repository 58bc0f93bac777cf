"""Documents in an SQLite file of their own, and pending work on their codes."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, LockedError, StoreError
from woh_faiss.store import database, files
from woh_faiss.store.database import where_in

from .document import Entry
from .document_filter import DocumentFilter

#: `PRAGMA user_version` of the file; a newer one is refused.
FORMAT = 1

# A document that is replaced gets a new number, so that a code always means the one text it was made from.
# Embeddings have a table of their own: once it is empty, the file has given their space back.
_SCHEMA = (
    "CREATE TABLE documents (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, text TEXT,"
    " metadata TEXT NOT NULL, tags TEXT NOT NULL, more TEXT NOT NULL)",
    "CREATE TABLE waiting (number INTEGER PRIMARY KEY, untagged INTEGER NOT NULL, embedding BLOB NOT NULL)",
    "CREATE INDEX turn ON waiting (untagged, number)",
    "CREATE TABLE gone (number INTEGER PRIMARY KEY)",
    "CREATE TABLE state (changes INTEGER NOT NULL, d INTEGER)",
    "INSERT INTO state VALUES (0, NULL)",
    f"PRAGMA user_version = {FORMAT}",
)

_SELECT = (
    "SELECT number, id, text, metadata, tags, more, embedding FROM documents LEFT JOIN waiting USING (number)"
)

#: Documents that a filter lets through, or is to be asked about. Without the LIMIT `met` is computed twice.
_MET = (
    "SELECT number, met FROM (SELECT number, {} AS met FROM documents LIMIT -1) WHERE met IS NOT 0"
    " ORDER BY number"
)


def _create(path: Path) -> None:
    """An empty file at `path`, made under another name: what is there is whole, or another process's."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            unnamed = Path(folder, path.name)
            with closing(sqlite3.connect(unnamed, isolation_level=None)) as connection:
                connection.execute("PRAGMA auto_vacuum = FULL")
                connection.execute("PRAGMA journal_mode = WAL")
                for statement in ("BEGIN", *_SCHEMA, "COMMIT"):
                    connection.execute(statement)
            with suppress(FileExistsError):
                os.link(unnamed, path)
            files.sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be made: {error}; check free space and permissions") from error


def _tables(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """All tables, indexes, views and triggers: kind, name and text."""
    select = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    return connection.execute(select).fetchmany(100)


@cache
def _expected() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        return _tables(connection)


class Waiting(NamedTuple):
    """The documents that have an embedding and no code yet, and the codes that mean nothing any more."""

    numbers: NDArray[np.int64]
    embeddings: NDArray[np.float64]
    gone: NDArray[np.int64]
    d: int | None


class DocumentDB:
    """The documents of a store, in the SQLite file at `path`, which is made if it is missing.

    Every call has a connection of its own: any number of threads and processes may call.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._path, self._timeout = path, timeout
        self._held: tuple[int, Waiting] | None = None
        if not os.path.lexists(path):
            _create(path)
        with self._opened("mode=ro", timeout) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise StoreError(
                    f"{path} has format {version}, this package reads up to {FORMAT}: upgrade woh-faiss"
                )
            if version < FORMAT or _tables(connection) != _expected():
                raise StoreError(
                    f"{path} does not hold a document store's tables; put back the file that belongs there"
                )
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise StoreError(
                f"{path} is in journal mode {mode}, expected wal; if it is a copy of your own, run "
                "PRAGMA journal_mode = WAL on it"
            )

    # ---- reading ------------------------------------------------------------------------------------

    def count(self) -> int:
        """Documents there are."""
        with self._connected() as connection:
            return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])

    def entries(self, column: str, values: Sequence[Any]) -> dict[Any, Entry]:
        """The documents whose `id` or `number` is among the values, by it."""
        found = {}
        with self._connected() as connection:
            for row in where_in(connection, f"{_SELECT} WHERE {column} IN", values):
                entry = self._entry(row)
                found[getattr(entry, column)] = entry
        return found

    def matching(self, keep: DocumentFilter | None = None) -> Iterator[Entry]:
        """All documents, or those that a filter lets through, the first written first."""
        with self._connected() as connection, database.moment(connection):
            if keep is None:
                for row in connection.execute(f"{_SELECT} ORDER BY number"):
                    yield self._entry(row)
                return
            for batch in database.batches(connection.execute(_MET.format(keep.sql), keep.values)):
                met = dict(batch)
                yield from (
                    it for it in self._in_turn(connection, [*met]) if met[it.number] or keep.matches(it)
                )

    def numbers(self, keep: DocumentFilter) -> list[int]:
        """The numbers of `matching`."""
        found: list[int] = []
        with self._connected() as connection, database.moment(connection):
            for batch in database.batches(connection.execute(_MET.format(keep.sql), keep.values)):
                asked = self._in_turn(connection, [number for number, met in batch if met is None])
                matching = {entry.number for entry in asked if keep.matches(entry)}
                found += [number for number, met in batch if met or number in matching]
        return found

    def waiting(self) -> Waiting:
        """What has no code yet, read again only after a change."""
        with self._connected() as connection:
            connection.execute("BEGIN")
            changes, d = connection.execute("SELECT changes, d FROM state").fetchone()
            if self._held is not None and self._held[0] == changes:
                return self._held[1]
            gone = np.array([n for (n,) in connection.execute("SELECT number FROM gone")], np.int64)
            rows = connection.execute("SELECT number, embedding FROM waiting ORDER BY number").fetchall()
            numbers = np.array([number for number, _ in rows], np.int64)
            waiting = Waiting(numbers, self._matrix([blob for _, blob in rows], d), gone, d)
        self._held = changes, waiting
        return waiting

    # ---- writing ------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, timeout: float | None = None) -> Iterator[DocumentTransaction]:
        """One transaction under SQLite's writer lock: all of it, or on any error nothing."""
        with self._connected(timeout=timeout) as connection:
            connection.execute("PRAGMA synchronous = FULL")  # durable before its code is
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("BEGIN IMMEDIATE")
            yield DocumentTransaction(self, connection)
            if connection.total_changes:
                connection.execute("UPDATE state SET changes = changes + 1")
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self, timeout: float | None = None) -> Iterator[sqlite3.Connection]:
        """A connection to tables that were compared, closed afterwards; SQLite's errors as ours."""
        with self._opened("mode=rw", self._timeout if timeout is None else timeout) as connection:
            connection.set_progress_handler(None, 0)  # which ends a statement about 10,000 documents
            yield connection

    @contextmanager
    def _opened(self, mode: str, waited: float) -> Iterator[sqlite3.Connection]:
        try:
            with closing(database.connect(self._path, mode, waited)) as connection:
                yield connection
        except sqlite3.Error as error:
            if database.taken(error):
                raise LockedError(
                    f"{self._path} is being written by another process; waited {waited:g} s; "
                    "try again when that has ended, or give a longer timeout"
                ) from error
            raise StoreError(f"{self._path} {database.way_out(error)}") from error

    def _in_turn(self, connection: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[Entry]:
        """The documents with these numbers, the least first."""
        wanted = " WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number"
        return map(self._entry, connection.execute(_SELECT + wanted, (json.dumps(numbers),)))

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        number, id_, text, metadata, tags, more, blob = row
        try:
            embedding = None if blob is None else np.frombuffer(blob, "<f8").astype(np.float64)
            return Entry(
                id_, text, json.loads(metadata), json.loads(tags), json.loads(more), embedding, number
            )
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self._path} is damaged at document {number}; restore it from a backup"
            ) from error

    def _matrix(self, blobs: Sequence[bytes], d: int | None) -> NDArray[np.float64]:
        width = d or 0
        if any(not isinstance(blob, bytes) or len(blob) != 8 * width for blob in blobs):
            raise StoreError(
                f"{self._path} is damaged: an embedding is not {width} numbers; restore it from a backup"
            )
        return np.frombuffer(b"".join(blobs), "<f8").reshape(len(blobs), width).astype(np.float64)


class DocumentTransaction:
    """What a writer may do under the lock that `DocumentDB.writing` holds."""

    def __init__(self, db: DocumentDB, connection: sqlite3.Connection) -> None:
        self._db, self._connection = db, connection

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that a document has."""
        return {id_ for (id_,) in where_in(self._connection, "SELECT id FROM documents WHERE id IN", ids)}

    def put(self, entries: Sequence[Entry]) -> None:
        """Store documents; those with a known id take the old one's place.

        Raises
        ------
        InputError
            Embeddings have another width than those before.
        """
        widths = {len(entry.embedding) for entry in entries if entry.embedding is not None}
        d = self._one("SELECT d FROM state")
        if widths and d is None:
            d = max(widths)
            self._connection.execute("UPDATE state SET d = ?", (d,))
        if widths - {d}:
            raise InputError(
                f"embeddings have {max(widths - {d})} numbers, those of the store have {d}; "
                "use the model they were made with, or another folder"
            )
        self.drop([entry.id for entry in entries])
        for entry in entries:
            number = self._connection.execute(
                "INSERT INTO documents (id, text, metadata, tags, more) VALUES (?, ?, ?, ?, ?)",
                (entry.id, entry.text, *map(json.dumps, (entry.metadata, entry.tags, entry.more))),
            ).lastrowid
            if entry.embedding is not None:
                self._connection.execute(
                    "INSERT INTO waiting VALUES (?, ?, ?)",
                    (number, not entry.tags, entry.embedding.astype("<f8").tobytes()),
                )

    def drop(self, ids: Sequence[str] | None) -> int:
        """Remove the documents with these ids, or all; returns how many there were."""
        if ids is None:
            self._connection.execute("INSERT INTO gone SELECT number FROM documents")
            self._connection.execute("DELETE FROM waiting")
            return self._connection.execute("DELETE FROM documents").rowcount
        named = [(id_,) for id_ in ids]
        of_id = "SELECT number FROM documents WHERE id = ?"
        self._connection.executemany(f"INSERT INTO gone {of_id}", named)
        self._connection.executemany(f"DELETE FROM waiting WHERE number = ({of_id})", named)  # noqa: S608
        return self._connection.executemany("DELETE FROM documents WHERE id = ?", named).rowcount

    def describe(self, id_: str, metadata: dict[str, Any]) -> None:
        """New metadata for a document; its code stays."""
        self._connection.execute(
            "UPDATE documents SET metadata = ? WHERE id = ?", (json.dumps(metadata), id_)
        )

    def gone(self) -> list[int]:
        """Numbers whose codes are to be removed."""
        return [number for (number,) in self._connection.execute("SELECT number FROM gone")]

    def tagged(self) -> int:
        """Waiting documents that have tags."""
        return int(self._one("SELECT count(*) FROM waiting WHERE untagged = 0"))

    def next_waiting(self, most: int) -> list[Entry]:
        """Up to `most` documents that wait for a code, those with tags first."""
        select = _SELECT.replace("LEFT JOIN", "JOIN") + " ORDER BY untagged, waiting.number LIMIT ?"
        return [self._db._entry(row) for row in self._connection.execute(select, (most,)).fetchall()]

    def coded(self, numbers: Sequence[int]) -> None:
        """These have a code now: their embeddings go."""
        self._connection.executemany(
            "DELETE FROM waiting WHERE number = ?", [(number,) for number in numbers]
        )

    def forget(self, numbers: Sequence[int]) -> None:
        """The codes of these are removed."""
        self._connection.executemany("DELETE FROM gone WHERE number = ?", [(number,) for number in numbers])

    def _one(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]
