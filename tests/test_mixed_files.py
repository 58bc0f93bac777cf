"""Files of two moments of an index in one folder: told before a byte is written, for every pair."""

import itertools
import shutil

import faiss
import numpy as np
import pytest
from conftest import SMALL, tagged

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError

#: What came between the two moments.
BETWEEN = {
    "rounds": lambda index: (index.update(*tagged(2)), index.add(tagged(3)[0])),
    "as many rows again": lambda index: (
        index.remove(np.arange(40, 60)),
        index.compact(),
        index.add(tagged(3, n=20)[0]),
    ),
    "a compaction": lambda index: (index.remove([3, 50]), index.compact()),
    "a rollback, and on": lambda index: (index.rollback(1), index.update(*tagged(5))),
}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if "db-" not in path.name}


@pytest.fixture(scope="module", params=BETWEEN)
def moments(request, tmp_path_factory):
    """Two folders of an index, and the names of the files that differ."""
    folder = tmp_path_factory.mktemp("moments")
    with WOHIndex.create(folder / "i", **SMALL, keep_models=3) as index:
        for seed in range(2):
            index.update(*tagged(seed))
        index.backup(folder / "old")
        BETWEEN[request.param](index)
        index.backup(folder / "new")
    old, new = contents(folder / "old"), contents(folder / "new")
    differ = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return {"old": old, "new": new}, differ


def as_left_by_a_dead_writer(mixed, whole):
    """Whether only models and ids are more than those of a whole index: the next writer removes them."""
    ours = {name: data for name, data in mixed.items() if name in whole or "model-" not in name}
    if ours.get("ids.i64", b"").startswith(whole["ids.i64"]):
        ours["ids.i64"] = whole["ids.i64"]
    return ours == whole


def mixtures(moments, differ):
    """What is in a folder of one moment in which one or two files are of the other."""
    for base, other in (("old", "new"), ("new", "old")):
        for count in (1, 2):
            for names in itertools.combinations(differ, count):
                taken = {name: moments[other].get(name) for name in names}
                mixed = {name: data for name, data in {**moments[base], **taken}.items() if data is not None}
                if not any(as_left_by_a_dead_writer(mixed, whole) for whole in moments.values()):
                    yield mixed


def test_no_mixture_is_written_to(moments, tmp_path):
    known, differ = moments
    tried = 0
    for mixed in mixtures(known, differ):
        folder = tmp_path / "mixed"
        folder.mkdir()
        for name, data in mixed.items():
            (folder / name).write_bytes(data)
        with pytest.raises(StoreError), WOHIndex.open(folder) as index:
            index.add(tagged(7)[0])
        assert contents(folder) == mixed
        try:  # which does not open the index first
            WOHIndex.restore(folder, 1)
        except StoreError:
            assert contents(folder) == mixed
        else:
            assert WOHIndex.verify(folder) == []
        shutil.rmtree(folder)
        tried += 1
    assert tried >= 5


@pytest.mark.parametrize("name", ["ids.i64", "codes.faiss"])
@pytest.mark.parametrize("write", [WOHIndex.open, lambda path: WOHIndex.restore(path, 1)])
def test_rows_of_a_larger_index_are_not_cut_to_the_size_of_this_one(tmp_path, name, write):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(*tagged(1, 40))
        index.update(*tagged(2, 10))
    with WOHIndex.create(tmp_path / "larger", **SMALL) as index:
        index.update(*tagged(3, 80), ids=np.arange(80) * 2)
    shutil.copyfile(tmp_path / "larger" / name, tmp_path / "i" / name)
    if name == "codes.faiss":  # or the header tells, which counts what was committed
        data = (tmp_path / "i" / name).read_bytes()
        header = faiss.serialize_index_binary(faiss.IndexBinaryFlat(index._store.d)).tobytes()[:33]
        (tmp_path / "i" / name).write_bytes(header + data[33:])
    before = contents(tmp_path / "i")
    with pytest.raises(StoreError, match="are not what was written"):
        write(tmp_path / "i")
    assert contents(tmp_path / "i") == before
