"""Index folders that a stranger made: nothing outside of them is read or written, nothing hangs or runs."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import strange_folders_worker
from conftest import LENGTH, SMALL, tagged
from test_paths import fork

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
#: Files of an index, those that a next write makes, and one that nobody would.
MEMBERS = [
    ("catalog.db", "catalog.db-wal", "catalog.db-shm"),
    ("catalog.db-journal", "catalog.db-writer", "model-9.npz"),
    ("codes.faiss", "codes.faiss.1"),
    ("ids.i64", "ids.i64.1", "anchors.npy"),
    ("model-1.npz", "model-2.npz", "model-4.npz", "model-4.npz.tmp"),
    ("ann-ivf-1.npz", "ann-ivf-2.npz", "ann-ivf-2.npz.tmp"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Of two models, one removal, generation 1, with an approximate index."""
    path = tmp_path_factory.mktemp("strangers") / "base"
    with WOHIndex.create(path, **SMALL) as index:
        for seed in range(2):
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
        index.remove([3])
        index.compact()
        index.build_ann("ivf", nlist=2)
    return path


def run(folder, *arguments):
    """A process of its own at full length, else a fork, which need not import everything."""
    arguments = list(map(str, arguments))
    if LENGTH >= 1:
        command = [sys.executable, strange_folders_worker.__file__, *arguments]
        done = subprocess.run(command, env=ENV, capture_output=True, timeout=550)
    else:
        done = fork(folder, *arguments, command=lambda given: strange_folders_worker.main(*given))
    assert done.stdout.endswith(b"done\n"), (done.returncode, done.stdout[-300:], done.stderr)


@pytest.mark.parametrize("names", MEMBERS, ids=lambda names: names[0])
def test_what_is_no_plain_file_is_named_and_never_followed(base, tmp_path, names):
    shutil.copytree(base, tmp_path / "base")
    run(tmp_path, tmp_path / "base", *names)


def test_the_folder_itself_may_be_a_link(base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "link").symlink_to(tmp_path / "base")
    with WOHIndex.open(tmp_path / "link") as index:
        index.update(*tagged(2))
    assert WOHIndex.verify(tmp_path / "link") == []


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)"
SCHEMAS = {
    "an endless view for a table": """
        DROP TABLE rounds; CREATE VIEW rounds AS ENDLESS SELECT i AS round, i AS end_row, i AS ntotal,
        NULL AS model, NULL AS model_digest, 0.5 AS time, '' AS checksum FROM n""",
    "an endless view for the first table": """
        DROP TABLE meta; CREATE VIEW meta AS ENDLESS SELECT 'd' AS name, '64' AS value FROM n""",
    "a trigger that takes for ever": """
        CREATE TRIGGER t AFTER INSERT ON rounds BEGIN UPDATE items SET row = row
        WHERE id IN (SELECT a.id FROM items a, items b, items c, items d, items e, items f); END""",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM items; END",
    "a view beside": "CREATE VIEW seen AS SELECT * FROM items",
    "a table beside": "CREATE TABLE more (id)",
    "an index beside": "CREATE INDEX more ON items (round)",
    "no index": "DROP INDEX removed_id",
    "another column": "ALTER TABLE items ADD COLUMN more TEXT",
    "a virtual table": "CREATE VIRTUAL TABLE more USING fts5(text)",
    "a type with a flipped bit": """
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET sql = replace(sql, 'key TEXT', 'key TEXD') WHERE name = 'items'""",
    "an expression": """
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET sql = replace(sql, 'tags TEXT', 'tags TEXT DEFAULT (abs(-9))')
        WHERE name = 'items'""",
    "a very long schema": """
        PRAGMA writable_schema = ON;
        INSERT INTO sqlite_schema WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 50000)
        SELECT 'view', 'v' || i, 'v' || i, 0, 'CREATE VIEW v' || i || ' AS SELECT 1' FROM n""",
}


def test_another_schema_is_refused_before_a_row_is_read(base, tmp_path):
    places = []
    for number, script in enumerate(SCHEMAS.values()):
        places.append(tmp_path / str(number))
        shutil.copytree(base, places[-1])
        with closing(sqlite3.connect(places[-1] / "catalog.db")) as connection:
            connection.executescript(f"{script.replace('ENDLESS', ENDLESS)};")
    run(tmp_path, "schema", *places)


def test_a_trigger_under_an_open_index_does_not_run(base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    with WOHIndex.open(tmp_path / "base") as index:
        with closing(sqlite3.connect(index.path / "catalog.db")) as connection:
            connection.executescript(SCHEMAS["a trigger"])
        for act in (lambda: index.remove([7]), lambda: index.items([7]), lambda: index.refresh()):
            with pytest.raises(StoreError, match=r"'t' in its schema is not what format 1 has"):
                act()


@pytest.mark.parametrize("journal", ["empty", "of another"])
def test_a_journal_that_was_planted_is_not_played_back(base, tmp_path, journal):
    shutil.copytree(base, tmp_path / "base")
    path = tmp_path / "base" / "catalog.db-journal"
    path.write_bytes(b"" if journal == "empty" else bytes.fromhex("d9d505f920a163d7") + bytes(600))
    before = (tmp_path / "base" / "catalog.db").read_bytes()
    with pytest.raises(StoreError, match=r"catalog\.db-journal is not a file of this package"):
        WOHIndex.open(tmp_path / "base")
    assert any("catalog.db-journal" in fault for fault in WOHIndex.verify(tmp_path / "base"))
    assert path.exists()
    assert (tmp_path / "base" / "catalog.db").read_bytes() == before
