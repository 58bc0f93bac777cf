"""What whoever copies an index elsewhere must know: which index it is, and what happened to its rows."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import TYPE_CHECKING

from woh_faiss.errors import StoreError

from . import catalog, database
from .records import Round

if TYPE_CHECKING:
    from .store import Store


def history(store: Store) -> tuple[list[Round], list[tuple[int, int]]]:
    """Every round up to the snapshot's, and (row, round that removed it) of the rows removed by then.

    Raises
    ------
    StoreError
        The snapshot's rows were numbered anew since, by `compact` or `rollback`.
    """
    seen = store.snapshot

    def look(connection: sqlite3.Connection) -> tuple[list[Round], list[tuple[int, int]]] | None:
        with database.moment(connection):
            if catalog.read_state(connection).generation != seen.generation:
                return None
            return catalog.rounds(connection, 1, seen.round), catalog.removals(connection, seen)

    found = database.read(store.path, look)
    if found is None:
        raise StoreError(f"{store.path} was compacted or rolled back meanwhile; try again")
    return found


def identity(store: Store) -> str:
    """32 hex digits that tell this index, and copies of it, from every other.

    Raises
    ------
    StoreError
        An older format that has none.
    """
    if database.read(store.path, catalog.version) == 1:
        raise StoreError(
            f"{store.path} has format 1, which says nowhere which index it is; any update or removal "
            "makes it a newer one"
        )
    # Whoever holds the key can test which ids were erased: a database is told no more than its digest.
    key = database.read(store.path, catalog.spent_key)
    return hashlib.blake2b(b"identity", digest_size=16, key=key).hexdigest()
