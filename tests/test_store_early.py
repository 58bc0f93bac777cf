"""Features that the store keeps for a while, and the round that gives all rows before it other codes.

Lives of both are in `test_store_life`, deaths in `test_store_deaths` and `test_commit_faults`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from conftest import LENGTH
from numpy.testing import assert_array_equal
from store_worker import D, build_early, chunk, commit, dump, early, faiss_bytes, recoded
from test_store import pairs, rewrite

from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import NewRound, Store, files, schema
from woh_faiss.store.table_checksums import TableChecksums

NEW = {**chunk(5), **recoded(5, 15)}
QUERIES = np.array([[value] * (D // 8) for value in range(4)], np.uint8)
#: Rows of `build_early` that have features.
KEPT = [*range(10), 13, 14]


@pytest.fixture
def store(tmp_path):
    """Rounds 1, 2 and 4 of 4 came with features; of 15 rows three are removed; an approximate index."""
    build_early(tmp_path / "i.woh")
    with Store.open(tmp_path / "i.woh") as opened:
        yield opened


def contents(store):
    """Bytes of all files but SQLite's own."""
    return {p.name: p.read_bytes() for p in store.path.iterdir() if not p.name.startswith("catalog.db-")}


def sql(store, text, *values):
    with closing(sqlite3.connect(store.path / "catalog.db")) as connection, connection:
        return connection.execute(text, values).fetchall()


# ---- what is kept ------------------------------------------------------------------------------------


def test_features_are_kept_by_row_until_a_round_brings_other_codes(store, tmp_path):
    rows, X = store.early_features()
    assert rows.tolist() == KEPT
    assert_array_equal(X, np.concatenate([early(1)["early"], early(2)["early"], early(4, 2)["early"]]))
    stored = dict(sql(store, "SELECT row, x FROM early_features"))
    assert stored[1] == early(1)["early"][1].astype("<f4").tobytes()
    store.backup(tmp_path / "copy")
    commit(store, **NEW)
    with Store.open(tmp_path / "copy") as copy:
        assert_array_equal(copy.early_features()[1], X)
    rows, X = store.early_features()
    assert (rows.shape, rows.dtype, X.shape, X.dtype) == ((0,), np.int64, (0, 0), np.float32)
    commit(store, **chunk(6, kind="encoded"), early=np.ones((5, 2), np.float32))  # another width is free
    assert store.early_features()[1].shape == (5, 2)


def test_a_width_unlike_that_of_the_rows_before_is_refused(store):
    with store.writing() as writing:
        for width in (5, 7):
            given = np.ones((5, width), np.float32)
            told = f"early features have {width} columns, those that .* keeps have 6"
            with pytest.raises(InputError, match=told):
                writing.commit(NewRound(**chunk(5), early=given))
        writing.commit(NewRound(**chunk(5), early=np.asfortranarray(np.ones((5, 6), np.float32))))
    assert store.early_features()[1][-1].tolist() == [1.0] * 6


def test_removed_rows_keep_theirs_until_compact(store):
    rows, X = store.early_features()
    assert store.compact() == (3, True)
    ids = [1012, 1009, 1006, 2012, 2009, 2006, 2000, *chunk(3, n=3)["ids"], 1003, 9000]
    assert store.view.ids.tolist() == ids
    left, after = store.early_features()
    gone = [3, 4, 8]  # ids 1003, 1000, 2003
    assert left.tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11]
    assert_array_equal(after, X[~np.isin(rows, gone)])
    assert Store.verify(store.path) == []


def test_features_of_an_erased_row_are_in_no_file(store):
    secret = early(1)["early"][4]  # of id 1000
    other = early(1)["early"][0]

    def traces(x):
        left = b"".join(p.read_bytes() for p in store.path.iterdir())
        return x.tobytes() in left, any(x[i : i + 2].tobytes() in left for i in range(5))

    assert traces(secret)[0]
    store.compact()
    assert traces(secret) == (False, False)
    assert traces(other)[0]
    commit(store, **chunk(5), **recoded(5, 12))
    with store.writing() as writing:
        writing.remove([9000])
    assert store.compact() == (1, True)
    assert traces(other) == (False, False)


# ---- codes of all rows ---------------------------------------------------------------------------------


def test_every_row_has_its_other_code_and_all_else_stays(store):
    before, items = store.snapshot, store.view.items([1012, 2000, 9000])
    tags = store.tag_rows()
    commit(store, **{**NEW, "tag_rows": []})
    new, after = NEW["recoded"], store.snapshot
    codes = np.concatenate([new, chunk(5)["codes"]])
    assert (store.path / "codes.faiss").read_bytes() == faiss_bytes([codes], D)
    assert_array_equal(store.view.codes([1012, 2000, 9000]), new[[0, 9, 14]])
    assert store.view.items([1012, 2000, 9000]) == items
    assert store.tag_rows() == tags
    assert (after.round, after.rows, after.ntotal) == (5, 20, before.ntotal + 5)
    assert (after.generation, after.recoded, after.ann) == (1, 5, ())
    assert not any(name.startswith("ann-") for name in store.sizes())
    assert Store.verify(store.path) == []
    store.view.check_rows()


