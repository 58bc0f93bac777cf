"""Every store format ever shipped opens, answers and grows (tests/stores/README.md)."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from woh_faiss import WOHIndex
from woh_faiss.store import schema, table_checksums

STORES = sorted((Path(__file__).parent / "stores").glob("format-*"))


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
def test_a_store_of_every_format_answers_as_it_did(store, tmp_path):
    shutil.copytree(store / "index", tmp_path / "index")
    expected = json.loads((store / "expected.json").read_text())
    with WOHIndex.open(tmp_path / "index") as index:
        D, I = index.search(
            np.array(expected["queries"]), 6, by="hamming"
        )  # scores: rounding is the machine's
        assert D.tolist() == expected["D"]
        assert I.tolist() == expected["I"]
        assert [item.key for item in index.items(I[0])] == expected["keys"]
        assert [item.metadata for item in index.items(I[0])] == expected["metadata"]
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


def test_the_sum_of_rows_is_as_the_format_says():
    """Pins the bytes that are summed (docs/format.md): a change here is a change of the format."""
    rows = {
        (5, None, "é"): b"i5;ns2:\xc3\xa9",
        (-1, 1.5, b"\0"): b"i-1;f\0\0\0\0\0\0\xf8?b1:\0",
    }
    expected = [int.from_bytes(hashlib.sha256(row).digest()[:16], "big") for row in rows.values()]
    assert table_checksums.of(rows) == sum(expected)
