"""The life of items in an index: removed, replaced, skipped, erased, and rounds taken back."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import ConfigError, InputError, NotFittedError, StoreError

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
    items = sorted(index._store.find(np.arange(200)).values(), key=lambda item: item.row)
    assert not {item.id for item in items} & set(gone)
    with other._store.writing() as writing:
        writing.commit(
            kind="encoded",
            codes=index._store.codes([item.id for item in items]),
            ids=[item.id for item in items],
            keys=[item.key for item in items],
            tags=[item.tags for item in items],
            trained=0,
            seconds=0,
            model=dict(index._store.model()),
            anchors=np.asarray(index._store.anchors()),
            tag_rows=index._store.tag_rows(),
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
                (index.search(XQ, k, rerank=100), oracle.search(XQ, k, rerank=100)),
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
    D, I = index.search(XQ, 2)
    assert (I == -1).all()
    assert (np.iinfo(np.int32).max == D).all()
    assert (index.search(XQ, 2, rerank=5)[1] == -1).all()
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
    assert_array_equal(packed, codes.unpad(index._store.codes([3]), 16)[0])
    assert packed.shape == (2,)
    signs = index.reconstruct(3, signs=True)
    assert signs.dtype == np.int8
    assert signs.shape == (16,)
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


# ---- compact ---------------------------------------------------------------------------------------


def test_nothing_of_an_erased_item_is_in_any_file(tmp_path):
    secret_key, secret_tag, secret_id = "photos/secret-person.jpg", "secretname", 0x5EC2E7_1D5
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        X, tags = tagged(0)
        tags[5] = [*tags[5], secret_tag]
        ids = np.arange(40) * 3
        ids[5] = secret_id
        ids[39] = 2**50  # the largest stays known as a number
        index.update(X, tags, ids=ids, keys=[f"k{i}" if i != 5 else secret_key for i in range(40)])
        index.update(*tagged(1))
        code = index.reconstruct(secret_id)
        padded = codes.pad(code[None])[0].tobytes()
        alike = sum(r.tobytes() == padded for r in index._store.codes(ids))
        assert secret_tag in [tag for tag, *_ in index.tags()]
        index.update(*tagged(2, n=4), keys=[secret_key + str(i) for i in range(4)])
        index.remove(keys=[secret_key, *(secret_key + str(i) for i in range(4))])
        assert index.compact() == (5, True)
        assert secret_tag not in [tag for tag, *_ in index.tags()]
        left = b"".join(p.read_bytes() for p in index.path.iterdir())
        big = [secret_id.to_bytes(n, order) for n in (5, 8) for order in ("big", "little")]
        for trace in (secret_key.encode(), b"secret", secret_tag.encode(), str(secret_id).encode(), *big):
            assert trace not in left
        stored = index._store.codes([i for i in ids.tolist() if i != secret_id])
        assert sum(r.tobytes() == padded for r in stored) == alike - 1
        assert (index.path / "codes.faiss").stat().st_size == 33 + 79 * 4
        with pytest.raises(InputError, match=f"id {secret_id} was removed"):  # known by its digest alone
            index.update(*tagged(3), ids=[secret_id, *range(5000, 5039)])
        assert WOHIndex.verify(index.path) == []


def test_a_tag_that_was_learned_or_that_someone_else_has_stays(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        X, tags = tagged(0)
        tags[0], tags[1] = ["shared", *tags[0]], ["mine", *tags[1]]
        tags[2], tags[3] = ["learned", *tags[2]], ["learned", *tags[3]]
        index.update(X, tags)
        index.add(X[:1], [["shared"]])
        index.remove([0, 1, 2, 3])
        index.compact()
        assert {"shared", "learned"} == {tag for tag, *_ in index.tags()} & {"shared", "mine", "learned"}


def test_compacting_changes_no_answer_and_no_later_round(tmp_path):
    def life(path, compacts):
        index = WOHIndex.create(path, **SMALL)
        for seed in range(3):
            index.update(*tagged(seed))
            index.remove([40 * seed + 3, 40 * seed + 4])
            before = index.search(XQ, 200)
            if compacts:
                assert index.compact() == (2, True)
                assert index.compact() == (0, True)
            assert_array_equal(index.search(XQ, 200)[1], before[1])
        return index

    with life(tmp_path / "a", True) as a, life(tmp_path / "b", False) as b:
        names = {"model-3.npz", "model-5.npz"}
        assert {n: v for n, v in contents(a.path).items() if n in names} == {
            n: v for n, v in contents(b.path).items() if n in names
        }
        assert a.tags() == b.tags()
        assert_array_equal(a.search(XQ, 200)[0], b.search(XQ, 200)[0])
        b.compact()
        assert contents(a.path, but=("catalog.db",)) == contents(b.path, but=("catalog.db",))


def test_a_reader_in_the_way_leaves_traces_that_a_second_run_takes_away(index):
    index.remove([3])
    other = sqlite3.connect(f"{(index.path / 'catalog.db').as_uri()}?mode=ro", uri=True)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM items").fetchone()
    assert index.compact(timeout=0.05) == (1, False)
    other.close()
    assert index.compact() == (0, True)


# ---- rollback --------------------------------------------------------------------------------------


def jobs(index, numbers):
    """The given steps of a life, each with ids of its own."""
    for number in numbers:
        first = 1000 * number
        if number % 3 == 2:
            index.remove([first - 1000, first - 999])
        elif number % 3 == 0:
            index.add(XQ, [["sea"], [], ["odd"], ["hill"]], ids=first + np.arange(4))
        else:
            X, tags = tagged(number)
            tags[0] = [*tags[0], f"only{number}", "sometimes"]
            index.update(X, tags, ids=first + np.arange(40), keys=[f"{number}/{i}" for i in range(40)])


def rows(index):
    return [(r.kind, r.n, r.removed, r.ntotal, r.end_row, r.checksum, r.fingerprint) for r in index.rounds()]


@pytest.mark.parametrize("start", ["semantic", "random"])
@pytest.mark.parametrize("target", range(8))
def test_after_a_rollback_everything_is_as_if_later_rounds_had_never_been(tmp_path, target, start):
    preset = {"preset": "paper"} if start == "random" else {}
    more = {**SMALL, "keep_models": 9, **preset}
    a, b = WOHIndex.create(tmp_path / "a", **more), WOHIndex.create(tmp_path / "b", **more)
    with a, b:
        jobs(a, range(1, 9))
        reader = WOHIndex.open(a.path)
        before = reader.search(XQ, 50)
        a.rollback(target)
        jobs(b, range(1, target + 1))
        for later in ([], range(target + 1, 9)):
            jobs(a, later)
            jobs(b, later)
            assert contents(a.path, but=("catalog.db",)) == contents(b.path, but=("catalog.db",))
            assert a._store.tag_rows() == b._store.tag_rows()
            assert rows(a) == rows(b)
            assert WOHIndex.verify(a.path) == []
            for x, y in zip(a.search(XQ, 50), b.search(XQ, 50), strict=True):
                assert_array_equal(x, y)
            assert_array_equal(reader.search(XQ, 50)[1], before[1])
        assert a._store.snapshot.next_id == b._store.snapshot.next_id
        if target:
            assert a.describe(*a.search(XQ, 50)) == b.describe(*b.search(XQ, 50))
        reader.refresh()
        assert_array_equal(reader.search(XQ, 50)[1], a.search(XQ, 50)[1])
        reader.close()


def test_ids_that_the_index_gave_are_not_given_again(index):
    index.update(*tagged(1))
    index.rollback(1)
    assert index.add(XQ).n == 4
    assert sorted(i for i in index.search(XQ, 44)[1][0] if i >= 40) == [80, 81, 82, 83]
    index.rollback(0)
    assert index.ntotal == 0
    with pytest.raises(NotFittedError):
        index.add(XQ)
    index.update(*tagged(2))
    assert index.items([84])[0].row == 0


def test_what_cannot_be_rolled_back_to(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:  # keeps two models
        for seed in range(4):
            index.update(*tagged(seed))
        for number in (-1, 4, 9):
            with pytest.raises(InputError, match=f"round is {number}, expected 0 or more and an earlier one"):
                index.rollback(number)
        for number in (0, 1, 2):
            with pytest.raises(
                InputError, match=rf"round {number} cannot be restored.* can is 3 .*keep-models"
            ):
                index.rollback(number)
        index.rollback(3)
        assert index.ntotal == 120
        index.update(*tagged(5))
        index.rollback(3)


def test_erased_items_stay_erased(index):
    index.add(XQ, keys=list("abcd"))
    index.remove(keys=["a", "b"])
    index.compact()
    index.rollback(2)
    assert index.ntotal == 42
    assert index.id_of("c") == 42
    with pytest.raises(StoreError, match=r"no item .* has the key 'a'"):
        index.id_of("a")
    assert WOHIndex.verify(index.path) == []


def test_keep_models_must_be_a_count(tmp_path):
    with pytest.raises(ConfigError, match="keep_models is 0"):
        WOHIndex.create(tmp_path / "i", keep_models=0)