def test_there_may_be_no_row_before_and_no_row_now(tmp_path):
    with Store.create(tmp_path / "i", config={}, d=D) as store:
        commit(store, **chunk(1), **recoded(1, 0))
        nothing = {"codes": np.empty((0, D // 8), np.uint8), "kind": "encoded"}
        commit(store, **nothing, **recoded(2, 5))
        assert_array_equal(store.view.mapped.codes, recoded(2, 5)["recoded"])
        commit(store, **nothing, early=np.empty((0, 3), np.float32), **recoded(3, 5))
        assert (store.snapshot.round, store.snapshot.generation, store.ntotal) == (3, 3, 5)
        assert Store.verify(store.path) == []


def test_no_rollback_goes_beyond_it(store):
    commit(store, **NEW)
    commit(store, **chunk(6, kind="encoded"))
    for number in range(5):
        told = f"round {number} cannot be restored, round 5 gave .* other codes; the earliest that can is 5$"
        with pytest.raises(InputError, match=told):
            store.rollback(number)
    assert store.rollback(5) == 1
    assert_array_equal(store.view.mapped.codes[:15], NEW["recoded"])
    assert Store.verify(store.path) == []


def test_a_rollback_takes_the_features_of_undone_rows_along(tmp_path):
    with Store.create(tmp_path / "i", config={"keep_models": 9}, d=D) as store:
        for number in (1, 2, 3):
            commit(store, **chunk(number), **early(number))
        store.rollback(2)
        assert_array_equal(store.early_features()[1], np.concatenate([early(1)["early"], early(2)["early"]]))
        commit(store, **chunk(4, n=1, kind="encoded"), **early(4, 1))
        assert store.early_features()[0].tolist() == list(range(11))
        assert Store.verify(store.path) == []
        assert store.rollback(0) == 3
        assert store.early_features()[0].tolist() == []


@pytest.mark.parametrize("name", ["codes.faiss", "ids.i64"])
def test_what_is_not_as_it_was_written_is_not_given_other_checksums(store, name):
    data = (store.path / name).read_bytes()
    rewrite(store.path / name, 60, bytes([data[60] ^ 1]))
    before = contents(store)
    with pytest.raises(StoreError, match=r"the bytes of round [12] are not what was written; restore"):
        commit(store, **NEW)
    assert contents(store) == before


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("early_features", "UPDATE early_features SET row = 12 WHERE row = 13"),
        ("rounds", "UPDATE rounds SET n = n + 1 WHERE round = 1"),
    ],
)
def test_nor_are_tables(store, table, change):
    sql(store, change)
    before = contents(store)
    acts = (lambda: commit(store, **NEW), store.compact, lambda: Store.restore(store.path, 3))
    for act in acts:
        with pytest.raises(StoreError, match=f"catalog.db .*table {table} is not as it was written"):
            act()
    assert contents(store) == before
    assert any(f"table {table} is not as it was written" in fault for fault in Store.verify(store.path))


def test_verify_finds_any_bit_of_features(store):
    path = store.path / "catalog.db"
    sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    data, row = path.read_bytes(), early(2)["early"][3].tobytes()
    assert data.count(row) == 1
    for at in (0, 7, 23):
        place = data.index(row) + at
        rewrite(path, place, bytes([data[place] ^ 1 << at % 8]))
        (fault,) = Store.verify(store.path)
        assert "table early_features is not as it was written" in fault
        path.write_bytes(data)
    assert Store.verify(store.path) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE early_features SET x = 'text' WHERE row = 3", "early_features.x is 'text', expected bytes"),
        ("UPDATE early_features SET x = x'00000000' WHERE row = 3", "row 3 has 4 bytes, row 0's 24"),
        ("UPDATE early_features SET x = x''", "row 0 has 0 bytes"),
        ("UPDATE early_features SET x = x'0102030405'", "row 0 has 5 bytes"),
        ("UPDATE early_features SET x = x'0000c07f'", "not finite"),
    ],
)
def test_cells_of_other_kinds_are_refused(store, change, told):
    sql(store, change)
    with pytest.raises(StoreError, match=f"catalog.db is damaged.*{told}"):
        store.early_features()
    with store.writing() as writing, pytest.raises(StoreError, match=told):
        writing.early_features()
    assert any(told in fault for fault in Store.verify(store.path))


