"""Ids that `compact` has erased: never used again, and yet in no file.

A keyed digest of 8 bytes is kept of each. The key is beside it in the catalogue: the folder's owner can test
a guess, but cannot read the ids. Ids below `State.auto_end` need none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from . import cell_types
from .catalog import spent_key
from .database import where_in


def digests(connection: sqlite3.Connection, ids: Iterable[int]) -> list[bytes]:
    """What is kept of each id."""
    key = spent_key(connection)
    return [blake2b(id_.to_bytes(8, "little"), digest_size=8, key=key).digest() for id_ in ids]


def among(connection: sqlite3.Connection, ids: Sequence[int]) -> set[int]:
    """Those of `ids` that were erased."""
    if not ids or not connection.execute("SELECT EXISTS (SELECT 1 FROM spent)").fetchone()[0]:
        return set()
    id_of = dict(zip(digests(connection, ids), ids, strict=True))
    rows = where_in(connection, "SELECT digest FROM spent WHERE digest IN", id_of)
    return {id_of[digest] for (digest,) in cell_types.all_typed("spent", rows, {"digest": bytes})}
