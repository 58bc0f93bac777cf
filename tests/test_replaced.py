"""A folder that another index took, under an open reader or a pickled one."""

import pickle
import shutil

import numpy as np
import pytest
from conftest import SMALL, tagged

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError

REPLACED = "was replaced by another index; open it again"
XQ = tagged(7, n=3)[0]


def more(path, seed, n=5):
    """A round of items of its own."""
    with WOHIndex.open(path) as index:
        index.add(tagged(seed, n=n)[0], ids=np.arange(1000, 1000 + n), keys=[f"{seed}/{i}" for i in range(n)])


def compacted(path):
    with WOHIndex.open(path) as index:
        index.remove([1])
        index.compact()


#: What the copy goes through while the index itself takes in one more round.
WAYS = {
    "a round of its own": lambda path: more(path, 3),
    "two rounds": lambda path: (more(path, 3), WOHIndex.open(path).remove([1])),
    "none": lambda path: None,
    "compacted": lambda path: (more(path, 3), compacted(path)),
    "compacted at the same round": compacted,
    "rolled back": lambda path: WOHIndex.open(path).rollback(1),
    "rolled back, and on": lambda path: (
        WOHIndex.open(path).rollback(1),
        more(path, 3),
        WOHIndex.open(path).remove([1]),
    ),
    "another index": lambda path: (
        shutil.rmtree(path),
        WOHIndex.create(path, **SMALL).update(*tagged(8), keys=[f"8/{i}" for i in range(40)]),
    ),
}
LOOKS = {
    "items": lambda index: index.items([1, 2]),
    "a key": lambda index: index.id_of("0/7"),
    "describe": lambda index: index.describe(*index.search(XQ, 3)),
    "refresh": lambda index: index.refresh(),
    "rounds": lambda index: index.rounds(),
    "tags": lambda index: index.tags(),
    "info": lambda index: index.info(),
    "health": lambda index: index.health(),
    "remove": lambda index: index.remove([2]),
    "backup": lambda index: index.backup(index.path.with_name("backup")),
}


@pytest.fixture
def two(tmp_path):
    """An index of two rounds, and a copy."""
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        for seed in range(2):
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
    shutil.copytree(tmp_path / "i", tmp_path / "copy")
    return tmp_path / "i", tmp_path / "copy"


def exchanged(path, other):
    path.rename(path.with_name("before"))
    other.rename(path)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_that_went_another_way_is_told(two, way):
    path, copy = two
    more(path, 2)
    WAYS[way](copy)
    with WOHIndex.open(path) as index:
        expected = index.search(XQ, 5)
        pickled = pickle.dumps(index)
        exchanged(path, copy)
        for look, act in LOOKS.items():
            with pytest.raises(StoreError, match=REPLACED):
                act(index)
            print(look)
        np.testing.assert_array_equal(index.search(XQ, 5), expected)
    with pytest.raises(StoreError, match=REPLACED):
        pickle.loads(pickled)  # noqa: S301 - our own
    assert not path.with_name("backup").exists()
    with WOHIndex.open(path) as index:
        index.items([2])


def test_the_same_state_in_another_place_is_the_index(two):
    path, copy = two
    with WOHIndex.open(path) as index:
        items, pickled = index.items([1, 50]), pickle.dumps(index)
        exchanged(path, copy)
        assert index.items([1, 50]) == items
        assert not index.refresh()
        more(path, 2)
        assert index.refresh()
        with pickle.loads(pickled) as same:  # noqa: S301 - our own
            assert same.items([1, 50]) == items


def test_a_reader_follows_its_own_index_through_anything(two):
    path, _ = two
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        for act in (lambda: writer.remove([1]), writer.compact, lambda: writer.rollback(1)):
            act()
            assert [item.key for item in index.items([2, 3])] == ["0/2", "0/3"]
        for number in range(20):  # more generations than the catalogue tells of
            writer.remove([10 + number])
            writer.compact()
        assert index.items([2])[0].key == "0/2"
        assert index.refresh()
        assert index.ntotal == writer.ntotal


def test_an_id_that_came_again_after_a_rollback_is_not_taken_for_the_one_before(two):
    path, _ = two
    more(path, 2)
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        assert index.items([1000])[0].key == "2/0"
        writer.rollback(1)
        more(path, 3)
        with pytest.raises(StoreError, match="id 1000 is not in"):
            index.items([1000])
        with pytest.raises(StoreError, match="no item of"):
            index.id_of("3/0")
        assert index.items([2])[0].key == "0/2"
