"""Faiss's own names on an index, and the hash function as a file of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, NotFittedError, StoreError
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.kernel import Kernel

ROOT = Path(__file__).parent.parent


def equal(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert_array_equal(one, other)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """An index that tests only ask."""
    with WOHIndex.create(tmp_path_factory.mktemp("asked") / "index.woh", **SMALL) as index:
        index.update(*tagged(0))
        yield index


@pytest.mark.parametrize(
    "sel",
    [faiss.IDSelectorBatch([3, 9, 11, 999]), faiss.IDSelectorRange(5, 20), None],
    ids=["batch", "range", "none"],
)
def test_params_are_allow(learned, sel):
    xq, params = tagged(5, n=4)[0], faiss.SearchParameters(sel=sel)
    equal(learned.search(xq, 6, params=params), learned.search(xq, 6, allow=sel))
    equal(learned.search(xq, 6, by="hamming", params=params), learned.search(xq, 6, by="hamming", allow=sel))
    equal(learned.range_search(xq, 5, params=params), learned.range_search(xq, 5, allow=sel))
    I = learned.search(xq, 40, params=params)[1]
    assert set(I.ravel()) - {-1} == {i for i in range(40) if sel is None or sel.is_member(i)}


@pytest.mark.parametrize(
    ("params", "allow", "message"),
    [
        (
            faiss.SearchParametersIVF(nprobe=3),
            None,
            "params is SearchParametersIVF with .*, which",
        ),
        (SimpleNamespace(sel=[1], efSearch=3), None, "with efSearch, which a flat scan does not have"),
        ([1, 2], None, "expected faiss.SearchParameters"),
        (faiss.SearchParameters(sel=faiss.IDSelectorAll()), [1], "give one of them"),
        (SimpleNamespace(sel=["a"]), None, "allow"),
    ],
)
def test_other_params_are_refused(learned, params, allow, message):
    xq = tagged(5, n=1)[0]
    for search in (learned.search, learned.range_search):
        with pytest.raises(InputError, match=message) as refused:
            search(xq, 3, allow=allow, params=params)
        assert "\n" not in str(refused.value)


def test_add_with_ids_encodes(index, tmp_path):
    X = tagged(6, n=3)[0]
    assert index.add_with_ids(X, [70, 60, 80]) is None
    assert index.ntotal == 43
    assert_array_equal([index.reconstruct(i) for i in (70, 60, 80)], index.encode(X))
    with WOHIndex.create(tmp_path / "new.woh", **SMALL) as new, pytest.raises(NotFittedError):
        new.add_with_ids(X, [1, 2, 3])
    with pytest.raises(InputError, match="60"):
        index.add_with_ids(X[:1], [60])


def test_remove_ids_counts_as_faiss_does(index):
    plain = faiss.IndexIDMap(faiss.IndexFlatL2(7))
    plain.add_with_ids(tagged(0)[0], np.arange(40))
    for ids in (
        np.array([3, 3, 999, -1]),
        np.array([3]),
        np.array([], np.int64),
        faiss.IDSelectorRange(0, 6),
        faiss.IDSelectorBatch([500]),
        faiss.IDSelectorNot(faiss.IDSelectorRange(0, 30)),
    ):
        assert index.remove_ids(ids) == plain.remove_ids(ids)
        assert index.ntotal == plain.ntotal
    left = set(index.search(tagged(5, n=1)[0], 40)[1].ravel()) - {-1}
    assert left == set(range(6, 30))


def test_remove_ids_sees_what_another_process_added(index):
    with WOHIndex.open(index.path) as other:
        other.add_with_ids(tagged(6, n=2)[0], [100, 101])
    assert index.remove_ids([100]) == 1
    assert index.ntotal == 41


@pytest.mark.parametrize("ids", [["a"], [1.5], [[True]], "abc"])
def test_ids_that_are_none_are_refused(index, ids):
    with pytest.raises(InputError):
        index.remove_ids(ids)
    assert index.ntotal == 40


# ---- the hash function as a file ---------------------------------------------------------------------


@pytest.fixture
def saved(learned, tmp_path):
    learned.hasher.save(tmp_path / "hash.npz")
    return tmp_path / "hash.npz"


def test_a_saved_hash_function_encodes_the_same(learned, saved):
    X = tagged(8)[0]
    again = Hasher.load(saved)
    assert_array_equal(again.encode(X), learned.encode(X))
    assert_array_equal(again.decision_function(X), learned.hasher.decision_function(X))


def test_its_bytes_depend_on_it_only(learned, saved, tmp_path):
    Hasher.load(saved).save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "again", saved]


#: Stands in for a serving machine: nothing of these is installed there.
SERVING = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"scipy", "gensim", "click", "rich", "matplotlib", "faiss"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import numpy as np
from woh_faiss.learner.hasher import Hasher
sys.stdout.buffer.write(Hasher.load(sys.argv[1]).encode(np.load(sys.argv[2])).tobytes())
"""


