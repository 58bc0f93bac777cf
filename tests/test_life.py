"""The life of items in an index: removed, replaced, skipped."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import NewRound

XQ = tagged(9, n=4)[0]


def contents(path, but=("catalog.db", "ids.i64")):
    return {
        p.name: p.read_bytes()
        for p in sorted(path.iterdir())
        if p.name not in but and not p.name.startswith("catalog.db-")
    }


def without(index, gone, path):
    """An index that never had those items, nor the rounds that were empty without them: the oracle."""
    other = WOHIndex.create(path, **SMALL)
    items = sorted(index._store.view.find(np.arange(200)).values(), key=lambda item: item.row)
    assert not {item.id for item in items} & set(gone)
    with other._store.writing() as writing:
        writing.commit(
            NewRound(
                kind="encoded",
                codes=index._store.view.codes([item.id for item in items]),
                ids=[item.id for item in items],
                keys=[item.key for item in items],
                tags=[item.tags for item in items],
                trained=0,
                seconds=0,
                model=dict(index._store.view.learned()),
                anchors=np.asarray(index._store.view.anchor_rows()),
                tag_rows=index._store.tag_rows(),
            )
        )
    return other


# ---- remove ----------------------------------------------------------------------------------------


def test_removed_items_are_absent_from_every_answer(index, tmp_path):
    index.update(*tagged(1), keys=[f"k{i}" for i in range(40)])
    gone = [0, 7, 41, 43, 79]
    assert index.remove([0, 7, 7, 79], keys=["k1", "k3"]) == 5
    assert index.ntotal == 75
    facts = index.info()
    assert (facts["ntotal"], facts["rows"], facts["removed"]) == (75, 80, 5)
    assert [(r.kind, r.n, r.removed, r.ntotal) for r in index.rounds()][-1] == ("removed", 0, 5, 75)
    with without(index, gone, tmp_path / "o") as oracle:
        for k in (1, 10, 75, 90):
            for found, expected in (
                (index.search(XQ, k), oracle.search(XQ, k)),
                (index.search(XQ, k, by="hamming"), oracle.search(XQ, k, by="hamming")),
                (index.search_ids([5, 42], k), oracle.search_ids([5, 42], k)),
                (index.search_tags([["sea"], ["hill", "snow"]], k), None),
            ):
                assert not np.isin(found[1], gone).any()
                if expected is not None:
                    assert_array_equal(found[0], expected[0])
                    assert_array_equal(found[1], expected[1])
        assert index.describe(*index.search(XQ, 90)) == oracle.describe(*oracle.search(XQ, 90))
    for refused in (
        lambda: index.items([0]),
        lambda: index.id_of("k1"),
        lambda: index.explain([7]),
        lambda: index.search_ids([79], 1),
    ):
        with pytest.raises(StoreError):
            refused()
    with pytest.raises(InputError, match="id 7 is not in"):
        index.reconstruct(7)


def test_what_is_not_there_is_told_before_anything_is_removed(index):
    before = index.rounds()
    with pytest.raises(
        InputError, match=r"^id 99, id -1, key 'x' are not in the index \(3 of 5 given\); leave them out"
    ):
        index.remove([1, 99, -1, 2, 99], keys=["x"])
    with pytest.raises(InputError, match=r"id 100, .* and 5 more are not in the index \(10 of 10 given\)"):
        index.remove(range(100, 110))
    with pytest.raises(InputError, match="expected 1-D integers"):
        index.remove([1.5])
    with pytest.raises(InputError, match="keys: row 0 is 3, expected a str"):
        index.remove(keys=[3])
    assert index.rounds() == before
    assert index.remove([1, 99, -1, 2**62], keys=["x"], ignore_missing=True) == 1
    assert index.remove([1, 99], ignore_missing=True) == 0
    assert index.remove() == 0
    assert len(index.rounds()) == len(before) + 1
    with pytest.raises(InputError, match="id 1 is not in the index"):
        index.remove(1)


def test_a_removed_id_is_not_used_again_but_a_key_is(index):
    index.add(XQ[:2], ids=[100, 101], keys=["a", "b"])
    index.remove([100, 101, 3])
    with pytest.raises(
        InputError, match=r"id 100 was removed from the index \(1 of 2 were\) and is not used"
    ):
        index.add(XQ[:2], ids=[100, 102])
    for policy in ("skip", "replace"):
        with pytest.raises(InputError, match="id 3 was removed"):
            index.add(XQ[:1], ids=[3], on_duplicate=policy)
    index.add(XQ[:1], keys=["a"])
    assert index.id_of("a") == 102
    assert index.search(XQ[:1], 1)[1].item() != 100


def test_all_removed_and_then_more(index):
    index.remove(range(40))
    assert index.ntotal == 0
    D, I = index.search(XQ, 2, by="hamming")
    assert (I == -1).all()
    assert (np.iinfo(np.int32).max == D).all()
    D, I = index.search(XQ, 2)
    assert (I == -1).all()
    assert np.isneginf(D).all()
    assert index.describe(D, I) == [[]] * 4
    index.update(*tagged(1))
    assert index.items([40])[0].row == 40
    assert index.compact() == (40, True)
    assert index.items([40])[0].row == 0
    assert index.ntotal == 40


def test_readers_keep_their_state_until_they_refresh(index):
    reader = WOHIndex.open(index.path)
    before = reader.search(XQ, 40)
    index.remove(range(10))
    for expected in (1, 2):
        assert_array_equal(reader.search(XQ, 40)[1], before[1])
        assert reader.ntotal == 40
        if expected == 1:
            assert reader.items([3])[0].id == 3
            index.compact()
    with pytest.raises(StoreError, match="id 3 is not in"):  # erased: nobody has its key and tags any more
        reader.items([3])
    found = reader.describe(*before)
    assert {hit.id for hits in found for hit in hits} == set(range(10, 40))
    assert_array_equal(reader.reconstruct(20), index.reconstruct(20))
    assert reader.refresh()
    assert reader.ntotal == 30
    assert_array_equal(reader.search(XQ, 40)[1], index.search(XQ, 40)[1])
    reader.close()


def test_a_stored_code_comes_back(index):
    packed = index.reconstruct(3)
    assert_array_equal(packed, codes.unpad(index._store.view.codes([3]), 80)[0])
    assert packed.shape == (index.code_size,) == (10,)
    signs = index.reconstruct(3, signs=True)
    assert signs.dtype == np.int8
    assert signs.shape == (80,)
    assert_array_equal(codes.pack(signs[None].astype(float))[0], packed)
    for id_ in (-1, 40, 2**63):
        with pytest.raises(InputError, match=f"id {id_} is not in"):
            index.reconstruct(id_)


# ---- duplicates ------------------------------------------------------------------------------------


def test_skip_leaves_out_what_is_known_and_learns_the_rest(tmp_path):
    X, tags = tagged(1)
    with WOHIndex.create(tmp_path / "a", **SMALL) as a, WOHIndex.create(tmp_path / "b", **SMALL) as b:
        for index in (a, b):
            index.update(*tagged(0), ids=np.arange(40), keys=[f"k{i}" for i in range(40)])
        ids = np.arange(40) + 30  # the first ten are known
        done = a.update(X, tags, ids=ids, on_duplicate="skip")
        b.update(X[10:], tags[10:], ids=ids[10:])
        assert (done.n, done.removed, done.ntotal, done.health["skipped"]) == (30, 0, 70, 10)
        assert contents(a.path, but=("catalog.db",)) == contents(b.path, but=("catalog.db",))
        assert a.tags() == b.tags()
        again = a.update(X, tags, ids=ids, on_duplicate="skip")
        assert (again.n, again.kind, again.ntotal, again.health) == (0, "encoded", 70, {"skipped": 40})
        assert a.add(X[:1], keys=["k3"], on_duplicate="skip").n == 0
        assert a.add(X[:2], keys=["k3", "new"], on_duplicate="skip").n == 1
        assert a.id_of("new") == 70
        a.update(*tagged(2))
        assert WOHIndex.verify(a.path) == []


def test_replace_puts_the_new_code_in_the_old_ones_place(index):
    index.add(XQ[:3], ids=[100, 101, 102], keys=["a", "b", "c"])
    index.add(XQ[3:], ids=[103])
    new = tagged(20, n=4)[0]
    done = index.add(new, [["x"], ["y"], ["z"], ["w"]], ids=[101, 103, 500, 100], on_duplicate="replace")
    assert (done.n, done.removed, done.ntotal) == (4, 3, 45)
    assert_array_equal([index.reconstruct(i) for i in (101, 103, 500, 100)], index.encode(new))
    items = index.items([100, 101, 102, 103, 500])
    assert [item.key for item in items] == ["a", "b", "c", None, None]
    assert [item.tags for item in items] == [["w"], ["x"], [], ["y"], ["z"]]
    by_key = index.add(new[:2], keys=["c", "fresh"], on_duplicate="replace")
    assert (by_key.n, by_key.removed) == (2, 1)
    assert (index.id_of("c"), index.id_of("fresh")) == (102, 501)
    both = index.add(new[:2], ids=[103, 100], keys=["named now", "a"], on_duplicate="replace")
    assert both.removed == 2
    assert index.id_of("named now") == 103
    index.update(*tagged(3), ids=np.arange(40), on_duplicate="replace")
    assert index.ntotal == 46
    _, I = index.search(new, 46)
    assert all(len(set(row)) == 46 for row in I.tolist())
    assert index.compact().items == 46
    assert_array_equal(index.search(new, 46)[1], I)
    assert WOHIndex.verify(index.path) == []


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize(
    ("ids", "keys", "message"),
    [
        ([100, 9], ["b", "x"], r"row 0 has key 'b' and id 100, the index has that key under id 101; give"),
        ([9, 101], ["x", "other"], r"row 1 has id 101 and key 'other', the index has that id under key 'b'"),
        ([999, 9], ["a", "x"], r"row 0 has key 'a' and id 999, the index has that key under id 100"),
    ],
)
def test_items_in_doubt_are_refused(index, ids, keys, message, policy):
    index.add(XQ[:2], ids=[100, 101], keys=["a", "b"])
    before = index.rounds()
    with pytest.raises(InputError, match=message):
        index.add(XQ[:2], ids=ids, keys=keys, on_duplicate=policy)
    assert index.rounds() == before


def test_an_unknown_policy_is_refused(index):
    with pytest.raises(InputError, match="on_duplicate is 'merge', expected one of error, skip, replace"):
        index.add(XQ, on_duplicate="merge")


def test_many_files_with_duplicates_are_checked_before_the_first_is_committed(index, tmp_path):
    def chunk(name, **more):
        X, tags = tagged(4, n=2)
        np.savez(tmp_path / name, features=X, tags=[" ".join(entry) for entry in tags], **more)
        return tmp_path / f"{name}.npz"

    first = chunk("first", ids=[900, 5], keys=["p", "q"])
    second = chunk("second", ids=[900, 6], keys=["p", "r"])
    doubt = chunk("doubt", ids=[900, 7], keys=["z", "y"])
    gone = chunk("gone", ids=[8, 901])
    index.remove([8])
    with pytest.raises(InputError, match=r"first.npz: id 5 is in the index already"):
        list(index.extend([first, second]))
    with pytest.raises(InputError, match=r"gone.npz: id 8 was removed"):
        list(index.extend([first, gone], on_duplicate="skip"))
    with pytest.raises(InputError, match=r"doubt.npz: id 900 has key 'z', in an earlier file id 900 has key"):
        list(index.extend([first, doubt], on_duplicate="replace"))
    assert len(index.rounds()) == 2
    done = list(index.extend([first, second], learn=False, on_duplicate="replace"))
    assert [(r.n, r.removed) for r in done] == [(2, 1), (2, 2)]
