"""verify names what is wrong with damaged files; and no damage crashes it, or opening, or searching."""

from __future__ import annotations

import re
import shutil
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from conftest import SMALL, drawn, tagged

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError, WOHError
from woh_faiss.store import schema

FILES = ["catalog.db", "codes.faiss", "ids.i64", "anchors.npy", "model-1.npz", "model-2.npz"]
#: Files whose payload only verify reads whole.
UNREAD = {"codes.faiss", "ids.i64", "anchors.npy"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small index with everything in it, and what it answers."""
    path = tmp_path_factory.mktemp("verify") / "i"
    with WOHIndex.create(path, **SMALL) as index:
        for seed in range(2):
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
        index.add(tagged(2, n=2)[0], ids=[500, 600])
        index.remove([500])
        index.compact()
        index.remove([3, 50])
    return path, answers(path)


@pytest.fixture
def copy(sound, tmp_path):
    shutil.copytree(sound[0], tmp_path / "i")
    return tmp_path / "i"


def answers(path):
    with WOHIndex.open(path) as index:
        D, I = index.search(tagged(7, n=3)[0], 6)
        every = [i for i in range(80) if i not in (3, 50)]
        items = [(item.id, item.row, item.key, item.tags, item.round) for item in index.items(every)]
        named = [index.id_of(f"0/{i}") for i in (0, 20)]
        return D.tolist(), I.tolist(), items, named, index.tags(), [r.end_row for r in index.rounds()]


def tried(path):
    """What it answers, or None where it refuses in one line."""
    try:
        return answers(path)
    except WOHError as error:
        return None if "\n" not in str(error) else str(error)


def test_a_sound_index_has_no_faults(sound):
    assert WOHIndex.verify(sound[0]) == []


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_and_crashes_nothing(sound, copy, name):
    """Not in each byte, that would take long; but in the first ones, and in some that meet every kind."""
    path, expected = copy / name, sound[1]
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    head = rng.permutation(min(len(data), 200))[: drawn(200)]
    places = {0, *head.tolist(), *rng.integers(len(data), size=drawn(200)).tolist(), len(data) - 1}
    told = 0
    for place in sorted(places):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        faults, found = WOHIndex.verify(copy), tried(copy)
        for file in ("catalog.db-wal", "catalog.db-shm"):
            (copy / file).unlink(missing_ok=True)
        assert all("\n" not in fault for fault in faults)
        if name == "catalog.db":  # its pages have bytes that mean nothing; those alone may go unseen
            assert faults or found == expected, place
        else:
            assert any(name in fault for fault in faults), place
        if name not in UNREAD and not faults:
            assert found == expected, place
        if name == "model-2.npz":
            assert found in (None, expected), place
        told += bool(faults)
    assert told > len(places) / (4 if name == "catalog.db" else 1) - 1
    print(f"\n{name}: {len(places)} bits flipped, {told} told by verify")


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_named_and_crashes_nothing(sound, copy, name):
    path = copy / name
    data = path.read_bytes()
    sizes = {0, 1, 8, 33, 40, 100, len(data) // 2, len(data) - 8, len(data) - 1}
    for size in sorted(sizes):
        path.write_bytes(data[:size])
        faults = WOHIndex.verify(copy)
        assert any(name in fault for fault in faults), size
        assert all("\n" not in fault for fault in faults)
        assert tried(copy) in (None, sound[1]), size
        for file in ("catalog.db-wal", "catalog.db-shm"):
            (copy / file).unlink(missing_ok=True)
    print(f"\n{name}: cut to {len(sizes)} sizes")
    path.unlink()
    assert WOHIndex.verify(copy)
    path.mkdir()
    assert WOHIndex.verify(copy)
    tried(copy)


def test_every_fault_is_told_at_once(copy):
    for name in ("codes.faiss", "ids.i64", "model-1.npz", "anchors.npy"):
        data = bytearray((copy / name).read_bytes())
        data[-1] ^= 1
        (copy / name).write_bytes(data)
    (copy / "model-2.npz").unlink()
    (copy / "holiday.jpg").touch()
    (copy / "model-9.npz").touch()
    (copy / "codes.faiss.4").touch()
    faults = WOHIndex.verify(copy)
    for expected in (
        "round 3 (rows 80 to 81) are not what was written",
        "ids.i64: row 80 has id",
        "model-1.npz is damaged (",
        "model-2.npz: is missing",
        "anchors.npy is damaged (its SHA-256",
        "holiday.jpg: is not a file of an index",
        "model-9.npz: left by a writer that died",
        "codes.faiss.4: left by a writer that died",
    ):
        assert sum(expected in fault for fault in faults) == 1, (expected, faults)
    assert len(faults) == 8


def members(folder):
    """The bytes of every file but SQLite's own two."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith("catalog.db-")}


@pytest.mark.parametrize("damage", ["a bit", "the end"])
def test_with_a_damaged_model_what_needs_none_goes_on_and_nothing_is_encoded(copy, sound, damage):
    """Stored codes, ids, keys and tags are as they were; what encodes or learns says which file it is."""
    path = copy / "model-2.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "a bit" else data[:100])
    ids = [1, 7, 41]
    with WOHIndex.open(sound[0]) as whole, WOHIndex.open(copy) as index:
        for by in ("both", "hamming"):
            for found, right in zip(
                index.search_ids(ids, 5, by=by), whole.search_ids(ids, 5, by=by), strict=True
            ):
                np.testing.assert_array_equal(found, right)
        assert index.items(ids) == whole.items(ids)
        np.testing.assert_array_equal(index.reconstruct(7), whole.reconstruct(7))
        before = members(copy)
        X, tags = tagged(7, 5)
        for refused in (lambda: index.add(X), lambda: index.update(X, tags), index.compact):
            with pytest.raises(StoreError, match=r"model-2.npz is damaged .* restore it from a backup"):
                refused()
        assert members(copy) == before
        assert index.remove([7]) == 1
        index.rollback(1)
        assert index.add(X).n == 5
    assert WOHIndex.verify(copy) == []


def test_what_a_writer_at_work_has_made_is_no_fault(copy):
    with WOHIndex.open(copy) as index, index._store.writing():
        (copy / "model-9.npz.tmp").touch()
        assert WOHIndex.verify(copy) == []
    with WOHIndex.open(copy) as index, index._store.writing():
        pass  # and the next one clears it away
    assert not (copy / "model-9.npz.tmp").exists()
    assert WOHIndex.verify(copy) == []


def test_a_file_that_a_writer_at_work_makes_or_renames_during_the_look_is_no_fault(copy):
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            unfinished = copy / "model-9.npz.tmp"
            unfinished.touch()
            unfinished.rename(copy / "model-9.npz")
            (copy / "model-9.npz").unlink()

    with WOHIndex.open(copy) as index, index._store.writing():
        writer = threading.Thread(target=make)
        writer.start()
        try:
            found = [WOHIndex.verify(copy) for _ in range(100)]
        finally:
            stop.set()
            writer.join()
    assert found == [[]] * 100


def test_rounds_that_a_lost_log_takes_away_are_seen_by_the_codes(copy, sound, tmp_path):
    with WOHIndex.open(copy) as index:
        index.update(*tagged(5))
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        (copy / name).unlink(missing_ok=True)
    shutil.copy(sound[0] / "catalog.db", copy)
    assert any("counts 121 codes, the catalogue 81: it has lost rounds" in f for f in WOHIndex.verify(copy))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE items SET key = 'x' WHERE id = 5",
        "UPDATE items SET tags = '[]' WHERE id = 5",
        "UPDATE items SET row = 6 WHERE id = 5",
        "DELETE FROM items WHERE id = 5",
        "DELETE FROM removed WHERE id = 3",
        "UPDATE tags SET count = count + 1",
        "UPDATE rounds SET seconds = 9 WHERE round = 1",
        "UPDATE rounds SET ntotal = -1",
        "UPDATE rounds SET end_row = 'x'",
        "UPDATE rounds SET model = '../model-1.npz'",
        "UPDATE meta SET value = '{}' WHERE name = 'config'",
        "UPDATE meta SET value = '[' WHERE name = 'state'",
        "UPDATE meta SET value = '{\"generation\": \"1\"}' WHERE name = 'state'",
        "UPDATE meta SET value = '-64' WHERE name = 'd'",
        "DELETE FROM meta WHERE name = 'sums'",
        "UPDATE meta SET value = 7 WHERE name = 'sums'",
        "DELETE FROM meta",
        "DROP TABLE undo",
        "DROP TABLE rounds",
        "DELETE FROM rounds WHERE round = 2",
        "DELETE FROM undo",
        "UPDATE undo SET tags = '[]'",
        "DELETE FROM vectors",
        "UPDATE vectors SET vector = x'00'",
        "DELETE FROM spent",
        "UPDATE spent SET digest = x'00'",
        "DELETE FROM meta WHERE name = 'spent_key'",
        "DROP TABLE spent",
    ],
)
def test_a_catalogue_that_says_something_else_is_told(copy, change):
    with closing(sqlite3.connect(copy / schema.CATALOG)) as connection, connection:
        connection.execute(change)
    faults = WOHIndex.verify(copy)
    assert faults
    assert any("catalog.db" in fault or "ids.i64" in fault for fault in faults), faults
    tried(copy)


