"""Every store format ever shipped opens, answers and grows (tests/stores/README.md)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from woh_faiss import WOHIndex
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
        index.update(np.eye(3, 4), ["sea", "hill", "city"])
        assert index.ntotal == before + 3
        index.remove([0])
        assert index.compact().clean
        assert index.ntotal == before + 2
        assert WOHIndex.verify(index.path) == []


def test_the_current_format_is_among_them():
    assert [store.name for store in STORES] == [f"format-{n}" for n in range(1, schema.FORMAT + 1)]
