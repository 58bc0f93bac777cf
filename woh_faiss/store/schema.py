"""The catalogue's tables, its format number, and the names of the files beside it."""

from __future__ import annotations

#: Raised by one with every change an older package could not read; kept in ``PRAGMA user_version``.
FORMAT = 3
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

# The word vectors of tags, once they are known; long and never changed, so apart from the counts.
_TAGS = (
    'CREATE TABLE tags (tag TEXT PRIMARY KEY, "column" INTEGER, count INTEGER NOT NULL) WITHOUT ROWID',
    "CREATE TABLE vectors (tag TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID",
)

# What rollback puts back: a JSON array of [tag, column, count] as they were before the round that touched
# them, count null where a tag was not there.
_UNDO = "CREATE TABLE undo (round INTEGER PRIMARY KEY, tags TEXT NOT NULL)"

# Ids that `compact` erased, as keyed digests of 8 bytes: enough to refuse an id that comes again.
_SPENT = "CREATE TABLE spent (digest BLOB PRIMARY KEY) WITHOUT ROWID"

# The items of each round whose code and features agree least; they go with the item.
_MISFITS = "CREATE TABLE misfits (id INTEGER PRIMARY KEY, round INTEGER NOT NULL, bits INTEGER NOT NULL)"

#: What makes an empty catalogue.
SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    *_TAGS,
    _ROUNDS,
    *_ITEMS,
    _UNDO,
    _SPENT,
    _MISFITS,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

#: What makes a catalogue of format 3 of one of format 2.
FROM_2 = (
    "ALTER TABLE tags RENAME TO tags_2",
    "ALTER TABLE undo RENAME TO undo_2",
    *_TAGS,
    _UNDO,
    'INSERT INTO tags SELECT tag, "column", count FROM tags_2',
    "INSERT INTO vectors SELECT tag, vector FROM tags_2 WHERE vector IS NOT NULL",
    'INSERT INTO undo SELECT round, json_group_array(json_array(tag, "column", count)) FROM undo_2 '
    "GROUP BY round",
    "DROP TABLE tags_2",
    "DROP TABLE undo_2",
    f"PRAGMA user_version = {FORMAT}",
)

#: What makes a catalogue of format 3 of one of format 1, where nothing was ever removed.
FROM_1 = (
    "ALTER TABLE rounds RENAME TO rounds_1",
    "ALTER TABLE items RENAME TO items_1",
    "DROP INDEX items_key",
    _ROUNDS,
    *_ITEMS,
    _SPENT,
    _MISFITS,
    "INSERT INTO rounds SELECT round, time, kind, n, 0, ntotal, trained, first_row, ntotal, checksum, model, "
    "fingerprint, chunk_hash, seconds, health FROM rounds_1",
    "INSERT INTO items SELECT id, row, key, tags, round FROM items_1",
    "DROP TABLE rounds_1",
    "DROP TABLE items_1",
    'CREATE TABLE undo (round, tag, "column", count)',
    *FROM_2,
)
