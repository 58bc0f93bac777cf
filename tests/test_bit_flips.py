"""Single flipped bits of every file: a query tells, or answers as before; codes are compared when copied."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import drawn

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError
from woh_faiss.store import packed_codes, row_checks

SCRIPT = Path(__file__).parents[1] / "examples" / "benchmarks" / "bit_flips.py"


@pytest.fixture(scope="module")
def bit_flips():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec = importlib.util.spec_from_file_location("bit_flips", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def made(bit_flips, tmp_path_factory):
    path = tmp_path_factory.mktemp("flips") / "index.woh"
    return path, bit_flips.made(path)


@pytest.mark.parametrize("small", [row_checks.SMALL, 0], ids=["small", "as a large one"])
def test_no_answer_changes_unless_a_stored_code_has(bit_flips, made, small, monkeypatch):
    monkeypatch.setattr(row_checks, "SMALL", small)
    path, asked = made
    if not small:
        asked = [arguments for arguments in asked if "--ann" not in arguments]  # that compares all codes
    found = [*bit_flips.flips(path, asked, drawn(240), seed=7)]
    outcomes = Counter(flip.outcome for flip in found)
    assert outcomes["wrong"] == 0, [flip for flip in found if flip.outcome == "wrong"]
    assert outcomes["refused"]
    assert all(flip.told for flip in found if flip.outcome in ("refused", "codes"))
    assert {flip.told for flip in found if flip.name != "catalog.db"} == {True}


# What a bit is flipped of: the value, and where it is found in the catalogue; what is asked.
TEXTS = {
    "a key": (b"photos/0012.jpg", lambda index: index.items([12])),
    "a tag of an item": (b'["sea", "beach"]', lambda index: index.items(range(20, 60))),
    "a known tag": (b"snow", lambda index: index.tags()),
    "config": (b'"bits": 32', lambda index: index.ntotal),
}


@pytest.mark.parametrize("what", TEXTS)
def test_text_of_the_catalogue_is_compared_as_it_is_read(made, tmp_path, what):
    path, _ = made
    text, ask = TEXTS[what]
    with WOHIndex.open(path) as index:
        index.backup(tmp_path / "copy")
    catalogue = tmp_path / "copy" / "catalog.db"
    data = bytearray(catalogue.read_bytes())
    at = -1
    while (at := data.find(text, at + 1)) >= 0:
        data[at + 1] ^= 2
    catalogue.write_bytes(data)
    with pytest.raises(StoreError, match=r"catalog\.db .*is not as it was written"):
        ask(WOHIndex.open(tmp_path / "copy"))


def test_a_round_that_is_lost_is_missed(made, tmp_path):
    """The newest one removed items: nothing else would tell that it is gone."""
    import sqlite3
    from contextlib import closing

    path, _ = made
    with WOHIndex.open(path) as index:
        index.backup(tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy" / "catalog.db")) as connection, connection:
        connection.execute("DELETE FROM rounds WHERE round = (SELECT max(round) FROM rounds)")
    with pytest.raises(StoreError, match=r"the newest round is 5, expected 6"):
        WOHIndex.open(tmp_path / "copy")


@pytest.fixture
def large(tmp_path, monkeypatch):
    """An index of codes that are not compared when it is searched, and of ids in blocks of 16."""
    monkeypatch.setattr(row_checks, "SMALL", 0)
    monkeypatch.setattr(row_checks, "BLOCK", 16)
    monkeypatch.setattr(packed_codes, "_LEAST", 10)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 8)).astype(np.float32)
    with WOHIndex.create(tmp_path / "i", bits=0, instance_bits=64) as index:
        for part in np.split(X, 6):
            index.add(part)
    return tmp_path / "i", X


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_ids_are_compared_as_far_as_they_are_answers(large):
    path, X = large
    flip(path / "ids.i64", 8 * 40)
    with WOHIndex.open(path) as index:
        assert index.search(X[500:501], 1, by="hamming")[1][0, 0] == 500
        for row in (40, 47):  # the block
            with pytest.raises(StoreError, match=r"ids.i64: ids of round 1 are not what was written"):
                index.search(X[row : row + 1], 1, by="hamming")
        with pytest.raises(StoreError, match=r"ids.i64"):
            index.search(X[500:501], 1, by="hamming", allow=[500])
        with pytest.raises(StoreError, match=r"ids.i64 has id 41 at row 40, catalog.db id 40"):
            index.items([40])


def test_a_reader_that_copies_codes_compares_them_first(large):
    path, X = large
    flip(path / "codes.faiss", 33 + 8 * 40)
    told = r"codes.faiss or ids.i64: the bytes of round 1 are not what was written"
    with WOHIndex.open(path) as index:
        assert index.search(X[500:501], 1, by="hamming")[1][0, 0] == 500
        with pytest.raises(StoreError, match=told):
            index.search(np.repeat(X, 10, axis=0), 1, by="hamming")
        with pytest.raises(StoreError, match=told):
            index.build_ann("ivf")


def test_rows_that_come_later_are_compared_before_they_are_copied_too(large):
    path, X = large
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        index.search(np.repeat(X, 10, axis=0), 1, by="hamming")
        assert [*index._store.view.packed]
        writer.add(X[:50] + 1)
        assert index.refresh()
        writer.add(X[:50] + 2)
        flip(path / "codes.faiss", 33 + 8 * 660)
        with pytest.raises(StoreError, match=r"the bytes of round 8 are not what was written"):
            index.refresh()
        assert index.ntotal == 650
