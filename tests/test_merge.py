"""Copies of an index as one: what each has appended is there, what does not compare is refused."""

import json
import shutil
from datetime import date, datetime

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LEARNED, SMALL, length, tagged

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.index.merge import merge
from woh_faiss_cli.main import main

XQ = tagged(7, n=5)[0]


#: Of the items that each copy adds: `price` of one type in both, each with columns of its own.
METADATA = (
    {"price": np.arange(40) / 4, "old": [True, None] * 20},
    {
        **{"price": [None, 2.5] * 20, "new": [True, False] * 20, "n": list(range(40))},
        **{"day": [date(2026, 11, 29), None] * 20, "at": [datetime(2026, 1, 2, 3), None] * 20},
    },
)


def keys(name, n=40):
    return [f"{name}/{i}" for i in range(n)]


@pytest.fixture
def copies(tmp_path):
    """Two copies a and b of an index of 80 items with ids of their own, each with 40 items more."""
    with WOHIndex.create(tmp_path / "i", **LEARNED) as index:
        for seed in range(2):
            index.update(*tagged(seed), keys=keys(seed), ids=np.arange(40) + 40 * seed)
        for number, name in enumerate("ab"):
            index.backup(tmp_path / name)
            with WOHIndex.open(tmp_path / name) as copy:
                copy.add(
                    *tagged(5 + number),
                    keys=keys(name),
                    ids=np.arange(40) + 1000 * (number + 1),
                    metadata=METADATA[number],
                )
    return tmp_path / "a", tmp_path / "b"


def contents(index):
    """Everything that can be found, by id: key, tags, trust, metadata that is not missing, code."""
    ids = index.ids()
    return {
        item.id: (
            *(item.key, item.tags, item.trust),
            {name: value for name, value in item.metadata.items() if value is not None},
            bytes(index.reconstruct(item.id)),
        )
        for item in index.items(ids)
    }


def test_items_of_both_are_there_as_they_were(copies, tmp_path):
    a, b = copies
    before = {path: (path / "codes.faiss").read_bytes() for path in copies}
    found = merge([a, b], tmp_path / "c")
    assert found == (str(a), 1, 40, 0, 0, 0, 160)
    assert WOHIndex.verify(tmp_path / "c") == []
    with WOHIndex.open(a) as one, WOHIndex.open(b) as two, WOHIndex.open(tmp_path / "c") as both:
        assert contents(both) == contents(one) | contents(two)
        mine, theirs = both.rounds(), two.rounds()
        assert mine[:3] == one.rounds()
        assert (mine[3].kind, mine[3].n, mine[3].chunk_hash) == ("encoded", 40, theirs[2].chunk_hash)
        assert mine[3].health["merged_round"] == 3
        D, I = both.search(XQ, 160, by="hamming")
        apart = [index.search(XQ, 120, by="hamming") for index in (one, two)]
        for q in range(5):
            wanted = {
                i: d
                for found in apart
                for d, i in zip(found[0][q].tolist(), found[1][q].tolist(), strict=True)
            }
            assert dict(zip(I[q].tolist(), D[q].tolist(), strict=True)) == wanted
        both.update(*tagged(9), keys=keys("later"))  # and it goes on as any index
        assert both.ntotal == 200
    assert before == {path: (path / "codes.faiss").read_bytes() for path in copies}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "i"]


def test_chunks_of_both_are_known_and_skipped(copies, tmp_path):
    X, tags = tagged(6)
    more = tmp_path / "more.npz"
    np.savez(more, features=X, tags=[";".join(t) for t in tags], ids=np.arange(40) + 3000)
    with WOHIndex.open(copies[1]) as copy:
        assert len(list(copy.extend([more], learn=False))) == 1
    merge(copies, tmp_path / "c")
    notes = []
    with WOHIndex.open(tmp_path / "c") as both:
        assert list(both.extend([more], learn=False, note=notes.append)) == []
    assert "already added (round 5)" in notes[0]


def test_the_one_that_learned_since_is_the_base_whatever_the_order(copies, tmp_path):
    a, b = copies
    with WOHIndex.open(b) as copy:
        copy.update(*tagged(11), ids=np.arange(40) + 5000)
    for name, order in (("c", (a, b)), ("d", (b, a))):
        found = merge(order, tmp_path / name)
        assert (found.base, found.items, found.ntotal) == (str(b), 40, 200)
        with WOHIndex.open(b) as newest, WOHIndex.open(tmp_path / name) as both:
            assert both.hasher.fingerprint == newest.hasher.fingerprint
    with WOHIndex.open(a) as copy:
        copy.update(*tagged(12), ids=np.arange(40) + 6000)
    with pytest.raises(InputError, match=r"learned apart since they were one.*woh-index update") as raised:
        merge(copies, tmp_path / "e")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "e").exists()


