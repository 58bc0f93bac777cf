"""Any sequence of adds, removals, replacements, compactions and rollbacks against plain lists."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from conftest import length
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from store_worker import faiss_bytes
from test_store import naive_search, pairs

from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import Item, NewRound, Store, database

D, KEEP = 32, 2
OPERATIONS = ["trained", "encoded", "replace", "remove", "remove", "compact", "rollback", "reopen", "read"]
OPERATIONS += ["recoded"]


REFUSED = r"cannot be restored|an earlier one than the newest|is forgotten"


class Naive:
    """What an index must answer: live items in order, tags, and both as of every round."""

    def __init__(self):
        self.live, self.tags, self.models, self.restorable = [], {}, [], 0
        self.history = [([], {})]
        self.rounds = {}  # kind of each that is not forgotten
        self.rows = []  # every item that has a row, removed ones too

    @property
    def codes(self):
        return np.array([item["code"] for item in self.live], np.uint8).reshape(-1, D // 8)

    @property
    def ids(self):
        return [item["id"] for item in self.live]

    @property
    def early(self):
        """Row and features of the items that have some."""
        return [(row, item["x"]) for row, item in enumerate(self.rows) if item["x"] is not None]

    def recode(self, codes, number):
        """Every row has another code, and no features any more; nothing before is restored."""
        for item, code in zip(self.rows, codes, strict=True):
            item["code"], item["x"] = code, None
        self.restorable = number

    def committed(self, kind):
        self.rounds[len(self.history)] = kind
        self.history.append((list(self.live), deepcopy(self.tags)))

    def learned(self, tags, number):
        """Tags counted once more; those seen twice get a column for good. Returns rows for the catalogue."""
        for tag in tags:
            column, times, vector = self.tags.get(tag, (None, 0, None))
            if column is None and times:
                column = max((c for c, *_ in self.tags.values() if c is not None), default=-1) + 1
                vector = f"{tag} of {column}".encode()
            self.tags[tag] = (column, times + 1, vector)
        self.models.append(number)
        if len(self.models) > KEEP:
            self.models = self.models[-KEEP:]
            self.restorable = max(self.restorable, self.models[0])
        return [(self.tags[tag][0], tag, *self.tags[tag][1:]) for tag in tags]

    def compacted(self):
        tokens = {item["token"] for item in self.live}
        every = {item["token"]: item for live, _ in self.history for item in live}
        gone = [item for token, item in every.items() if token not in tokens]
        self.rows = [item for item in self.rows if item["token"] in tokens]
        if gone:
            kept = {len(self.history) - 1, *(item["round"] for item in self.live)}
            self.rounds = {n: kind for n, kind in self.rounds.items() if kind == "trained" or n in kept}
        self.history = [([i for i in live if i["token"] in tokens], tags) for live, tags in self.history]
        carried = {tag for item in gone for tag in item["tags"]}
        carried -= {tag for item in self.live for tag in item["tags"]}
        private = {tag for tag in carried if tag in self.tags and self.tags[tag][0] is None}
        for tags in [self.tags, *(tags for _, tags in self.history)]:
            for tag in private:
                tags.pop(tag, None)
        return len(gone)

    def rolled_back(self, number):
        self.live, self.tags = (list(self.history[number][0]), deepcopy(self.history[number][1]))
        self.history = self.history[: number + 1]
        self.rows = [item for item in self.rows if item["round"] <= number]
        self.rounds = {n: kind for n, kind in self.rounds.items() if n <= number}
        self.models = [model for model in self.models if model <= number]


def same(store, naive, queries):
    """The store answers as the lists do."""
    for k in (1, 3, 50):
        assert pairs(store.view.search(queries, k)) == naive_search(naive.codes, naive.ids, queries, k)
    assert store.ntotal == len(naive.live)


def same_early(store, naive):
    """So do the features that are kept."""
    rows, X = store.early_features()
    assert (rows.dtype, X.dtype) == (np.int64, np.float32)
    assert rows.tolist() == [row for row, _ in naive.early]
    assert X.tolist() == [x.tolist() for _, x in naive.early]


def whole(store, naive, queries):
    """So does everything else that only a state that is up to date knows."""
    same(store, naive, queries)
    same_early(store, naive)
    asked = naive.ids[::-1]
    items = [replace(item, row=0) for item in store.view.items(asked)]
    assert items == [Item(i["id"], 0, i["key"], i["tags"], i["round"]) for i in naive.live[::-1]]
    assert_array_equal(store.view.codes(asked), naive.codes[::-1])
    for item in naive.live:
        if item["key"] is not None:
            assert store.view.id_of_key(item["key"]) == item["id"]
    assert {tag: (column, times, vector) for column, tag, times, vector in store.tag_rows()} == naive.tags
    assert store.snapshot.round == len(naive.history) - 1
    assert {done.round: done.kind for done in store.rounds()} == naive.rounds
    assert Store.verify(store.path) == []


@settings(
    max_examples=length(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=14), seed=st.integers(0, 2**32 - 1))
def test_any_life_of_items_equals_lists(tmp_path_factory, steps, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("life") / "i"
    store, naive = Store.create(path, config={"keep_models": KEEP}, d=D), Naive()
    readers, new_id, token = [], count(7, 3), count()
    queries = rng.integers(0, 3, size=(3, D // 8), dtype=np.uint8)
    used = set()
    for step in ["trained", *steps]:
        number = store.snapshot.round + 1
        if step in ("trained", "encoded", "replace", "recoded"):
            replaced = naive.ids if step in ("replace", "recoded") else []
            replaced = [i for i in replaced if rng.random() < 0.3]
            ids = [int(i) for i in rng.permutation([*replaced, *(next(new_id) for _ in range(4))])]
            used |= set(ids)
            early = rng.random() < 0.7 and step != "recoded"
            shape = len(naive.rows), D // 8
            recoded = rng.integers(0, 3, size=shape, dtype=np.uint8) if step == "recoded" else None
            items = [
                {
                    "id": id_,
                    "key": f"key {id_}" if rng.random() < 0.5 else None,
                    "tags": [f"t{t}" for t in rng.permutation(12)[: rng.integers(3)]],
                    "code": rng.integers(0, 3, size=D // 8, dtype=np.uint8),
                    "round": number,
                    "token": next(token),
                    "x": rng.normal(size=3).astype(np.float32) if early else None,
                }
                for id_ in ids
            ]
            touched = sorted({tag for item in items for tag in item["tags"]}) if step == "trained" else []
            rows = naive.learned(touched, number) if step == "trained" else []
            with store.writing() as writing:
                kept = writing.early_features()
                assert_array_equal(kept[0], [row for row, _ in naive.early])
                assert kept[1].tolist() == [x.tolist() for _, x in naive.early]
                writing.commit(
                    NewRound(
                        kind="trained" if step == "trained" else "encoded",
                        codes=np.array([item["code"] for item in items]),
                        ids=ids,
                        keys=[item["key"] for item in items],
                        tags=[item["tags"] for item in items],
                        trained=0,
                        seconds=0.0,
                        model={"P": np.full(2, number)} if step == "trained" else None,
                        anchors=np.ones(3) if step == "trained" and not writing.has_anchors else None,
                        tag_rows=rows,
                        remove=replaced,
                        early=np.array([item["x"] for item in items]) if early else None,
                        recoded=recoded,
                    )
                )
            if recoded is not None:
                naive.recode(recoded, number)
            naive.rows += items
            stored = np.array([item["code"] for item in naive.rows])
            assert (path / "codes.faiss").read_bytes() == faiss_bytes([stored], D)
            naive.live = [item for item in naive.live if item["id"] not in replaced] + items
            naive.committed("trained" if step == "trained" else "encoded")
        elif step == "remove" and naive.live:
            share = rng.choice([0.1, 0.5, 1])
            gone = [i for i in naive.ids if rng.random() < share]
            with store.writing() as writing:
                writing.remove(gone)
                assert writing.snapshot.next_id == max(used) + 1
            naive.live = [item for item in naive.live if item["id"] not in gone]
            naive.committed("removed")
        elif step == "compact":
            went, clean = store.compact()
            assert clean
            assert went == naive.compacted()
            assert (path / "codes.faiss").read_bytes() == faiss_bytes([naive.codes], D)
            assert (path / "ids.i64").read_bytes() == np.array(naive.ids, "<i8").tobytes()
        elif step == "rollback":
            target = int(rng.integers(number))
            if naive.restorable <= target < number - 1 and target in {0, *naive.rounds}:
                store.rollback(target)
                naive.rolled_back(target)
            else:
                with pytest.raises(InputError, match=REFUSED):
                    store.rollback(target)
        elif step == "reopen":
            store.close()
            store = Store.open(path)
        elif step == "read":
            readers.append((Store.open(path), deepcopy(naive)))
        whole(store, naive, queries)
        assert store.snapshot.next_id == max(used) + 1
        now = {item["token"] for item in naive.live}
        for reader, then in readers:
            same(reader, then, queries)
            if reader.snapshot.generation == store.snapshot.generation:
                same_early(reader, then)
            else:
                with pytest.raises(StoreError, match="were rewritten meanwhile; try again"):
                    reader.early_features()
            there = [i for i in then.live if i["token"] in now]
            found = [replace(item, row=0) for item in reader.view.items([i["id"] for i in there])]
            assert found == [Item(i["id"], 0, i["key"], i["tags"], i["round"]) for i in there]
            positions = [then.ids.index(i["id"]) for i in there]
            assert_array_equal(reader.view.codes([i["id"] for i in there]), then.codes[positions])
            if len(then.live) and reader.snapshot.generation != store.snapshot.generation:
                with pytest.raises(
                    StoreError, match=r"codes were rewritten since|is not kept|open the index"
                ):
                    Store(reader.path, wanted=reader.snapshot)
    for reader, _ in readers:
        changed = reader.snapshot != store.snapshot
        assert reader.refresh() == changed
        whole(reader, naive, queries)
        reader.close()
    store.close()


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.79, 0.81, 0.99, 1])
@pytest.mark.parametrize("near", [False, True])
def test_search_leaves_removed_rows_out_whatever_their_share(tmp_path, share, near):
    """Few values: many ties. With `near` the nearest are removed, so that asking for more finds none."""
    rng = np.random.default_rng(0)
    n = 3000
    codes, ids = rng.integers(0, 3, size=(n, 4), dtype=np.uint8), rng.permutation(n)
    queries = rng.integers(0, 3, size=(5, 4), dtype=np.uint8)
    distances = np.unpackbits(codes ^ queries[0], axis=1).sum(axis=1)
    order = np.argsort(distances, kind="stable") if near else rng.permutation(n)
    gone = order[: max(1, int(share * n))]
    alive = np.setdiff1d(np.arange(n), gone)
    with Store.create(tmp_path / "i", config={}, d=32) as store:
        nothing = {"kind": "encoded", "keys": [None] * n, "tags": [[]] * n, "trained": 0, "seconds": 0}
        with store.writing() as writing:
            writing.commit(NewRound(codes=codes, ids=ids, **nothing))
        before = Store.open(tmp_path / "i")
        with store.writing() as writing:
            writing.remove(ids[gone].tolist())
        for k in (1, 10, 199, 250, n + 5):
            expected = naive_search(codes[alive], ids[alive], queries, k)
            assert pairs(store.view.search(queries, k)) == expected
            assert pairs(store.view.search(queries[:1], k)) == expected[:1]
        assert pairs(before.view.search(queries, 10)) == naive_search(codes, ids, queries, 10)
        before.close()


def test_what_cannot_be_removed_or_replaced(tmp_path):
    with Store.create(tmp_path / "i", config={}, d=32) as store:
        zero = np.zeros((2, 4), np.uint8)
        what = {"kind": "encoded", "codes": zero, "tags": [[], []], "trained": 0, "seconds": 0}
        with store.writing() as writing:
            writing.commit(NewRound(ids=[1, 2], keys=["a", "b"], **what))
        with store.writing() as writing:
            with pytest.raises(InputError, match="id 3 is not in"):
                writing.remove([1, 3])
            with pytest.raises(InputError, match="key 'b' is already in"):
                writing.commit(NewRound(ids=[1, 5], keys=["b", None], remove=[1], **what))
            with pytest.raises(InputError, match="id 2 is already in"):
                writing.commit(NewRound(ids=[1, 2], keys=[None, None], remove=[1], **what))
            writing.commit(NewRound(ids=[1, 5], keys=[None, "a"], remove=[1], **what))
        assert store.view.id_of_key("a") == 5
        with store.writing() as writing:
            writing.remove([2])
        with store.writing() as writing:
            assert writing.known_ids([2, 1, 9]).tolist() == [2, 1]
            with pytest.raises(InputError, match=r"id 2 is already in .* or was removed"):
                writing.commit(NewRound(ids=[2, 6], keys=[None, None], **what))
            writing.commit(NewRound(ids=[7, 6], keys=["b", None], **what))
        with pytest.raises(StoreError, match="id 2 is not in"):
            store.view.codes([2])


def test_a_reader_that_opens_while_files_are_renamed_never_mixes_generations(tmp_path, monkeypatch):
    """At every step of a compaction a reader opens, and answers as before or as after: the same, here."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, size=(9, 4), dtype=np.uint8)
    queries = codes.copy()
    with Store.create(tmp_path / "i", config={}, d=32) as store:
        what = {"kind": "encoded", "keys": [None] * 9, "tags": [[]] * 9, "trained": 0, "seconds": 0}
        with store.writing() as writing:
            writing.commit(NewRound(codes=codes, ids=np.arange(9) * 5, **what))
        with store.writing() as writing:
            writing.remove([0, 20])
        expected, opened = pairs(store.view.search(queries, 9)), []

        def look(name):
            with Store.open(tmp_path / "i") as reader:
                assert pairs(reader.view.search(queries, 9)) == expected, name
                assert_array_equal(reader.view.codes([5, 40]), codes[[1, 8]])
                opened.append((name, reader.snapshot.generation))

        with monkeypatch.context() as patch:
            patch.setattr("woh_faiss.store.files.on_step", look)
            assert store.compact() == (2, True)
        assert [generation for _, generation in opened] == sorted(g for _, g in opened)
        assert {0, 1} == {generation for _, generation in opened}
        assert ("before rename ids.i64", 1) in opened


def test_opening_reads_no_record_of_a_removal(tmp_path, monkeypatch):
    """The cost of a removal ends with it: later openings, refreshes and writes read bits."""
    n, statements, connect = 200, [], database.connect

    def traced(*arguments):
        connection = connect(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    with Store.create(tmp_path / "i", config={}, d=8) as store, Store.open(tmp_path / "i") as reader:
        for first in (0, n):
            rows = {"keys": [None] * n, "tags": [[]] * n, "trained": 0, "seconds": 0}
            with store.writing() as writing:
                codes = np.zeros((n, 1), np.uint8)
                writing.commit(NewRound("encoded", codes, first + np.arange(n), **rows))
        with store.writing() as writing:
            writing.remove(range(0, 2 * n, 3))
        monkeypatch.setattr(database, "connect", traced)
        with store.writing() as writing:
            writing.remove([1])
        reader.refresh()
        Store.open(tmp_path / "i").close()
        monkeypatch.undo()
        assert reader.view.dead.rows().tolist() == sorted({1, *range(0, 2 * n, 3)})
        assert reader.ntotal == 2 * n - len(reader.view.dead)
    assert any("FROM dead" in statement for statement in statements)
    assert not [s for s in statements if s.startswith("SELECT") and "FROM removed" in s]
