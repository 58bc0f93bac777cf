"""The catalogue's tables, its format number, and the names of the files beside it."""

from __future__ import annotations

#: Raised by one with every change an older package could not read; kept in ``PRAGMA user_version``.
FORMAT = 1
#: ``PRAGMA application_id``: tells our catalogue from any other SQLite file ("WOHI").
APPLICATION_ID = 0x574F4849

CATALOG = "catalog.db"
CODES = "codes.faiss"
IDS = "ids.i64"
ANCHORS = "anchors.npy"


def model_name(number: int) -> str:
    """File name of the model that round `number` wrote."""
    return f"model-{number}.npz"


# items.id is the rowid itself, so a new item costs one table entry, plus one for a key. A key is free
# again once its item is deleted, hence the partial index. tags is a JSON array, NULL for none.
SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('trained', 'encoded')),
    n INTEGER NOT NULL,
    first_row INTEGER NOT NULL,
    ntotal INTEGER NOT NULL,
    max_id INTEGER NOT NULL,
    trained INTEGER NOT NULL,
    checksum TEXT NOT NULL,
    model TEXT,
    fingerprint TEXT,
    chunk_hash TEXT NOT NULL,
    seconds REAL NOT NULL,
    health TEXT
);
CREATE TABLE tags (tag TEXT PRIMARY KEY, "column" INTEGER, count INTEGER NOT NULL, vector BLOB) WITHOUT ROWID;
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    row INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    round INTEGER NOT NULL,
    deleted INTEGER
);
CREATE UNIQUE INDEX items_key ON items (key) WHERE key IS NOT NULL AND deleted IS NULL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""