def test_loading_needs_numpy_only(learned, saved, tmp_path):
    X = tagged(8)[0]
    np.save(tmp_path / "x.npy", X)
    done = subprocess.run(
        [sys.executable, "-c", SERVING, saved, tmp_path / "x.npy"], capture_output=True, check=True
    )
    assert done.stdout == learned.encode(X).tobytes()


def test_it_serves_with_codes_and_plain_faiss(learned, saved):
    """The hash function and codes.faiss alone give the answers of the index."""
    xq = tagged(9, n=5)[0]
    plain = faiss.read_index_binary(str(learned.path / "codes.faiss"))
    packed = Hasher.load(saved).encode(xq)
    D, _ = plain.search(np.pad(packed, ((0, 0), (0, plain.code_size - packed.shape[1]))), 4)
    assert_array_equal(D, learned.search(xq, 4, by="hamming")[0])


def test_every_changed_byte_is_noticed_or_harmless(tmp_path):
    """Either one line, or the same function: no damage gives other codes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 3))
    hasher, file = Hasher(Kernel.fit(X, X[:2]), rng.normal(size=(2, 8))), tmp_path / "h.npz"
    hasher.save(file)
    whole, lines = file.read_bytes(), []
    damaged = [whole[:end] for end in range(0, len(whole), 29)]
    for place in range(0, len(whole), 11):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        damaged.append(bytes(changed))
    for bad in damaged:
        file.write_bytes(bad)
        try:
            same = Hasher.load(file)
        except InputError as error:
            lines.append(str(error))
        else:
            assert_array_equal(same.decision_function(X), hasher.decision_function(X))
    assert len(lines) > len(damaged) // 2
    assert not [line for line in lines if "\n" in line]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": np.asarray(2)}, "its format is 2, this version reads 1"),
        ({"mean": None}, "no array 'mean'"),
        ({"format": None}, "no array 'format'"),
        ({"width": np.asarray(-1.0)}, "expected more than 0"),
        ({"P": np.ones((3, 16))}, "do not fit each other"),
        ({"A": np.full((10, 7), np.inf)}, "not finite"),
        ({"P": np.array([{}], object)}, "pickled object array, which is never loaded"),
        ({"P": None}, "no key 'P'"),
    ],
)
def test_files_that_are_no_hash_function_are_refused(saved, change, message):
    with np.load(saved) as stored:
        arrays = {**stored, **change}
    np.savez(saved, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        Hasher.load(saved)
    assert "\n" not in str(refused.value)
    assert str(saved) in str(refused.value)


def test_a_missing_file_and_an_unwritable_place_are_one_line(learned, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Hasher.load(tmp_path / "none.npz")
    with pytest.raises(StoreError, match=r"cannot write .*No such file or directory; give another path"):
        learned.hasher.save(tmp_path / "none" / "h.npz")


def test_a_save_that_fails_leaves_the_old_file(learned, saved, monkeypatch):
    before = saved.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        learned.hasher.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_the_example_runs(example):
    assert "5 removed" in example("plain_faiss.py")
