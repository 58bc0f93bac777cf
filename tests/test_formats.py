"""Every store format ever shipped opens, answers and grows (tests/stores/README.md)."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import schema

STORES = sorted((Path(__file__).parent / "stores").glob("format-*"))


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
def test_a_store_of_every_format_answers_as_it_did(store, tmp_path):
    shutil.copytree(store / "index", tmp_path / "index")
    expected = json.loads((store / "expected.json").read_text())
    with WOHIndex.open(tmp_path / "index") as index:
        D, I = index.search(np.array(expected["queries"]), 6)
        assert D.tolist() == expected["D"]
        assert I.tolist() == expected["I"]
        assert [item.key for item in index.items(I[0])] == expected["keys"]
        assert [list(row) for row in index.tags()] == expected["tags"]
        assert [done.kind for done in index.rounds()] == expected["rounds"]
        assert WOHIndex.verify(index.path) == []
        before = index.ntotal
        removed = [id_ for id_ in (5, 200) if index._store.view.find([id_])]
        index.update(np.eye(3, 4), ["sea", "hill", "city"])
        assert index.ntotal == before + 3
        index.remove([0, *removed])
        assert index.compact().clean
        assert index.ntotal == before + 2 - len(removed)
        assert WOHIndex.verify(index.path) == []


def test_an_older_format_is_read_without_a_write_and_migrated_by_the_first_writer(tmp_path):
    shutil.copytree(STORES[0] / "index", tmp_path / "index")
    before = (tmp_path / "index" / "catalog.db").read_bytes()
    with WOHIndex.open(tmp_path / "index") as index:
        index.search(np.eye(1, 4), 3)
        index.items([0])
        index.info()
        with index._store.writing():
            pass  # nothing was committed
        assert (tmp_path / "index" / "catalog.db").read_bytes() == before
        reader = WOHIndex.open(tmp_path / "index")
        expected = reader.search(np.eye(3, 4), 30)
        index.remove([0])
        assert [item.id for item in reader.items([0, 100])] == [0, 100]
        np.testing.assert_array_equal(reader.search(np.eye(3, 4), 30)[1], expected[1])
        assert reader.refresh()
        assert reader.ntotal == 26
        with pytest.raises(InputError, match=r"round 2 cannot be restored.* is 3"):
            index.rollback(2)  # format 1 kept no counts of tags to go back to
        index.rollback(3)
        assert index.items([0])[0].row == 0
        reader.close()


@pytest.fixture
def second(tmp_path):
    """An index of format 2: its tags have their vectors beside them, and `undo` a row for each."""
    shutil.copytree(STORES[1] / "index", tmp_path / "index")
    return tmp_path / "index"


def test_what_format_2_kept_for_a_rollback_is_kept(second):
    with WOHIndex.open(second) as index:
        index.rollback(1)
        assert [row[:2] for row in index.tags()] == [("sea", 6), ("city", 3), ("hill", 3)]
        assert WOHIndex.verify(second) == []


def test_an_index_of_format_2_goes_on_and_back(second):
    with WOHIndex.open(second) as index:
        tags, vectors = index.tags(), index._store.tag_rows()
        index.update(np.eye(3, 4), ["sea", "rain", "city"])
        assert index.tags() != tags
        index.rollback(5)
        assert (index.tags(), index._store.tag_rows()) == (tags, vectors)
        assert WOHIndex.verify(second) == []


@pytest.mark.parametrize("change", ["UPDATE tags SET vector = x'00'", "DELETE FROM undo WHERE tag = 'sea'"])
def test_damage_of_format_2_is_not_summed_anew(second, change):
    with closing(sqlite3.connect(second / "catalog.db")) as connection, connection:
        connection.execute(change)
    assert any("is not as it was written" in fault for fault in WOHIndex.verify(second))
    with WOHIndex.open(second) as index, pytest.raises(StoreError, match="is not as it was written"):
        index.remove([0])


def test_the_current_format_is_among_them():
    assert f"format-{schema.FORMAT}" in [store.name for store in STORES]
