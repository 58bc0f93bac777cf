"""The catalogue's tables, its format number, and the names of the files beside it."""

from __future__ import annotations

#: Raised by one with every change an older package could not read; kept in ``PRAGMA user_version``.
FORMAT = 2
#: ``PRAGMA application_id``: tells our catalogue from any other SQLite file ("WOHI").
APPLICATION_ID = 0x574F4849

CATALOG = "catalog.db"
CODES = "codes.faiss"
IDS = "ids.i64"
ANCHORS = "anchors.npy"
#: The row of `meta` with the key of the digests in table `spent`.
SPENT_KEY = "spent_key"


def model_name(number: int) -> str:
    """File name of the model that round `number` wrote."""
    return f"model-{number}.npz"


def model_round(name: str) -> int:
    """The inverse of `model_name`."""
    return int(name.removeprefix("model-").removesuffix(".npz"))


#: Of indexes that are derived from the codes.
DERIVED = r"derived-(ivf|hnsw|multihash)-[0-9]{1,19}\.faiss"


def derived_name(kind: str, number: int) -> str:
    """File name of the derived index that was the `number`-th to be made: no name is used again."""
    return f"derived-{kind}-{number}.faiss"


def pending(name: str, generation: int) -> str:
    """What codes or ids of `generation` are called until they take the place of the ones before."""
    return f"{name}.{generation}"


_ROUNDS = """
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('trained', 'encoded', 'removed')),
    n INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    ntotal INTEGER NOT NULL,
    trained INTEGER NOT NULL,
    first_row INTEGER NOT NULL,
    end_row INTEGER NOT NULL,
    checksum TEXT NOT NULL,
    model TEXT,
    fingerprint TEXT,
    chunk_hash TEXT NOT NULL,
    seconds REAL NOT NULL,
    health TEXT
)"""

# Live items only. items.id is the rowid itself, so a new item costs one table entry, plus one for a key.
# tags is a JSON array, NULL for none. What was removed or replaced moves to `removed`, a row each: there an
# id may occur many times.
_ITEMS = (
    """
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    row INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    round INTEGER NOT NULL
)""",
    "CREATE UNIQUE INDEX items_key ON items (key) WHERE key IS NOT NULL",
    """
CREATE TABLE removed (
    row INTEGER PRIMARY KEY,
    id INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    round INTEGER NOT NULL,
    removed INTEGER NOT NULL
)""",
    "CREATE INDEX removed_id ON removed (id)",
    "CREATE INDEX removed_key ON removed (key) WHERE key IS NOT NULL",
)

# What rollback puts back: column and count that a tag had before a round, count NULL where it was not there.
_UNDO = """
CREATE TABLE undo (
    round INTEGER NOT NULL,
    tag TEXT NOT NULL,
    "column" INTEGER,
    count INTEGER,
    PRIMARY KEY (round, tag)
) WITHOUT ROWID"""

# Ids that `compact` erased, as keyed digests of 8 bytes: enough to refuse an id that comes again.
_SPENT = "CREATE TABLE spent (digest BLOB PRIMARY KEY) WITHOUT ROWID"

# The items of each round whose code and features agree least; they go with the item.
_MISFITS = "CREATE TABLE misfits (id INTEGER PRIMARY KEY, round INTEGER NOT NULL, bits INTEGER NOT NULL)"

#: What makes an empty catalogue.
SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    'CREATE TABLE tags (tag TEXT PRIMARY KEY, "column" INTEGER, count INTEGER NOT NULL, vector BLOB) '
    "WITHOUT ROWID",
    _ROUNDS,
    *_ITEMS,
    _UNDO,
    _SPENT,
    _MISFITS,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

#: What makes a catalogue of format 2 of one of format 1, where nothing was ever removed.
FROM_1 = (
    "ALTER TABLE rounds RENAME TO rounds_1",
    "ALTER TABLE items RENAME TO items_1",
    "DROP INDEX items_key",
    _ROUNDS,
    *_ITEMS,
    _UNDO,
    _SPENT,
    _MISFITS,
    "INSERT INTO rounds SELECT round, time, kind, n, 0, ntotal, trained, first_row, ntotal, checksum, model, "
    "fingerprint, chunk_hash, seconds, health FROM rounds_1",
    "INSERT INTO items SELECT id, row, key, tags, round FROM items_1",
    "DROP TABLE rounds_1",
    "DROP TABLE items_1",
    f"PRAGMA user_version = {FORMAT}",
)