def test_features_of_rows_that_are_not_there_are_a_fault(store):
    with closing(sqlite3.connect(store.path / "catalog.db")) as connection, connection:
        connection.execute("UPDATE early_features SET row = 99 WHERE row = 14")
        sums = TableChecksums(connection)
        sums.renew("early_features")
        sums.store()
    (fault,) = Store.verify(store.path)
    assert "keeps features of 1 rows that are not there" in fault
    with pytest.raises(StoreError, match="early_features has row 99, which is not there"):
        store.compact()


# ---- beside others ---------------------------------------------------------------------------------------


def test_whoever_opens_at_any_step_sees_one_state(store, monkeypatch):
    old, opened = pairs(store.view.search(QUERIES, 30)), []
    with Store.open(store.path) as beside:

        def look(name):
            assert pairs(beside.view.search(QUERIES, 30)) == old
            with Store.open(store.path) as reader:
                assert len(reader.early_features()[0]) == (0 if reader.snapshot.generation else len(KEPT))
                opened.append((name, reader.snapshot.generation, pairs(reader.view.search(QUERIES, 30))))

        with monkeypatch.context() as patch:
            patch.setattr(files, "on_step", look)
            commit(store, **NEW)
        new = pairs(store.view.search(QUERIES, 30))
        assert new != old
        assert {0, 1} == {generation for _, generation, _ in opened}
        for name, generation, seen in opened:
            assert seen == (new if generation else old), name
        assert ("before rename ids.i64", 1, new) in opened
        assert beside.refresh()
        assert dump(beside) == dump(store)
        assert not beside.refresh()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO] if LENGTH >= 1 else [errno.ENOSPC])
def test_a_disk_that_fails_at_any_step_leaves_the_old_state_and_files(tmp_path, monkeypatch, error):
    log = []
    build_early(tmp_path / "log")
    with Store.open(tmp_path / "log") as store, monkeypatch.context() as patch:
        patch.setattr(files, "on_step", log.append)
        commit(store, **NEW)
        new = dump(store)
    assert len(log) >= 20
    for number, step in enumerate(log):
        if step == "after COMMIT":  # nothing of the disk's happens there
            continue
        build_early(tmp_path / str(number))
        store = Store.open(tmp_path / str(number))
        before, there, seen = dump(store), contents(store), []
        answers = pairs(store.view.search(QUERIES, 30))

        def fail(name, seen=seen, number=number):
            seen.append(name)
            if len(seen) == number + 1:
                raise OSError(error, os.strerror(error))

        committed = number > log.index("after COMMIT")
        with Store.open(store.path) as beside, monkeypatch.context() as patch:
            patch.setattr(files, "on_step", fail)
            if committed:
                commit(store, **NEW)
            else:
                with pytest.raises(StoreError, match=rf"{os.strerror(error)}.*the index is as before"):
                    commit(store, **NEW)
            assert pairs(beside.view.search(QUERIES, 30)) == answers, step
        if not committed:
            assert dump(store) == before, step
            after = contents(store)
            if step == "before COMMIT":  # it may have happened: another COMMIT of the same content decides
                assert after.pop("catalog.db") != there.pop("catalog.db")
            assert after == there, step
            commit(store, **NEW)
        with store.writing():  # whatever was left is put right here
            pass
        assert dump(store) == new, step
        assert Store.verify(store.path) == []
        store.close()


@pytest.mark.parametrize(
    ("name", "step"), [(schema.CODES, None), (schema.IDS, None), (schema.IDS, "before write codes.faiss.1")]
)
@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "pipe", "folder"])
def test_what_lies_under_a_pending_name_is_neither_followed_nor_taken_for_ours(
    store, tmp_path, name, step, kind
):
    """Planted before the round, or once what was there is tidied up."""
    path, victim = store.path / schema.pending(name, 1), tmp_path / "letter.txt"
    victim.write_text("dear")
    other = faiss_bytes([np.zeros((20, D // 8), np.uint8)], D)
    plant = {
        "file": lambda: path.write_bytes(other),
        "link": lambda: path.symlink_to(victim),
        "link to nothing": lambda: path.symlink_to(tmp_path / "nothing"),
        "pipe": lambda: os.mkfifo(path),
        "folder": lambda: path.mkdir(),
    }[kind]
    before = dump(store)
    if step is None:
        plant()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "on_step", lambda now: plant() if now == step else None)
        if kind != "folder":
            commit(store, **NEW)
        else:
            with pytest.raises(StoreError, match=f"{path.name} is a folder, expected a plain file"):
                commit(store, **NEW)
    if kind == "folder":
        assert dump(store) == before
        path.rmdir()
        commit(store, **NEW)
    assert_array_equal(store.view.mapped.codes[:15], NEW["recoded"])
    assert victim.read_text() == "dear"
    assert not (tmp_path / "nothing").exists()
    assert Store.verify(store.path) == []
