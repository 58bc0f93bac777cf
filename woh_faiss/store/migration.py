"""The tables of a catalogue: made empty, or out of those of an older format."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from . import catalog, schema, sums
from .database import connect


def create(path: Path, meta: dict[str, str]) -> None:
    """A catalogue without rounds at `path`, closed: one file, with its log folded in."""
    with closing(connect(path, "mode=rwc", 0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN")
        for statement in schema.SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        _finish(connection)
        connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection) -> None:
    """Make the tables of an older format this one's, within the transaction that is open."""
    found = catalog.version(connection)
    if found == 1:
        _from_1(connection)
    elif found == 2:
        _from_2(connection)


def _from_1(connection: sqlite3.Connection) -> None:
    state, newest = catalog.read_state(connection), catalog.snapshot(connection)
    for statement in schema.FROM_1:
        connection.execute(statement)
    state.restorable = newest.round
    if state.anchors:  # by when they were written no one remembers; nobody goes back that far
        state.anchors_round = newest.round
    if newest.ntotal == newest.next_id:  # nothing was ever removed: all ids from 0 on are there
        state.auto_end = newest.next_id
    catalog.write_state(connection, state)
    _finish(connection)


def _from_2(connection: sqlite3.Connection) -> None:
    sums.Sums(connection).check("meta", "tags", "undo")  # new sums would hide what happened to them
    for statement in schema.FROM_2:
        connection.execute(statement)
    found = sums.Sums(connection)
    found.renew("tags", "vectors", "undo")
    found.store()


def _finish(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO meta VALUES (?, ?)", (schema.SPENT_KEY, os.urandom(16).hex()))
    found = sums.Sums(connection)
    found.renew(*sums.SELECTS)
    found.store()
