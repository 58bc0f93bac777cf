"""No order of deaths, errors, delays and readers loses an index, or lets a round come or go by itself."""

from __future__ import annotations

import errno
import json
import os
import shutil

import faults
import pytest
from commit_faults import add, start
from conftest import LENGTH

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError
from woh_faiss.store import files, writer_lock

pytestmark = pytest.mark.skipif(faults.COMPILER is None, reason="no C compiler for the shim")
#: Combinations of each kind; `python tests/helpers/faults.py FOLDER commit add all` runs all of them.
AMOUNT = 200 if LENGTH >= 1 else 8


def lines(script, folder, *arguments):
    with faults.preloaded(faults.HERE / script, folder, *arguments) as process:
        found = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    return found


@pytest.mark.parametrize("how", ["killed", "sync fails"])
def test_a_commit_that_nobody_counted_is_never_brought_back(how, tmp_path):
    """The frames are in the log, a reader keeps its index alive, and the next writer commits nothing."""
    writers = ["no-op", "refused", "nobody"]
    found = lines("ghost_commit.py", tmp_path, tmp_path / "lives", how, *writers)
    for writer, (before, died, then, alone, after, faults_found) in zip(writers, found, strict=True):
        assert [before, died, then, alone] == [81, 81, 81, 81], writer
        assert after == 86, writer  # the same ids are free: the interrupted round has left nothing
        assert faults_found == [], writer


@pytest.mark.parametrize(
    ("where", "victims"),
    [
        ("commit", ["add", "remove", "compact", "recode"]),
        ("settling", ["add", "remove", "compact", "recode"]),
        ("writing", ["compact", "recode"]),
    ],
    ids=["commit", "settling", "writing"],
)
def test_a_fault_at_any_call_beside_any_reader_before_any_writer(where, victims, tmp_path):
    found = lines("commit_faults.py", tmp_path, tmp_path / "i", where, ",".join(victims), AMOUNT)
    assert [line for line in found if "wrong" in line] == []
    assert [line["victim"] for line in found] == victims
    for counts in found:
        assert counts["run"] == AMOUNT
        assert any("killed" in end for end in counts["ends"])
        print(counts)


def test_a_reader_of_a_copied_folder_writes_nothing(tmp_path):
    """The copy of a folder in doubt is decided by SQLite's recovery; only its own next writer resolves."""
    start(tmp_path / "i")
    catalogue = (tmp_path / "i" / "catalog.db").stat()
    line = f"1 1 committing {catalogue.st_dev} {catalogue.st_ino}".ljust(95) + "\n"
    shutil.copytree(tmp_path / "i", tmp_path / "copy")
    for folder in ("i", "copy"):
        (tmp_path / folder / writer_lock.NAME).write_text(line)
    before = {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()}
    WOHIndex.open(tmp_path / "copy").close()
    after = {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()}
    assert {name: after[name] for name in before} == before
    WOHIndex.open(tmp_path / "i").close()
    assert not (tmp_path / "i" / writer_lock.NAME).exists()


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path):
    start(tmp_path / "i")
    ready, told = os.pipe(), os.pipe()
    with WOHIndex.open(tmp_path / "i") as index:
        with index._store.writing():
            child = os.fork()
            if child == 0:
                os.write(ready[1], b"r")
                os.read(told[0], 1)
                os._exit(0)
            os.read(ready[0], 1)
        with index._store.writing(timeout=0):  # while the child lives
            pass
    os.write(told[1], b"g")
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("made", ["link", "pipe", "folder"])
def test_a_lock_file_that_is_no_file_is_refused_and_left(made, tmp_path):
    start(tmp_path / "i")
    target = tmp_path / "precious"
    target.write_text("precious")
    path = tmp_path / "i" / writer_lock.NAME
    {"link": lambda: path.symlink_to(target), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[made]()
    with pytest.raises(StoreError, match=f"{writer_lock.NAME} is a .*expected a plain file"):
        WOHIndex.open(tmp_path / "i")
    assert target.read_text() == "precious"
    assert any(writer_lock.NAME in fault for fault in WOHIndex.verify(tmp_path / "i"))


def test_the_commit_is_marked_before_and_after(tmp_path):
    """Order of the design: the line says so before COMMIT, and not any more once files are settled."""
    start(tmp_path / "i")
    path, seen = tmp_path / "i" / writer_lock.NAME, {}

    def on_step(name):
        if path.exists():
            seen.setdefault(name, path.read_text().split()[2])

    with WOHIndex.open(tmp_path / "i") as index, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "on_step", on_step)
        add(index)
    assert seen["before write codes.faiss"] == "writing"
    assert seen["before COMMIT"] == seen["after COMMIT"] == "committing"
    assert seen["before patch codes.faiss"] == "writing"
    assert not path.exists()


def test_a_reader_that_cannot_lock_what_is_in_doubt_says_so(tmp_path, monkeypatch):
    """A full disk, where a writer has died inside COMMIT: `compact` reads before it waits for the lock."""

    def full(folder, flags):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(folder))

    start(tmp_path / "i")
    with WOHIndex.open(tmp_path / "i") as index:
        (tmp_path / "i" / writer_lock.NAME).write_bytes(b"")
        monkeypatch.setattr(writer_lock, "_is_in_doubt_here", lambda *given: True)
        monkeypatch.setattr(writer_lock, "_tried", full)
        with pytest.raises(StoreError, match=r"cannot resolve the last commit of .*Disk quota exceeded"):
            index.compact()
