"""Removing, replacing, compacting, rolling back: dead, or refused by the disk, at every step."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest
from conftest import LENGTH, SMALL, full_length_only, tagged
from crash_injection import deadly
from test_deaths import die_at
from test_erasing import rows
from test_life import XQ, contents

from woh_faiss import WOHIndex
from woh_faiss.errors import StoreError
from woh_faiss.store import files

pytestmark = pytest.mark.disk

OPERATIONS = {
    "update": lambda index: index.update(*tagged(4, n=12), keys=[f"4/{i}" for i in range(12)]),
    "add": lambda index: index.add(XQ, ids=[7000, 7001, 9000, 9001]),
    "remove": lambda index: index.remove([3, 44], keys=["1/5"]),
    "replace": lambda index: index.update(*tagged(4, n=12), ids=np.arange(12) * 2, on_duplicate="replace"),
    "replace by add": lambda index: index.add(XQ, keys=[f"1/{i}" for i in range(4)], on_duplicate="replace"),
    "compact": lambda index: index.compact(),
    "rollback": lambda index: index.rollback(2),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "i"
    with WOHIndex.create(path, **SMALL) as index:
        for seed in range(3):
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
        index.add(XQ[:2], ids=[5000, 6000])
        index.remove([1, 41, 81, 5000])
    return path


def state(index):
    D, I = index.search(np.random.default_rng(0).normal(size=(4, index.d)), 200)
    items = [repr(item) for item in index.items(np.unique(I[I >= 0]))]
    return json.dumps([D.tolist(), I.tolist(), rows(index), index.tags(), items])


def seen(path):
    with WOHIndex.open(path) as index:
        return state(index)


def next_write(path):
    """Files and answers after one more update: what was left undone is finished, or taken back, by then."""
    with WOHIndex.open(path) as index:
        index.update(np.random.default_rng(1).normal(size=(6, index.d)), ["sea", "hill", "city"] * 2)
        answers = state(index)
        with index._store.writing() as writing:
            answers += str(writing.known_ids([*range(125), 5000, 6000, 6001, 7001, 9001]))
    return contents(path, but=("catalog.db",)), answers


#: "replace by add" is made of two others.
PARAMS = ["update", "add", "remove", "replace", *full_length_only("replace by add"), "compact", "rollback"]


@pytest.fixture(params=PARAMS)
def operation(request, tmp_path, prepared, monkeypatch):
    """(what is done, to which index, its steps, states before and after, and after another write to both)"""
    act, steps = OPERATIONS[request.param], []
    act.__doc__ = request.param
    shutil.copytree(prepared, tmp_path / "start")
    old = seen(tmp_path / "start")
    shutil.copytree(tmp_path / "start", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(files, "on_step", steps.append)
        with WOHIndex.open(tmp_path / "whole") as index:
            act(index)
            new = state(index)
    assert new != old or request.param == "compact"
    shutil.copytree(tmp_path / "start", tmp_path / "untouched")
    return (
        act,
        tmp_path / "start",
        steps,
        old,
        new,
        next_write(tmp_path / "whole"),
        next_write(tmp_path / "untouched"),
    )


def test_a_death_at_any_step(operation, tmp_path):
    act, start, steps, old, new, after_new, after_old = operation

    def work(path):
        with WOHIndex.open(path) as index:
            act(index)

    states = []
    for step in deadly(steps):
        path = tmp_path / f"dies-{step}"
        shutil.copytree(start, path)
        assert die_at(step, lambda path=path: work(path))
        found = seen(path)
        assert found in (old, new)
        assert all("left by a writer that died" in fault for fault in WOHIndex.verify(path))
        assert seen(path) == found
        after = next_write(path)
        states.append(after == after_new)
        assert after == (after_new if states[-1] else after_old)
        assert found == (new if states[-1] else old)
        assert WOHIndex.verify(path) == []
        shutil.rmtree(path)
    assert states == sorted(states)  # old up to the commit, new from it on
    assert {True, False} == set(states)
    assert not die_at(len(steps), lambda: work(start))
    print(f"\n{act.__doc__}: killed at {len(states)} steps, {sum(states)} after the commit")


@pytest.mark.parametrize("number", [28, *full_length_only(5)])
def test_a_disk_that_fails_at_any_step(operation, tmp_path, monkeypatch, number):
    """No space, or an I/O error: the old state, or the new one after the commit; the next write works."""
    act, start, _, old, new, after, _ = operation
    for step in itertools.count(step=1 if LENGTH >= 1 else 4):
        path, log = tmp_path / str(step), []
        shutil.copytree(start, path)

        def fail(name, log=log, step=step):
            log.append(name)
            if len(log) == step + 1 and name != "after COMMIT":  # nothing of the disk's happens there
                raise OSError(number, "the disk says no")

        with WOHIndex.open(path) as index:
            with monkeypatch.context() as patch:
                patch.setattr(files, "on_step", fail)
                try:
                    act(index)
                except StoreError as error:
                    refused = str(error)
                else:
                    refused = ""
            if len(log) <= step:
                break
            assert bool(refused) == ("after COMMIT" not in log), log
            index.refresh()
            assert state(index) == (old if refused else new)
            if refused:
                assert "the disk says no; check free space" in refused
                act(index)
        assert next_write(path) == after, log
        assert WOHIndex.verify(path) == []
        shutil.rmtree(path)
    assert step >= 2
    print(f"\n{act.__doc__}: error {number} at steps up to {step}")
