"""The catalogue's tables, its format number, and the names of the files beside it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from woh_faiss.errors import StoreError
from woh_faiss.metadata import MOST
from woh_faiss.validate import short

#: Raised by one with every change an older package could not read; kept in ``PRAGMA user_version``.
FORMAT = 1
#: ``PRAGMA application_id``: tells our catalogue from any other SQLite file ("WOHI").
APPLICATION_ID = 0x574F4849

CATALOG = "catalog.db"
CODES = "codes.faiss"
IDS = "ids.i64"
ANCHORS = "anchors.npy"
#: The row of `meta` with the key of the digests in table `spent`.
SPENT_KEY = "spent_key"


#: Of model files.
MODEL_FILE = r"model-([0-9]{1,19})(?:-[0-9]{1,19})?\.npz"


def model_name(number: int, generation: int | None = None) -> str:
    """File name of the model that round `number` wrote; with a generation, if `compact` rewrote it."""
    return f"model-{number}.npz" if generation is None else f"model-{number}-{generation}.npz"


def model_round(name: str) -> int:
    """The round in a `model_name`."""
    found = re.fullmatch(MODEL_FILE, name)
    assert found is not None  # noqa: S101 - `cell_types.model_file` has seen it
    return int(found[1])


#: Of approximate indexes of the codes.
ANN_FILE = r"ann-(ivf)-[0-9]{1,19}\.npz"


def ann_name(kind: str, number: int) -> str:
    """File name of the approximate index that was the `number`-th to be made: no name is used again."""
    return f"ann-{kind}-{number}.npz"


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
    model_digest TEXT,
    chunk_hash TEXT NOT NULL,
    seconds REAL NOT NULL,
    health TEXT,
    id_sums BLOB NOT NULL,
    crc INTEGER NOT NULL
)"""


def slots(n: int) -> list[str]:
    """The names of the first n slots of table `metadata`."""
    return [f"c{slot}" for slot in range(n)]


# Live items only. items.id is the rowid itself, so a new item costs one table entry, plus one for a key.
# tags is a JSON array, NULL for none, and trust what they count, NULL for 1. What was removed or replaced
# moves to `removed`, a row each: there an id may occur many times. crc is `table_checksums.crc` of id, key,
# tags, round, trust and cells of metadata, which stay what they are.
_ITEMS = (
    """
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    row INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    round INTEGER NOT NULL,
    trust REAL,
    crc INTEGER NOT NULL
)""",
    "CREATE UNIQUE INDEX items_key ON items (key) WHERE key IS NOT NULL",
    "CREATE INDEX items_trust ON items (trust) WHERE trust IS NOT NULL",
    """
CREATE TABLE removed (
    row INTEGER PRIMARY KEY,
    id INTEGER NOT NULL,
    key TEXT,
    tags TEXT,
    round INTEGER NOT NULL,
    trust REAL,
    crc INTEGER NOT NULL,
    removed INTEGER NOT NULL
)""",
    "CREATE INDEX removed_id ON removed (id)",
    "CREATE INDEX removed_key ON removed (key) WHERE key IS NOT NULL",
)

# Which rows are in `removed`, a bit each, those of a block of rows together: see `dead_rows`.
_DEAD = """
CREATE TABLE dead (
    block INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    bits BLOB NOT NULL,
    crc INTEGER NOT NULL
)"""

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

# Features of the items of the first rounds, by row of the codes: float32, least significant byte first. What
# makes the codes of all rows anew takes them away.
_EARLY_FEATURES = "CREATE TABLE early_features (row INTEGER PRIMARY KEY, x BLOB NOT NULL)"

# Metadata by row of the codes, of live and of removed items: a row where an item has any. Each column has a
# slot, for a scan of one table answers any filter. A slot that is not used costs a byte a row.
_METADATA = (
    "CREATE TABLE metadata_columns (slot INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, "
    "round INTEGER NOT NULL)",
    f"CREATE TABLE metadata (row INTEGER PRIMARY KEY, {', '.join(slots(MOST))})",
)

#: What makes an empty catalogue.
SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    *_TAGS,
    _ROUNDS,
    *_ITEMS,
    _DEAD,
    _UNDO,
    _SPENT,
    _EARLY_FEATURES,
    *_METADATA,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_MADE = re.compile(r"CREATE (?:UNIQUE )?(TABLE|INDEX) (\w+)(?: ON (\w+))?")
#: The same as SQLite's own table tells it: type, name, table and statement of each.
_EXPECTED = {
    (made[1].lower(), made[2], made[3] or made[2], statement.strip())
    for statement in SCHEMA
    if (made := _MADE.match(statement.strip()))
}
#: Steps of SQLite's machine in which a catalogue's tables are read, and more; 300 are usual.
_STEPS = 100_000


def distrust(connection: sqlite3.Connection) -> None:
    """Run nothing that a catalogue brings along, and end what takes too long until `check` has passed it."""
    connection.set_progress_handler(lambda: 1, _STEPS)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def check(connection: sqlite3.Connection, folder: Path) -> None:
    """What must hold before a row is read: it is a catalogue of this format, with its tables and no others.

    Raises
    ------
    StoreError
        It has a newer format, or another table, index, view or trigger.
    sqlite3.DatabaseError
        It is no catalogue, or damaged.
    """
    connection.execute("BEGIN")  # else each statement would take and give back a lock
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise sqlite3.DatabaseError("no woh-faiss catalogue")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise StoreError(f"{folder} has format {found}, this package reads up to {FORMAT}: upgrade woh-faiss")
    if found < 1:
        raise sqlite3.DatabaseError(f"its format is {found}")
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    if extra := (folder / CATALOG).stat().st_size % page:  # SQLite takes what is missing for zeros
        raise StoreError(
            f"{folder / CATALOG}: ends {extra} bytes into a page: it was cut; restore it from a backup, or "
            "build the index again"
        )
    # Parsed by now; but a view or a trigger in a table's place is only run by a statement that uses it.
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchmany(
        len(_EXPECTED) + 1
    )
    if len(rows) != len(_EXPECTED) or set(rows) != _EXPECTED:
        others = sorted(str(name) for _, name, *_ in _EXPECTED ^ set(rows))
        raise StoreError(
            f"{folder / CATALOG} is damaged: {short(others[0]) if others else 'a table'} in its schema is "
            f"not what format {found} has; restore it from a backup, or build the index again"
        )
    connection.execute("ROLLBACK")
    connection.set_progress_handler(None, 0)
