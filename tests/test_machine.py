"""Random lives of an index, crashes in them, against a dictionary.

``WOH_FULL=50 pytest -s tests/test_machine.py`` takes 50 times as many steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from conftest import drawn, tagged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import files

STEPS = drawn(2000)
KEEP, D = 2, 4
XQ = tagged(9, n=3, d=D)[0]
COUNTED: Counter[str] = Counter()
KIND = st.sampled_from(["add", "add", "add", "update"])
POLICY = st.sampled_from(["error", "skip", "replace", "replace"])


class Crash(BaseException):
    """Nothing that the package catches: what it would do after it is not done."""


class Known(NamedTuple):
    code: bytes
    key: str | None
    tags: list[str]
    round: int
    metadata: dict[str, object]


class State(NamedTuple):
    """After a round: what is alive, in order of rows, and ids of dead rows that are not erased."""

    live: dict[int, Known]
    removed: frozenset[int] = frozenset()


def given(item):
    """Metadata of an item, as far as there are any."""
    return {name: value for name, value in item.metadata.items() if value is not None}


class Lives(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.path = Path(tempfile.mkdtemp()) / "i"
        self.index = WOHIndex.create(self.path, bits=8, anchors=6, vector_size=3, keep_models=KEEP)
        self.reader, self.only_read = None, False
        self.history = [State({})]
        self.models, self.restorable = [], 0
        self.next_id = self.auto_end = self.seed = 0
        self.erased = set()
        self.rounds = {0: "none"}  # kind of each that is not forgotten

    def teardown(self):
        for index in (self.index, self.reader):
            if index is not None:
                index.close()
        shutil.rmtree(self.path.parent)

    @property
    def live(self):
        return self.history[-1].live

    def used(self, id_):
        """Whether it is refused, not being alive."""
        return id_ < self.auto_end or id_ in self.history[-1].removed or id_ in self.erased

    # ---- acting, and dying in between ----------------------------------------------------------------

    def act(self, name, work, at):
        """Whether `work` was committed; the process "dies" at its step number `at`, unless it is None."""
        log = []

        def on_step(step):
            log.append(step)
            if at is not None and len(log) > at:  # and whatever is tried after it
                raise Crash

        COUNTED[name] += 1
        files.on_step = on_step
        try:
            work()
        except Crash:
            COUNTED["crash"] += 1
            files.on_step = files._nothing
            self.index.close()
            self.index = WOHIndex.open(self.path)
            return "after COMMIT" in log
        finally:
            files.on_step = files._nothing
        return "after COMMIT" in log

    def committed(self, live, removed=()):
        """One more round."""
        self.rounds[len(self.history)] = self.index.rounds()[-1].kind
        self.history.append(State(live, frozenset(removed) - {*live}))

    # ---- what may happen -----------------------------------------------------------------------------

    @initialize()
    def first(self):
        self.grow("update", 12, "none", [], [], "error", None)

    @rule(kind=KIND, n=st.integers(1, 5), at=st.none() | st.integers(0, 24))
    def grow_by_new_items(self, kind, n, at):
        self.grow(kind, n, "none", [], [], "error", at)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), kind=KIND, by_key=st.booleans(), policy=POLICY, at=st.none() | st.integers(0, 24))
    def grow_by_known_items_and_new_ones(self, data, kind, by_key, policy, at):
        of_key = [known.key for known in self.live.values() if known.key is not None]
        known = data.draw(
            st.lists(st.sampled_from(of_key if by_key and of_key else [*self.live]), max_size=3)
        )
        new = st.lists(st.sampled_from("ijklmno") if by_key and of_key else st.integers(200, 999), max_size=3)
        names = list(dict.fromkeys([*known, *data.draw(new)])) or [*self.live][:1]
        naming = "keys" if isinstance(names[0], str) else "ids"
        self.grow(kind, len(names), naming, names, names, policy, at)

    @rule(
        kind=KIND,
        n=st.integers(1, 5),
        naming=st.sampled_from(["none", "ids", "keys", "both"]),
        ids=st.permutations([*range(0, 80, 7), 13, 15, 100, 101, 2**40]),
        keys=st.permutations("abcdefgh"),
        policy=POLICY,
        at=st.none() | st.integers(0, 24),
    )
    def grow(self, kind, n, naming, ids, keys, policy, at):
        self.seed += 1
        X, tags = tagged(self.seed, n=n, d=D)
        ids = ids[:n] if naming in ("ids", "both") else None
        keys = keys[:n] if naming in ("keys", "both") else None
        # Whole numbers, and text that comes and goes: each third round has none, and each third item.
        held = [{"size": self.seed + row, "word": "abc"[row % 3]} if row % 3 else {} for row in range(n)]
        held = held if self.seed % 3 else [{}] * n
        metadata = {name: [it.get(name) for it in held] for name in ("size", "word")} if any(held) else None
        given = {"ids": ids, "keys": keys, "on_duplicate": policy, "metadata": metadata}
        act = getattr(self.index, kind)
        plan = self.plan(n, ids, keys, policy)
        if plan is None:
            COUNTED["refused"] += 1
            before = self.index.rounds()
            with pytest.raises(InputError):
                act(X, tags, **given)
            assert self.index.rounds() == before
            return
        encoded = codes.pad(self.index.encode(X)) if self.history[1:] else None
        name = f"{kind}, {policy}" if {None} != {old for _, old in plan.values()} else kind
        if not self.act(name, lambda: act(X, tags, **given), at):
            return
        rows, names = [*plan], [id_ for id_, _ in plan.values()]
        number = len(self.history)
        self.index.refresh()
        stored = self.index._store.view.codes(names)
        if kind == "add":
            np.testing.assert_array_equal(stored, encoded[rows])
        live = {id_: known for id_, known in self.live.items() if id_ not in names}
        for row, id_, code in zip(rows, names, stored, strict=True):
            old = self.live.get(id_)
            key = keys[row] if keys else old.key if old else None
            live[id_] = Known(code.tobytes(), key, tags[row], number, held[row])
        new = [id_ for id_ in names if id_ not in self.live]
        if ids is None and self.auto_end == self.next_id:
            self.auto_end = max([self.auto_end, *(id_ + 1 for id_ in new)])
        self.next_id = max([self.next_id, *(id_ + 1 for id_ in names)])
        # A replaced item has a dead row, too; of it nothing is refused while it is alive.
        self.committed(live, {*self.history[-1].removed, *(id_ for id_ in names if id_ in self.live)})
        if kind == "update" and self.index.rounds()[-1].kind == "trained":
            self.models = [*self.models, number]
            if len(self.models) > KEEP:
                self.models = self.models[-KEEP:]
                self.restorable = max(self.restorable, self.models[0])

    def plan(self, n, ids, keys, policy):
        """row: (id, id of the item it replaces) of the items to come; None where the chunk is refused."""
        id_of = {known.key: id_ for id_, known in self.live.items() if known.key is not None}
        free, plan = self.next_id, {}
        for row in range(n):
            id_, key = ids[row] if ids else None, keys[row] if keys else None
            by_key, by_id = id_of.get(key), id_ if id_ in self.live else None
            if id_ is not None and id_ not in self.live and self.used(id_):
                return None
            known = by_key if by_id is None else by_id
            if known is not None and policy == "error":
                return None
            if id_ is not None and by_key not in (None, id_):
                return None
            if by_id is not None and key is not None and self.live[by_id].key not in (None, key):
                return None
            if known is not None and policy == "skip":
                continue
            if known is None and id_ is None:
                id_, free = free, free + 1
            plan[row] = known if id_ is None else id_, known
        return plan

    @precondition(lambda self: self.live)
    @rule(data=st.data(), by_key=st.booleans(), at=st.none() | st.integers(0, 8))
    def remove(self, data, by_key, at):
        gone = set(data.draw(st.lists(st.sampled_from([*self.live]), min_size=1, max_size=4)))
        keys = [self.live[id_].key for id_ in gone if by_key and self.live[id_].key]
        ids = [id_ for id_ in gone if self.live[id_].key not in keys or not keys]
        if self.act("remove", lambda: self.index.remove(ids, keys=keys), at):
            live = {id_: known for id_, known in self.live.items() if id_ not in gone}
            self.committed(live, self.history[-1].removed | gone)

    @rule(id_=st.integers(0, 200))
    def remove_what_is_not_there(self, id_):
        if id_ not in self.live:
            with pytest.raises(InputError, match="not in the index"):
                self.index.remove([id_, *self.live])

    @rule(at=st.none() | st.integers(0, 30))
    def compact(self, at):
        if self.act("compact", lambda: self.index.compact(), at):
            alive = [id(known) for known in self.live.values()]
            every = {id(known) for state in self.history for known in state.live.values()}
            if every - {*alive} or self.history[-1].removed:
                self.forget()
            self.erased |= {id_ for id_ in self.history[-1].removed if id_ >= self.auto_end} - {*self.live}
            self.history = [
                State({id_: known for id_, known in state.live.items() if id(known) in alive})
                for state in self.history
            ]

    def forget(self):
        """Compacting leaves no record of rounds that learned nothing and of which nothing is left."""
        kept = {0, len(self.history) - 1, *(known.round for known in self.live.values())}
        self.rounds = {n: kind for n, kind in self.rounds.items() if kind == "trained" or n in kept}

    @rule(back=st.integers(0, 6), at=st.none() | st.integers(0, 20))
    def rollback(self, back, at):
        target = len(self.history) - 1 - back
        if back and target >= self.restorable and target in self.rounds:
            if self.act("rollback", lambda: self.index.rollback(target), at):
                self.history = self.history[: target + 1]
                self.rounds = {n: kind for n, kind in self.rounds.items() if n <= target}
                self.models = [number for number in self.models if number <= target]
                if not self.models:  # from which on only `update` works
                    self.grow("update", 12, "none", [], [], "error", None)
        else:
            COUNTED["refused"] += 1
            with pytest.raises(
                InputError, match=r"cannot be restored|an earlier one than|is forgotten|at least 0"
            ):
                self.index.rollback(target)

    @rule()
    def reopen(self):
        COUNTED["reopen"] += 1
        self.index.close()
        self.index = WOHIndex.open(self.path)

    @rule()
    def refresh(self):
        """A reader that may be many states behind."""
        COUNTED["refresh"] += 1
        self.only_read = True
        if self.reader is None:
            self.reader = WOHIndex.open(self.path)
        self.reader.refresh()
        self.behind = dict(self.live)
        for index in (self.index, self.reader):
            kinds = {done.round: done.kind for done in index.rounds()}
            assert {0: "none", **kinds} == self.rounds

    # ---- what must hold ------------------------------------------------------------------------------

    @staticmethod
    def same(index, live):
        """It answers a search as a naive scan of what is alive."""
        stored = np.array([np.frombuffer(known.code, np.uint8) for known in live.values()], np.uint8)
        xq = np.arange(index._store.d // 8 * 3, dtype=np.uint8).reshape(3, -1)
        D, I = index._store.view.search(xq, len(live) + 1)
        if live:
            distances = np.unpackbits(stored[None] ^ xq[:, None], axis=2).sum(axis=2)
            order = np.argsort(distances, axis=1, kind="stable")
            np.testing.assert_array_equal(I[:, :-1], np.array([*live])[order])
            np.testing.assert_array_equal(D[:, :-1], np.take_along_axis(distances, order, axis=1))
        half = {id_ for id_, known in live.items() if known.metadata.get("size", -1) % 2 == 0}
        some = [size for known in live.values() if (size := known.metadata.get("size", 1)) % 2 == 0]
        if half:  # else there may be no such column
            assert {*index.ids(f"size in ({', '.join(map(str, some))})").tolist()} == half
        assert (I[:, -1] == -1).all()

    @invariant()
    def everything_is_as_it_should_be(self):
        index = self.index
        index.refresh()
        assert index.ntotal == len(self.live)
        assert index._store.snapshot.round == len(self.history) - 1
        assert index._store.snapshot.next_id == self.next_id
        self.same(index, self.live)
        if self.reader is not None:
            self.same(self.reader, self.behind)
        items = index.items([*self.live])
        found = {item.id: (item.key, item.tags, item.round, given(item)) for item in items}
        assert found == {id_: known[1:] for id_, known in self.live.items()}
        for id_, known in self.live.items():
            assert known.key is None or index.id_of(known.key) == id_
        if (gone := next((i for i in range(self.next_id) if i not in self.live), None)) is not None:
            with pytest.raises(StoreError, match="is not in"):
                index.items([gone])
        if len(self.history) > 1:
            assert index.search(XQ, 3)[1].shape == (3, 3)

    @invariant()
    def nothing_is_damaged(self):
        only_read, self.only_read = self.only_read, False
        if only_read:  # two of five steps; what they damaged would be found after the next one
            return
        with self.index._store.writing() as writing:  # puts right what a crash left
            asked = [*range(130), 2**40]
            known = {id_ for id_ in asked if id_ < self.next_id and (id_ in self.live or self.used(id_))}
            assert {*writing.known_ids(asked).tolist()} == known
        assert WOHIndex.verify(self.path) == []


def test_any_life_with_crashes_equals_a_dictionary(monkeypatch):
    """Lives of up to 50 steps, until there are STEPS."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a crash here is of the process, not of the disk
    how = settings(
        max_examples=4, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    COUNTED.clear()
    while (steps := COUNTED.total() - COUNTED["crash"]) < STEPS:
        run_state_machine_as_test(Lives, settings=how)
    print(f"\n{steps} steps: {dict(COUNTED.most_common())}")
