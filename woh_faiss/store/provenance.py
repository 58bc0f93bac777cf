"""The history of an index's rows, for copies elsewhere."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from woh_faiss.errors import StoreError

from . import catalog
from .records import Round

if TYPE_CHECKING:
    from .store import Store


def history(store: Store) -> tuple[list[Round], list[tuple[int, int]]]:
    """Every round up to the snapshot's, and (row, round that removed it) of the rows removed by then.

    Raises
    ------
    StoreError
        The snapshot's rows were renumbered since, by `compact` or `rollback`.
    """
    seen = store.snapshot

    def look(connection: sqlite3.Connection) -> tuple[list[Round], list[tuple[int, int]]] | None:
        if catalog.rewritten(connection, store.path, seen):
            return None
        return catalog.rounds(connection, 1, seen.round), catalog.removals(connection, seen)

    found = store.ask(look)
    if found is None:
        raise StoreError(f"{store.path} was compacted or rolled back meanwhile; try again")
    return found
