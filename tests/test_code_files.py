"""Codes that were made elsewhere: files of them, and what an index takes."""

import datetime as dt

import numpy as np
import pytest
from conftest import LEARNED, SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import Chunk, WOHIndex
from woh_faiss.errors import InputError, NotFittedError, StoreError
from woh_faiss.index.code_files import read_codes, valid_codes, write_codes


@pytest.fixture
def index(tmp_path):
    """An index of learned bits alone."""
    with WOHIndex.create(tmp_path / "index.woh", **LEARNED) as index:
        index.update(*tagged(0))
        yield index


def coded(index, n=30, **names):
    """A chunk, and its codes with what names it."""
    X, tags = tagged(5, n)
    return X, valid_codes(index.hasher.encode(X), tags, **names)


def test_a_file_says_what_was_written_and_equal_codes_are_equal_bytes(index, tmp_path):
    model = index.hasher.fingerprint
    _, chunk = coded(index, ids=np.arange(100, 130), keys=[f"k{i}" for i in range(30)])
    one, other = (write_codes(tmp_path / name, chunk, model) for name in ("a.npz", "b.npz"))
    assert one.read_bytes() == other.read_bytes()
    again, made_by = read_codes(one)
    assert made_by == model
    for name in ("features", "ids", "keys"):
        assert_array_equal(getattr(again, name), getattr(chunk, name))
    assert [again.tags.of_row(i) for i in range(30)] == [chunk.tags.of_row(i) for i in range(30)]
    bare, _ = read_codes(write_codes(one, valid_codes(chunk.features), model))
    assert (bare.tags, bare.ids, bare.keys) == (None, None, None)


def test_codes_of_both_halves_come_when_the_instance_bits_are_final(tmp_path):
    X, tags = tagged(0, 2100)
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        index.update(X[:1000], tags[:1000])
        early = index.hasher
        with pytest.raises(InputError, match="will again from 2,000; until then add features"):
            index.add_codes(early.encode(X[1000:1010]), model=early.fingerprint)
        index.update(X[1000:2050], tags[1000:2050])
        made = index.hasher.encode(X[2050:])
        index.add_codes(made, model=index.hasher.fingerprint, ids=np.arange(2050, 2100))
        assert_array_equal(index.store.view.mapped.codes[2050:, :10], made)
        assert index.search(X[2050:], 1, by="instance")[0] == pytest.approx(1)
        with pytest.raises(InputError, match="hash function"):
            index.add_codes(early.encode(X[:2]), model=early.fingerprint)


def test_adding_codes_is_adding_their_features(index, tmp_path):
    X, tags = tagged(5, 30)
    with WOHIndex.create(tmp_path / "other.woh", **LEARNED) as other:
        other.update(*tagged(0))
        done = other.add(X, tags, ids=np.arange(100, 130))
        _, chunk = coded(index, ids=np.arange(100, 130))
        path = write_codes(tmp_path / "codes.npz", chunk, index.hasher.fingerprint)
        assert index.add_codes(path).checksum == done.checksum
        assert (tmp_path / "index.woh/codes.faiss").read_bytes() == (other.path / "codes.faiss").read_bytes()
        assert index.items([100, 129]) == other.items([100, 129])
        for a, b in zip(index.search(X, 5), other.search(X, 5), strict=True):
            assert_array_equal(a, b)
    assert WOHIndex.verify(index.path) == []
    with pytest.raises(InputError, match="id 100"):
        index.add_codes(path)
    assert index.add_codes(path, on_duplicate="skip").n == 0


def test_a_reopened_index_has_the_fingerprint_that_it_had(index):
    with WOHIndex.open(index.path) as again:
        assert again.hasher.fingerprint == index.hasher.fingerprint