def test_what_is_no_index(tmp_path):
    (tmp_path / "file").touch()
    for name in ("none", "file", ""):
        assert "no index at" in WOHIndex.verify(tmp_path / name)[0]


def test_a_file_of_a_terabyte_in_the_anchors_place_is_refused_at_once(index):
    path = index.path / "anchors.npy"
    held = path.read_bytes()
    for head in (held, b""):
        path.write_bytes(head)
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        start = time.process_time()
        assert any("anchors.npy cannot be read" in fault for fault in WOHIndex.verify(index.path))
        with WOHIndex.open(index.path) as other, pytest.raises(StoreError, match="cannot be read"):
            other.search(np.zeros((1, other.d)), 1)
        assert time.process_time() - start < 60  # of hours


@pytest.mark.parametrize("lost", ["put back", "log lost"])
def test_an_older_catalogue_under_newer_codes_is_refused_and_nothing_is_cut(tmp_path, lost):
    path = tmp_path / "i"
    with WOHIndex.create(path, **SMALL) as index:
        index.update(*tagged(0))
    older = (path / "catalog.db").read_bytes()
    with closing(sqlite3.connect(path / "catalog.db")) as beside:  # with it there the log is not folded in
        beside.execute("SELECT count(*) FROM items").fetchone()
        with WOHIndex.open(path) as index:
            index.add(tagged(1, n=3)[0])
        if lost == "log lost":
            copy = tmp_path / "copy"
            shutil.copytree(path, copy)
            (copy / "catalog.db-wal").unlink()
            path = copy
    if lost == "put back":
        (path / "catalog.db").write_bytes(older)
    before = {name: (path / name).read_bytes() for name in ("codes.faiss", "ids.i64", "model-1.npz")}
    for act in (
        lambda: WOHIndex.open(path),
        lambda: WOHIndex.restore(path, 0),
    ):
        with pytest.raises(StoreError, match=r"counts 43 codes, catalog.db only 40: it is an older one"):
            act()
    assert any("it has lost rounds" in fault for fault in WOHIndex.verify(path))
    assert {name: (path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("cut", [1, 100, 4095])
def test_a_catalogue_that_ends_within_a_page_is_refused(index, cut):
    """SQLite would read zeros in place of what is missing, and go on."""
    index.close()
    path = index.path / "catalog.db"
    path.write_bytes(path.read_bytes()[:-cut])
    before = path.read_bytes()
    told = rf"catalog\.db: ends {4096 - cut} bytes into a page: it was cut; restore"
    for act in (WOHIndex.open, lambda folder: WOHIndex.restore(folder, 0)):
        with pytest.raises(StoreError, match=told):
            act(index.path)
    assert path.read_bytes() == before
    assert any(re.search(told, fault) for fault in WOHIndex.verify(index.path))
