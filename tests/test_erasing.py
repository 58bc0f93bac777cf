"""Items erased for good, the ids that stay used, and rounds taken back."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from conftest import SMALL, full_length_only, length, tagged
from numpy.testing import assert_array_equal
from test_life import XQ, contents

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import ConfigError, InputError, NotFittedError, StoreError
from woh_faiss.store import NewRound, Store, compaction


def flip_middle(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.fixture
def three_rounds(tmp_path):
    """A closed index whose rounds 1 and 3 add 40 items and round 2 adds 24, with three models and anchors."""
    with WOHIndex.create(tmp_path / "i", **SMALL, preset="paper", keep_models=3) as index:
        for seed, n in ((0, 40), (1, 24), (2, 40)):
            index.update(*tagged(seed, n))
    return tmp_path / "i"


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
        alike = sum(r.tobytes() == padded for r in index._store.view.codes(ids))
        assert secret_tag in [tag for tag, *_ in index.tags()]
        index.update(*tagged(2, n=4), keys=[secret_key + str(i) for i in range(4)])
        index.remove(keys=[secret_key, *(secret_key + str(i) for i in range(4))])
        assert index.compact() == (5, True)
        assert secret_tag not in [tag for tag, *_ in index.tags()]
        left = b"".join(p.read_bytes() for p in index.path.iterdir())
        big = [secret_id.to_bytes(n, order) for n in (5, 8) for order in ("big", "little")]
        for trace in (secret_key.encode(), b"secret", secret_tag.encode(), str(secret_id).encode(), *big):
            assert trace not in left
        stored = index._store.view.codes([i for i in ids.tolist() if i != secret_id])
        assert sum(r.tobytes() == padded for r in stored) == alike - 1
        assert (index.path / "codes.faiss").stat().st_size == 33 + 79 * 16
        with pytest.raises(InputError, match=f"id {secret_id} was removed"):  # known by its digest alone
            index.update(*tagged(3), ids=[secret_id, *range(5000, 5039)])
        assert WOHIndex.verify(index.path) == []


def traces(x):
    """A row of features in the forms that a file may have it in."""
    unit = x.astype(np.float64) / np.sqrt(np.square(x.astype(np.float64)).sum())
    forms = [x.astype(np.float64), unit]
    return [form.astype(dtype).tobytes() for form in forms for dtype in (np.float64, np.float32, np.float16)]


def held_bytes(path):
    """The bytes of a file, of a model those of its arrays."""
    if not path.name.startswith("model-"):
        return path.read_bytes()
    with np.load(path) as arrays:
        return b"".join(array.tobytes() for array in arrays.values())


@pytest.mark.parametrize("anchors", [8, 30, 40, 41])
@pytest.mark.parametrize("twice", [False, True])
def test_no_anchor_is_the_row_of_an_item(tmp_path, anchors, twice):
    """With items left over for k-means and without, with rows that are there twice, erased or not."""
    with WOHIndex.create(tmp_path / "i", **SMALL | {"anchors": anchors}, instance_bits=0) as index:
        X, tags = tagged(0)
        if twice:
            X[20:] = X[:20]
        index.update(X, tags)
        index.update(*tagged(1))
        index.remove([*range(40)])
        assert index.compact() == (40, True)
        for path in index.path.iterdir():
            held = held_bytes(path)
            assert not any(form in held for x in X for form in traces(x)), path.name


@pytest.mark.parametrize("way", ["remove", "replace"])
def test_nothing_of_an_erased_item_is_in_what_the_learner_keeps(tmp_path, way):
    """While items are few it keeps them whole, with tags and without, in each model that is kept."""
    with WOHIndex.create(tmp_path / "i", **SMALL | {"anchors": 500}, keep_models=3) as index:
        rounds = []
        for seed in range(3):
            X, tags = tagged(seed)
            tags[7] = []
            index.update(X, tags, ids=100 * seed + np.arange(40))
            rounds.append(X)
        gone = {5: rounds[0][5], 107: rounds[1][7]}  # one with tags, one without
        models = [held_bytes(path) for path in sorted(index.path.glob("model-*"))]
        assert all(any(form in model for form in traces(gone[5])) for model in models)
        assert any(form in models[-1] for form in traces(gone[107]))
        if way == "remove":
            index.remove([*gone])
        else:
            index.add(XQ[:2], ids=[*gone], on_duplicate="replace")
        D, I = index.search(XQ, 20)
        assert index.compact() == (2, True)
        for x in gone.values():
            for path in index.path.iterdir():
                held = held_bytes(path)
                assert not any(form in held for form in traces(x)), path.name
        kept = rounds[2][20]
        assert any(form in held_bytes(path) for path in index.path.glob("model-*") for form in traces(kept))
        for found, before in zip(index.search(XQ, 20), (D, I), strict=True):
            assert_array_equal(found, before)
        assert WOHIndex.verify(index.path) == []
        index.update(*tagged(5))
        index.rollback(2)
        assert WOHIndex.verify(index.path) == []
        assert index.update(*tagged(6)).trained == 40


def test_a_round_learns_alike_from_items_that_are_removed_and_from_erased_ones(tmp_path):
    learned = []
    for name in "ab":
        with WOHIndex.create(tmp_path / name, **SMALL | {"anchors": 500}) as index:
            index.update(*tagged(0))
            index.remove([3, 4])
            if name == "a":
                index.compact()
            index.update(*tagged(1), on_duplicate="replace", ids=[*range(20, 40), *range(100, 120)])
            learned.append(dict(index._store.view.learned()))
    assert learned[0].keys() == learned[1].keys()
    for key, array in learned[0].items():
        assert_array_equal(array, learned[1][key], err_msg=key)
    assert learned[0]["adaptive_names"][:, 0].tolist() == [
        *{*range(20)} - {3, 4},
        *range(20, 40),
        *range(100, 120),
    ]


def spent(path):
    with closing(sqlite3.connect(path / "catalog.db")) as connection:
        return [digest for (digest,) in connection.execute("SELECT digest FROM spent")]


def refused(index, id_):
    for policy in ("error", "skip", "replace"):
        with pytest.raises(InputError, match=rf"id {id_} was removed from the index .* give new ids"):
            index.add(XQ[:1], ids=[id_], on_duplicate=policy)


def test_ids_that_the_index_gave_stay_used_when_erased_and_leave_nothing(index):
    for first in (40, 80, 120):
        index.update(*tagged(1))
        index.remove([first, first + 39])
        assert index.compact() == (2, True)
    for id_ in (40, 79, 80, 159):
        refused(index, id_)
    assert spent(index.path) == []
    assert index.add(XQ[:1], ids=[160]).ntotal == 155


def test_an_erased_id_of_a_users_own_leaves_a_digest_and_is_refused(index):
    index.add(XQ, ids=[100, 2**40, 101, 2**62], keys=list("abcd"))
    index.add(XQ[:2])  # two from 2**62 + 1 on
    index.add(XQ[:1], ids=[100], on_duplicate="replace")  # its old row is erased, it is not
    gone = [3, 101, 2**40, 2**62 + 1]
    index.remove(gone)
    assert index.compact() == (5, True)
    found = spent(index.path)
    assert [len(digest) for digest in found] == [8, 8, 8]  # 3 is one that the index gave before
    for id_ in gone:
        refused(index, id_)
    index.add(XQ[:1], ids=[100], on_duplicate="replace")
    index.remove([100])
    index.compact()
    refused(index, 100)
    assert {*found} < {*spent(index.path)}
    assert index.add(XQ[:1], ids=[102], keys=["b"]).n == 1  # below the largest, never used; a key is free
    index.rollback(1)
    for id_ in gone[1:]:
        refused(index, id_)
    assert index.add(XQ[:1], ids=[102]).n == 1  # its round was taken back, and it was never erased
    assert WOHIndex.verify(index.path) == []


def test_the_same_id_has_another_digest_in_another_index(tmp_path):
    found = []
    for name in "ab":
        with WOHIndex.create(tmp_path / name, **SMALL) as index:
            index.update(*tagged(0), ids=np.arange(40) * 2)
            index.remove([6])
            index.compact()
            found += spent(index.path)
    assert len({*found}) == 2


def test_what_an_erased_id_costs(tmp_path):
    n = length(20_000)
    ids = np.random.default_rng(0).choice(2**40, n, replace=False)
    with Store.create(tmp_path / "i", config={}, d=8) as store:
        what = {"kind": "encoded", "keys": [None] * n, "tags": [[]] * n, "trained": 0, "seconds": 0}
        with store.writing() as writing:
            writing.commit(NewRound(codes=np.zeros((n, 1), np.uint8), ids=ids, **what))
        with store.writing() as writing:
            writing.remove(ids.tolist())
        empty = store.compact()
        assert empty == (n, True)
        size = store.sizes()["catalog.db"]
        with store.writing() as writing:
            assert writing.known_ids(ids[::-1]).tolist() == ids[::-1].tolist()
            others = np.setdiff1d(np.arange(1000), ids)
            assert writing.known_ids(others).size == 0
    assert size < 15 * n + 20 * 4096


def test_compacting_does_not_make_damage_its_own(index):
    """Checksums are made anew only over what was what had been written."""
    index.remove([3])
    index.add(tagged(1, n=5)[0])  # opening compares the newest rows
    index.close()
    before = {p.name: p.read_bytes() for p in index.path.iterdir() if "-" not in p.name[:12]}
    for name, at in (("codes.faiss", 60), ("ids.i64", 100)):
        data = bytearray(before[name])
        data[at] ^= 1
        (index.path / name).write_bytes(data)
        told = r"the bytes of round 1 are not what was written; restore"
        with WOHIndex.open(index.path) as damaged, pytest.raises(StoreError, match=told):
            damaged.compact()
        assert (index.path / name).read_bytes() == data
        (index.path / name).write_bytes(before[name])
    with closing(sqlite3.connect(index.path / "catalog.db")) as connection, connection:
        connection.execute("UPDATE items SET key = 'x' WHERE id = 5")
    with WOHIndex.open(index.path) as damaged:
        for act in (damaged.compact, lambda: damaged.rollback(1)):
            with pytest.raises(StoreError, match=r"catalog.db .*table items is not as it was written"):
                act()


@pytest.mark.parametrize("name", ["anchors.npy", "model-1.npz"])
def test_compacting_rewrites_nothing_beside_files_of_another_index(index, tmp_path, name):
    """Such an index is refused: its codes and ids may be all that is left of it."""
    index.remove([3])
    index.close()
    before = {p.name: p.read_bytes() for p in index.path.iterdir() if "-" not in p.name[:12]}
    with WOHIndex.create(tmp_path / "other", **SMALL | {"seed": 5}) as other:
        other.update(*tagged(5))
    own = (index.path / name).read_bytes()
    shutil.copy(tmp_path / "other" / name, index.path / name)
    with WOHIndex.open(index.path) as mixed, pytest.raises(StoreError, match=name):
        mixed.compact()
    (index.path / name).write_bytes(own)
    assert {p.name: p.read_bytes() for p in index.path.iterdir() if "-" not in p.name[:12]} == before
    with WOHIndex.open(index.path) as whole:
        assert whole.compact() == (1, True)


def test_what_compacting_keeps_is_compared_without_the_lock(index, monkeypatch):
    """Records of all items are read: others may write meanwhile, and lose nothing."""
    index.remove([3])
    with WOHIndex.open(index.path) as other:
        check = compaction.check_kept

        def beside(connection):
            check(connection)
            other.add(XQ, keys=list("abcd"), timeout=0)

        monkeypatch.setattr(compaction, "check_kept", beside)
        assert index.compact() == (1, True)
        assert index.ntotal == 43
        assert index.id_of("d") == 43
    assert WOHIndex.verify(index.path) == []


def test_a_state_that_is_not_as_it_was_written_moves_no_file(index):
    """By it a writer cuts and removes files."""
    index.update(*tagged(1))
    index.close()
    before = {*index.path.glob("model-*")}
    with closing(sqlite3.connect(index.path / "catalog.db")) as connection, connection:
        (text,) = connection.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
        text = json.dumps(json.loads(text) | {"models": []})
        connection.execute("UPDATE meta SET value = ? WHERE name = 'state'", (text,))
    told = r"catalog.db .*table meta is not as it was written"
    for act in (WOHIndex.open, lambda path: WOHIndex.restore(path, 1)):
        with pytest.raises(StoreError, match=told):
            act(index.path)
    assert {*index.path.glob("model-*")} == before


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
    return [(r.kind, r.n, r.removed, r.ntotal, r.end_row, r.checksum, r.model_digest) for r in index.rounds()]


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """The folder of an index after each step of its life, which begins in each of two ways."""
    found = {}
    for start, preset in (("semantic", {}), ("random", {"preset": "paper"})):
        folder = tmp_path_factory.mktemp(start)
        WOHIndex.create(folder / "i", **SMALL, keep_models=9, **preset).close()
        for number in range(9):
            if number:
                with WOHIndex.open(folder / "i") as index:
                    jobs(index, [number])
            found[start, number] = shutil.copytree(folder / "i", folder / str(number))
    return found


@pytest.mark.parametrize(
    ("start", "target"),
    [
        *(("semantic", target) for target in (0, 2, 3, 6, *full_length_only(1, 4, 5, 7))),
        *(("random", target) for target in (1, 4, 5, 7, *full_length_only(0, 2, 3, 6))),
    ],
)
def test_after_a_rollback_everything_is_as_if_later_rounds_had_never_been(lives, tmp_path, target, start):
    a = WOHIndex.open(shutil.copytree(lives[start, 8], tmp_path / "a"))
    b = WOHIndex.open(shutil.copytree(lives[start, target], tmp_path / "b"))
    with a, b:
        reader = WOHIndex.open(a.path)
        before = reader.search(XQ, 50)
        a.rollback(target)
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
        with pytest.raises(InputError, match="round is -1, expected at least 0"):
            index.rollback(-1)
        with pytest.raises(InputError, match="round is 'x', expected a whole number"):
            index.rollback("x")
        for number in (4, 9):
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


# What the state after round 2 of three needs, and how it is damaged.
NEEDED = {
    "model": ("model-2.npz", flip_middle),
    "cut model": ("model-2.npz", lambda path: os.truncate(path, 100)),
    "empty model": ("model-2.npz", lambda path: path.write_bytes(b"")),
    "no model": ("model-2.npz", lambda path: path.unlink()),
    "codes": ("codes.faiss", flip_middle),
    "ids": ("ids.i64", flip_middle),
    "anchors": ("anchors.npy", flip_middle),
    "no anchors": ("anchors.npy", lambda path: path.unlink()),
}


@pytest.mark.parametrize("what", NEEDED)
def test_a_rollback_to_a_damaged_state_changes_nothing(three_rounds, what):
    path = three_rounds
    name, damage = NEEDED[what]
    damage(path / name)
    before = contents(path, but=())
    with pytest.raises(StoreError, match=r"restore") as told:
        WOHIndex.restore(path, 2)
    assert name in str(told.value)
    assert contents(path, but=()) == before
    assert "model-3.npz" in before
    if what != "no anchors":  # the newest state needs those, too
        with WOHIndex.open(path) as index:
            assert index.ntotal == 104


@pytest.mark.parametrize("damage", [damage for name, damage in NEEDED.values() if "model" in name])
def test_a_damaged_model_that_a_rollback_does_not_need_is_in_nobodys_way(three_rounds, damage):
    damage(three_rounds / "model-3.npz")
    assert WOHIndex.restore(three_rounds, 2) == 1
    assert WOHIndex.verify(three_rounds) == []
    with WOHIndex.open(three_rounds) as index:
        assert index.ntotal == 64
        assert index.update(*tagged(5)).round == 3


def test_rows_that_a_rollback_takes_away_may_be_damaged(three_rounds):
    data = bytearray((three_rounds / "codes.faiss").read_bytes())
    data[-1] ^= 1
    (three_rounds / "codes.faiss").write_bytes(data)
    WOHIndex.restore(three_rounds, 2)
    assert WOHIndex.verify(three_rounds) == []