def test_codes_of_another_function_are_refused(index, tmp_path):
    X, chunk = coded(index)
    model = index.hasher.fingerprint
    path = write_codes(tmp_path / "codes.npz", chunk, model)
    index.update(*tagged(1))
    assert index.hasher.fingerprint != model
    with pytest.raises(
        InputError, match=f"of hash function '{model[:12]}', the index is at '.{{12}}'; encode"
    ):
        index.add_codes(path)
    model = index.hasher.fingerprint
    with pytest.raises(InputError, match="codes have 8 bits, the index has 16"):
        index.add_codes(np.zeros((2, 1), np.uint8), model=model)
    with pytest.raises(
        InputError, match=r"shape \(30, 7\) and dtype float32, expected \(n, bits / 8\) uint8"
    ):
        index.add_codes(X, model=model)
    with pytest.raises(InputError, match="codes without a model"):
        index.add_codes(chunk.features)
    with pytest.raises(InputError, match="brings its own tags, ids, keys, metadata and model"):
        index.add_codes(path, ids=[1])
    assert index.ntotal == 80


def test_damaged_files_are_named(index, tmp_path):
    path = tmp_path / "codes.npz"
    with pytest.raises(InputError, match=r"codes\.npz does not exist"):
        read_codes(path)
    _, chunk = coded(index)
    np.savez(path, codes=chunk.features)
    with pytest.raises(InputError, match=r"codes\.npz: it does not say which hash function"):
        read_codes(path)
    np.savez(path, codes=chunk.features.astype(float), model=np.array("m"))
    with pytest.raises(InputError, match=r"codes\.npz: codes have shape"):
        read_codes(path)
    with pytest.raises(StoreError, match="cannot write"):
        write_codes(tmp_path / "none" / "codes.npz", chunk, "m")


def test_an_index_without_a_round_takes_no_codes(tmp_path):
    with WOHIndex.create(tmp_path / "new.woh", **LEARNED) as index, pytest.raises(NotFittedError):
        index.add_codes(np.zeros((2, 2), np.uint8), model="m")


def test_a_chunk_of_features_is_none_of_codes():
    with pytest.raises(InputError, match="expected \\(n, bits / 8\\) uint8"):
        valid_codes(Chunk.of(np.ones((2, 3))).features)


METADATA = {
    "price": [1.5, None, -0.0],
    "year": [2020, None, -(2**63)],
    "name": ["é", "", None],
    "public": [True, False, None],
    "day": [dt.date(2024, 2, 29), None, None],
    "when": [dt.datetime(2024, 1, 1, 10, 0, 0, 5), None, None],
    "nothing": [None, None, None],
}


def test_metadata_go_through_a_file(tmp_path):
    X = tagged(0)[0][:3]
    with WOHIndex.create(tmp_path / "i", **LEARNED) as index:
        index.update(*tagged(1))
        chunk = valid_codes(index.encode(X), metadata=METADATA)
        path = write_codes(tmp_path / "a.npz", chunk, index.hasher.fingerprint)
        found, _ = read_codes(path)
        for name, column in chunk.metadata.items():
            assert (found.metadata[name].type, found.metadata[name].cells) == (column.type, column.cells)
        index.add(X, metadata=METADATA)
        index.add_codes(path)
        assert [item.metadata for item in index.items([40, 41, 42])] == [
            item.metadata for item in index.items([43, 44, 45])
        ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"x": 3}', '{"x": ["real", [1, 2]]}', '{"x": ["real", 3]}', "[" * 100000),
        *(
            '{"x": ["text", [1, 2, 3]]}',
            '{"x": ["boolean", [1, 2, 0]]}',
            '{"x": ["date", ["y", null, null]]}',
        ),
        *(
            '{"id": ["real", [1.5, 2.5, 3.5]]}',
            '{"x": [["a"], [1, 2, 3]]}',
            '{"x": ["integer", [1e999, 1, 2]]}',
        ),
    ],
)
def test_metadata_of_a_file_that_are_none_are_refused(tmp_path, text):
    arrays = {
        "codes": np.zeros((3, 10), np.uint8),
        "model": "m",
        "metadata": np.frombuffer(text.encode(), np.uint8),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=r"a\.npz.*metadata") as refused:
        read_codes(tmp_path / "a.npz")
    assert len(str(refused.value)) < 300