def test_three_of_which_one_is_a_copy_of_another(copies, tmp_path):
    a, b = copies
    with WOHIndex.open(b) as source:
        source.backup(tmp_path / "b2")
    with WOHIndex.open(tmp_path / "b2") as copy:
        copy.add(*tagged(13), ids=np.arange(40) + 7000)
    found = merge([a, b, tmp_path / "b2"], tmp_path / "c")
    assert (found.rounds, found.items, found.ntotal) == (2, 80, 200)


@pytest.mark.parametrize(("policy", "first"), [("skip", "a"), ("replace", "b")])
def test_equal_ids_and_keys(copies, tmp_path, policy, first):
    for name, path in zip("ab", copies, strict=True):
        with WOHIndex.open(path) as copy:
            copy.add(
                *tagged(20 if name == "a" else 21, n=10), ids=np.arange(10) + 9000, keys=keys("same", 10)
            )
    with pytest.raises(InputError, match="'same/0' is in the index already"):
        merge(copies, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    found = merge(copies, tmp_path / "c", on_duplicate=policy)
    assert found.skipped == (10 if policy == "skip" else 0)
    with WOHIndex.open(tmp_path / "c") as both, WOHIndex.open(tmp_path / first) as kept:
        assert both.ntotal == 170
        assert contents(both)[9003] == contents(kept)[9003]


def test_ids_that_both_gave_by_themselves(tmp_path):
    with WOHIndex.create(tmp_path / "i", **LEARNED) as index:
        index.update(*tagged(0), keys=keys("i"))
        for number, name in enumerate("ab"):
            index.backup(tmp_path / name)
            with WOHIndex.open(tmp_path / name) as copy:
                copy.add(*tagged(5 + number), keys=keys(name))
    where = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(InputError, match="id 40 is in the index already"):
        merge(where, tmp_path / "c")
    assert merge(where, tmp_path / "c", new_ids=True).items == 40
    with WOHIndex.open(tmp_path / "c") as both, WOHIndex.open(tmp_path / "b") as two:
        assert both.id_of("b/0") == 80
        assert (both.reconstruct(80) == two.reconstruct(40)).all()
        assert both.items([80])[0].tags == two.items([40])[0].tags
    with WOHIndex.open(tmp_path / "b") as two:
        two.add(*tagged(8))
    with pytest.raises(InputError, match=r"id 80 of .* has no key"):
        merge(where, tmp_path / "d", new_ids=True)


def test_what_one_has_removed_and_the_other_has_stays_and_is_counted(copies, tmp_path):
    a, b = copies
    with WOHIndex.open(b) as copy:
        copy.remove([3, 4, 2000])
    found = merge([a, b], tmp_path / "c")
    assert (found.items, found.still_there, found.ntotal) == (39, 2, 159)
    with WOHIndex.open(a) as copy:
        copy.remove([3])
        copy.compact()
    found = merge([a, b], tmp_path / "d")
    assert (found.items, found.still_there, found.left_out, found.ntotal) == (39, 1, 0, 158)


def test_shards_that_have_removed_what_was_learned_become_one(copies, tmp_path):
    a, b = copies
    with WOHIndex.open(a) as shard:
        shard.remove(range(80))
        shard.compact()
    found = merge([a, b], tmp_path / "c")
    assert (found.base, found.items, found.still_there, found.ntotal) == (str(b), 40, 80, 160)
    with WOHIndex.open(a) as shard:  # which is the base now, for it has learned
        shard.update(*tagged(30), ids=np.arange(40) + 8000)
    found = merge([a, b], tmp_path / "d")
    assert (found.base, found.items, found.left_out, found.ntotal) == (str(a), 40, 80, 120)


def test_instance_bits_are_the_same_or_it_is_refused(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL, instance_bits=16) as index:
        index.update(*tagged(0, n=1990), ids=np.arange(1990))
        index.backup(tmp_path / "early")
        index.add(*tagged(1, n=20), ids=np.arange(20) + 3000)  # with which instance bits are final
        index.backup(tmp_path / "late")
        index.add(*tagged(2), ids=np.arange(40) + 4000)
    with WOHIndex.open(tmp_path / "late") as late:
        late.add(*tagged(3), ids=np.arange(40) + 5000)
    with pytest.raises(InputError, match="fewer than 2,000 items"):
        merge([tmp_path / "i", tmp_path / "early"], tmp_path / "c")
    assert merge([tmp_path / "i", tmp_path / "late"], tmp_path / "c").ntotal == 2090
    assert WOHIndex.verify(tmp_path / "c") == []
    with WOHIndex.open(tmp_path / "c") as both, WOHIndex.open(tmp_path / "late") as late:
        assert (both.reconstruct(5007) == late.reconstruct(5007)).all()


@pytest.mark.parametrize("seed", range(length(8)))
def test_random_lives_against_an_oracle(tmp_path, seed):
    rng = np.random.default_rng(seed)
    fresh = iter(range(100, 100_000))
    with WOHIndex.create(tmp_path / "0", **LEARNED) as index:
        index.update(*tagged(seed), keys=keys("first"), ids=np.arange(40))
        for name in "12":
            index.backup(tmp_path / name)
    where = [tmp_path / name for name in "012"]
    learner = rng.integers(3)
    for step in range(12):
        which = rng.integers(3)
        with WOHIndex.open(where[which]) as copy:
            match rng.integers(5):
                case 0:
                    copy.remove(rng.choice(copy.ids(), min(3, copy.ntotal - 1), replace=False))
                case 1 if which == learner:
                    copy.update(*tagged(100 * seed + step, n=12), ids=[next(fresh) for _ in range(12)])
                case 2 if which != 0:
                    copy.compact()
                case _:
                    n = int(rng.integers(1, 9))
                    named = keys(f"{which}/{step}", n) if rng.random() < 0.5 else None
                    more = {"number": rng.random(n), f"of{which}": [f"{step}"] * n} if step % 2 else None
                    copy.add(
                        *tagged(step, n=n), ids=[next(fresh) for _ in range(n)], keys=named, metadata=more
                    )
    found = merge(where, tmp_path / "all")
    wanted: dict = {}
    for place in sorted(
        where, key=lambda place: str(place) == found.base
    ):  # the base decides about the first
        with WOHIndex.open(place) as index:
            own = contents(index)
        first = {id_ for id_ in own if id_ < 100}
        wanted |= {id_: item for id_, item in own.items() if str(place) == found.base or id_ not in first}
    with WOHIndex.open(tmp_path / "all") as index:
        assert contents(index) == wanted
        assert index.ntotal == found.ntotal
    assert WOHIndex.verify(tmp_path / "all") == []


def test_others_are_refused_in_one_line(copies, tmp_path):
    a, b = copies
    with WOHIndex.create(tmp_path / "other", **LEARNED) as other:
        other.update(*tagged(0))
    with WOHIndex.create(tmp_path / "empty", **LEARNED) as empty:
        empty.backup(tmp_path / "empty2")
    damaged = tmp_path / "damaged"
    shutil.copytree(b, damaged)
    codes = bytearray((damaged / "codes.faiss").read_bytes())
    codes[-1] ^= 1
    (damaged / "codes.faiss").write_bytes(codes)
    for sources, kind, message in (
        ([a, tmp_path / "other"], InputError, "are not copies of one index"),
        ([tmp_path / "empty", tmp_path / "empty2"], InputError, "has learned nothing yet"),
        ([a], InputError, "1 indexes were given, expected two or more"),
        ([a, b, a], InputError, "each once"),
        ([a, damaged], StoreError, "damaged"),
        ([a, tmp_path / "nowhere"], StoreError, "nowhere"),
    ):
        with pytest.raises(kind, match=message) as raised:
            merge(sources, tmp_path / "c")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "c").exists()
    with pytest.raises(StoreError, match="exists already"):
        merge(copies, a)
    with pytest.raises(StoreError, match="choose another place"):
        merge(copies, tmp_path / "no" / "c")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_command(copies, tmp_path):
    with WOHIndex.open(copies[1]) as copy:
        copy.remove([3])
    done = CliRunner().invoke(main, ["merge", *map(str, copies), "-o", str(tmp_path / "c"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        **{"path": str(tmp_path / "c"), "base": str(copies[0]), "rounds": 1, "items": 40, "skipped": 0},
        **{"still_there": 1, "left_out": 0, "ntotal": 160},
    }
    assert "and what others appended, 40 items; 160 items in all" in done.stderr
    assert "that another INDEX removed or replaced: 1; they stay" in done.stderr
    done = CliRunner().invoke(main, ["merge", *map(str, copies), "-o", str(tmp_path / "c")])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
