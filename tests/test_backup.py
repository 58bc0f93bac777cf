"""Copies of an index: by `backup`, of one committed state; by hand, refused where they are mixed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LENGTH, SMALL, tagged
from crash_injection import deadly, die_at, steps_of

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import files
from woh_faiss_cli.main import main

WORKER = Path(__file__).with_name("helpers") / "backup_worker.py"
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
XQ = tagged(7, n=3)[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder that `index` is a copy of."""
    path = tmp_path_factory.mktemp("made") / "i"
    with WOHIndex.create(path, **SMALL) as index:
        for seed in range(2):
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
        index.remove([3])
        index.compact()
        index.build_ann("ivf", nlist=2)
        index.remove([4])
    return path


@pytest.fixture
def index(made, tmp_path):
    with WOHIndex.open(shutil.copytree(made, tmp_path / "i")) as index:
        yield index


def plain(path):
    """Bytes and modes of an index's files, the catalogue's left out, which SQLite may lay out otherwise."""
    return {
        file.name: (file.read_bytes(), file.stat().st_mode)
        for file in path.iterdir()
        if not file.name.startswith("catalog.db")
    }


def test_a_copy_is_the_index_and_has_its_own_way(index, tmp_path):
    assert index.backup(tmp_path / "copy") == 4
    assert WOHIndex.verify(tmp_path / "copy") == []
    assert plain(tmp_path / "copy") == plain(index.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "i"]
    with WOHIndex.open(tmp_path / "copy") as copy:
        np.testing.assert_array_equal(copy.search(XQ, 5), index.search(XQ, 5))
        np.testing.assert_array_equal(copy.search(XQ, 5, ann="ivf"), index.search(XQ, 5, ann="ivf"))
        assert copy.items([7]) == index.items([7])
        assert copy.rounds() == index.rounds()
        before = plain(index.path)
        copy.update(*tagged(3))
        copy.rollback(2)
        index.add(XQ)
        assert (copy.ntotal, index.ntotal) == (79, 81)
        assert plain(index.path).keys() == before.keys()
    assert WOHIndex.verify(tmp_path / "copy") == WOHIndex.verify(index.path) == []


def test_the_newest_state_is_copied_and_an_empty_index_may_be(index, tmp_path):
    with WOHIndex.open(index.path) as writer:
        writer.add(XQ)
    assert index.backup(tmp_path / "copy") == 5
    with WOHIndex.create(tmp_path / "empty", **SMALL) as empty:
        assert empty.backup(tmp_path / "none") == 0
    assert WOHIndex.verify(tmp_path / "none") == []


def test_modes_are_kept(index, tmp_path):
    for path in index.path.iterdir():
        path.chmod(0o640)
    index.path.chmod(0o750)
    index.backup(tmp_path / "copy")
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "copy").iterdir()} == {"0o640"}
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_there_is_kept(index, tmp_path, kind):
    {"file": Path.touch, "folder": Path.mkdir, "link": lambda path: path.symlink_to("nothing")}[kind](
        tmp_path / "copy"
    )
    with pytest.raises(InputError, match="copy exists already; choose another place for the copy"):
        index.backup(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "i"]


def test_places_where_no_copy_can_be(index, tmp_path):
    with pytest.raises(InputError, match=r"copy is in the index folder .*; choose another place"):
        index.backup(index.path / "copy")
    with pytest.raises(InputError, match="none is not a folder; make it"):
        index.backup(tmp_path / "none" / "copy")


@pytest.mark.parametrize("name", ["codes.faiss", "ids.i64", "model-2.npz", "ann-ivf-1.npz"])
def test_of_an_index_that_lacks_a_file_nothing_is_left(index, tmp_path, name):
    (index.path / name).unlink()
    with pytest.raises(StoreError, match=f"{name} is missing; restore it"):
        index.backup(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_of_a_cut_file_nothing_is_left(index, tmp_path):
    os.truncate(index.path / "ids.i64", 80)
    with pytest.raises(StoreError, match=r"ids\.i64 has 80 bytes, the catalogue counts 632"):
        index.backup(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_a_copy_whose_process_dies_is_no_index(index, tmp_path):
    path = index.path

    def work():
        WOHIndex.open(path).backup(tmp_path / "copy")

    def install(on_step):
        files.on_step = on_step

    steps = steps_of(work, install)
    assert WOHIndex.verify(tmp_path / "copy") == []
    shutil.rmtree(tmp_path / "copy")
    for step in deadly(steps):
        assert die_at(step, work, install)
        if (tmp_path / "copy").exists():  # it died behind the renaming
            assert WOHIndex.verify(tmp_path / "copy") == []
            shutil.rmtree(tmp_path / "copy")
        assert all(left.name.startswith((".woh-index-", "i")) for left in tmp_path.iterdir())
    assert len(steps) > 10
    assert not die_at(len(steps), work, install)
    assert WOHIndex.verify(tmp_path / "copy") == []


def test_the_command(index, tmp_path):
    done = CliRunner().invoke(main, ["backup", str(tmp_path / "copy"), "--index", str(index.path)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{tmp_path / 'copy'} is a copy of {index.path} after round 4\n"
    again = CliRunner().invoke(main, ["backup", str(tmp_path / "copy"), "--index", str(index.path)])
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def test_beside_a_writer_each_copy_is_a_committed_state(index, tmp_path):
    log = tmp_path / "log"
    arguments = [sys.executable, WORKER, index.path, log, "12" if LENGTH >= 1 else "4"]
    known = []
    with subprocess.Popen(arguments, env=ENV) as writer:
        while writer.poll() is None:
            index.backup(tmp_path / "copy")
            assert WOHIndex.verify(tmp_path / "copy") == []
            with WOHIndex.open(tmp_path / "copy") as copy:
                seen = copy._store.snapshot
            known.append(f"{seen.line} {seen.round} {seen.time} {seen.ntotal} {seen.ann}")
            shutil.rmtree(tmp_path / "copy")
    assert writer.returncode == 0
    seen = index._store.snapshot  # before the writer came
    states = {*log.read_text().splitlines()}
    states.add(f"{seen.line} {seen.round} {seen.time} {seen.ntotal} {seen.ann}")
    assert set(known) <= states
    assert len(set(known)) > 3
    print(f"\n{len(known)} copies of {len(set(known))} states")


MIXED = "make it again with 'woh-index backup'"


@pytest.mark.parametrize("change", ["compacted", "another way"])
def test_a_copy_of_parts_of_different_states_is_refused_when_opened(index, tmp_path, change):
    """The codes of one state with the catalogue of another, as `cp -r` beside a writer makes them."""
    index.backup(tmp_path / "copy")
    old, new = tmp_path / "copy", index.path
    if change == "another way":
        with WOHIndex.open(old) as copy:
            copy.add(tagged(5)[0], ids=np.arange(1000, 1040))
        index.add(tagged(6)[0], ids=np.arange(2000, 2040))
    else:
        index.add(XQ)
        index.compact()
    for name in ("codes.faiss", "ids.i64"):
        mixed = tmp_path / f"with {name}"
        shutil.copytree(new, mixed)
        shutil.copy(old / name, mixed)
        with pytest.raises(
            StoreError, match=MIXED if change == "another way" else "the file was cut|" + MIXED
        ):
            WOHIndex.open(mixed)
