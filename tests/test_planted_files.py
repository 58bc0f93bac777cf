"""Catalogues that strangers planted something beside, that others hold, and that lie on a full disk."""

import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys

import faults
import numpy as np
import pytest
from conftest import LENGTH, SMALL, tagged
from planted import hot_journal
from test_cli import built_in, run
from test_paths import works

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError
from woh_faiss.store import Store, database

# ---- planted files ----------------------------------------------------------------------------------

#: Every command that opens an index, with arguments that do something.
COMMANDS = {
    "update": ["chunk-1.npz"],
    "add": ["rest.npz"],
    "remove": ["1"],
    "query": ["queries.npz"],
    "info": [],
    "verify": [],
    "compact": [],
    "rollback": ["0"],
    "build-ann": ["ivf"],
    "export": ["out.faiss"],
    "push": ["postgresql://nowhere.invalid/x?table=t"],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = built_in(tmp_path_factory.mktemp("built"))
    (folder / "letter.txt").write_text("dear")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_journal_that_names_another_file_deletes_nothing(here, command):
    catalogue, victim = here / "index.woh" / "catalog.db", here / "letter.txt"
    (here / "index.woh" / "catalog.db-journal").write_bytes(hot_journal(catalogue, victim))
    before = {path.name: path.read_bytes() for path in (here / "index.woh").iterdir()}
    done = run(command, *COMMANDS[command], code=1)
    assert "catalog.db-journal" in done.output
    assert "Traceback" not in done.output
    assert victim.read_text() == "dear"
    assert {path.name: path.read_bytes() for path in (here / "index.woh").iterdir()} == before


def test_sqlite_itself_deletes_what_such_a_journal_names(here):
    """Else the tests above would prove nothing."""
    shutil.copy(here / "index.woh" / "catalog.db", here / "copy.db")
    (here / "copy.db-journal").write_bytes(hot_journal(here / "copy.db", here / "letter.txt"))
    connection = sqlite3.connect(here / "copy.db")
    connection.execute("SELECT count(*) FROM items").fetchone()
    connection.close()
    assert not (here / "letter.txt").exists()


# ---- what others hold -------------------------------------------------------------------------------


def test_a_lock_on_the_shared_memory_is_not_called_damage(tmp_path):
    """Whoever may read the folder can lock it; SQLite gives up with "locking protocol" or "busy"."""
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(*tagged(0))
    held = os.open(tmp_path / "i" / "catalog.db-shm", os.O_RDWR | os.O_CREAT)
    held_by = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\n"
            "file = open(sys.argv[1], 'r+b')\n"
            "fcntl.lockf(file, fcntl.LOCK_EX, 0, 0)\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()",
            tmp_path / "i" / "catalog.db-shm",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert held_by.stdout.readline() == b"held\n"
        if LENGTH >= 1 or faults.COMPILER is None:  # SQLite sleeps for ten seconds in all
            with pytest.raises(StoreError) as told, database.locked(tmp_path / "i", 0.2):
                pass
            kind, message = type(told.value).__name__, str(told.value)
        else:
            script = faults.HERE / "locked_out.py"
            with faults.preloaded(script, tmp_path, tmp_path / "i") as refused:
                kind, message = json.load(refused.stdout)
        assert "damaged" not in message
        assert "backup" not in message
        assert kind == "LockedError" or "keeps a lock on its -shm file" in message
    finally:
        held_by.communicate()
        os.close(held)
    assert WOHIndex.verify(tmp_path / "i") == []


class Code(sqlite3.OperationalError):
    """As SQLite raises them, with a code."""

    def __init__(self, code):
        super().__init__("said by SQLite")
        self.sqlite_errorcode = code


@pytest.mark.parametrize("name", [name for name in dir(sqlite3) if name.startswith("SQLITE_")])
def test_a_message_says_damaged_only_where_a_check_says_so(tmp_path, name):
    code = getattr(sqlite3, name)
    if not isinstance(code, int) or not 0 < code & 0xFF <= 26:
        pytest.skip("no error")
    with pytest.raises(StoreError) as told, database.failures(tmp_path, 0):
        raise Code(code)
    found = code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    assert ("backup" in str(told.value)) == found


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400, np.float32(3), 0])
def test_a_time_to_wait_may_be_any_number(index, timeout):
    assert index.remove([0], timeout=timeout) == 1
    assert index.compact(timeout=timeout).items == 1


# ---- a full disk ------------------------------------------------------------------------------------

_READ = """
import json, resource, sys
from woh_faiss import WOHIndex
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
with WOHIndex.open(sys.argv[1]) as index:
    print(json.dumps([index.ntotal, len(index.rounds()), index.items([3])[0].tags,
                      index.search_ids([3], 5)[1].tolist()]))
"""


def read(folder, *more):
    done = subprocess.run([sys.executable, "-c", _READ, folder, *more], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_an_index_on_a_full_disk_is_read(tmp_path):
    """SQLite makes a file of 32 KB to read a catalogue."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root mounts a disk")
    try:
        with WOHIndex.create(disk / "i", **SMALL) as index:
            index.update(*tagged(0))
        expected = read(disk / "i")
        for end in ("-wal", "-shm"):  # a reader leaves them; without them SQLite has to make them
            (disk / "i" / f"catalog.db{end}").unlink(missing_ok=True)
        (disk / "full").write_bytes(bytes(shutil.disk_usage(disk).free))
        assert shutil.disk_usage(disk).free == 0
        assert read(disk / "i") == expected
        np.savez(tmp_path / "q.npz", features=tagged(8, n=3)[0])
        for arguments in (["info"], ["query", "q.npz"], ["verify"]):
            works(tmp_path, *arguments, "--index", disk / "i")
        with WOHIndex.open(disk / "i") as index, pytest.raises(StoreError, match="free space"):
            index.update(*tagged(1, n=4000))
        (disk / "full").unlink()
        assert WOHIndex.verify(disk / "i") == []
        assert read(disk / "i") == expected
    finally:
        gc.collect()  # the error's traceback holds what is mapped
        subprocess.run(["umount", disk], check=True)


def test_where_no_file_may_grow_an_index_is_read(index):
    index.close()
    assert read(index.path, "16384") == read(index.path)


def test_what_only_the_log_has_is_not_looked_past(index):
    """A killed writer's log holds commits; without room for SQLite's index of it they cannot be read."""
    copied = index.path.with_name("copy")
    reader = Store.open(index.path)
    holding = sqlite3.connect(index.path / "catalog.db")
    holding.execute("SELECT * FROM meta").fetchall()
    index.update(*tagged(1))
    shutil.copytree(index.path, copied, ignore=shutil.ignore_patterns("*-shm", "*-writer"))
    holding.close()
    reader.close()
    assert (copied / "catalog.db-wal").stat().st_size
    assert read(copied, "16384").startswith("woh_faiss.errors.StoreError: ")
    assert "free space" in read(copied, "16384")
    assert read(copied)[0] == 80
