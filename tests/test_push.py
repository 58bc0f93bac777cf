"""Pushing into real databases: equal to the index after every change, and so are the answers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, length, tagged
from databases import XQ, check, expected, grown

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.integrations import push as push_module
from woh_faiss.integrations.push import push

WORKER = Path(__file__).parent / "helpers" / "push_worker.py"
#: Codes of the long life, and kills: ``WOH_FULL=20`` for the whole of it.
ROWS, KILLS = length(5_000), length(4)


# ---- what is sent ---------------------------------------------------------------------------------


def test_only_what_changed_is_sent(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        assert push(index, url).sent == 118
        check(server, table, index)
        assert (push(index, url).sent, push(index, url).deleted) == (0, 0)
        index.remove([0, 1])
        index.add(XQ)
        index.update(*tagged(6, n=5), ids=np.arange(10, 15), on_duplicate="replace")
        done = push(index, url)
        assert (done.sent, done.deleted, done.round) == (17, 2, index.rounds()[-1].round)
        check(server, table, index)
        index.compact()
        done = push(index, url)
        assert (done.sent, done.deleted) == (0, 0)
        check(server, table, index)
        index.remove([2, 4])
        index.add(XQ)
        index.compact()  # erases what the table still has
        done = push(index, url)
        assert (done.sent, done.deleted) == (12, 2)
        check(server, table, index)


def test_a_rollback_takes_out_and_brings_back(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        index.rollback(3)  # before the removal and the replacement
        done = push(index, url)
        assert (done.sent, done.deleted) == (42, 0)
        check(server, table, index)
        index.update(*tagged(8), ids=np.arange(500, 540))
        push(index, url)
        index.rollback(3)
        index.update(*tagged(9), ids=np.arange(500, 540))  # the same round number, the same ids
        done = push(index, url)
        assert (done.sent, done.deleted) == (40, 0)
        check(server, table, index)


def test_a_copy_that_went_its_own_way(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        shutil.copytree(tmp_path / "i", tmp_path / "copy")
        index.update(*tagged(10))
        push(index, url)
    with WOHIndex.open(tmp_path / "copy") as copy:
        copy.update(*tagged(11, n=7))
        push(copy, url)
        check(server, table, copy)


def test_copies_whose_rounds_look_alike(server, table, url, tmp_path):
    """Both were rewritten as often since they parted, and are at the round that was pushed."""
    with grown(tmp_path / "i") as index:
        index.add(XQ)
        shutil.copytree(tmp_path / "i", tmp_path / "copy")
        index.rollback(5)
        push(index, url)
    with WOHIndex.open(tmp_path / "copy") as copy:
        copy.rollback(5)
        push(copy, url)
        check(server, table, copy)
        copy.remove([20, 21])
        copy.compact()
        copy.rollback(5)  # 20 and 21 stay erased
        push(copy, url)
        check(server, table, copy)


@pytest.mark.parametrize("number", [5, 7])
def test_cut_short_then_rolled_back(server, table, url, tmp_path, monkeypatch, number):
    """Steps leave out what is removed later; it must be there once that is undone."""
    monkeypatch.setattr(push_module, "STEP", 1)
    with grown(tmp_path / "i") as index:
        index.add(XQ)
        index.add(XQ)
        index.remove([10, *range(120, 126), *range(132, 138)])
        index.add(XQ)
        for steps in range(6):
            calls, checked = [], push_module.CodeSource.check

            def dies(source, steps=steps, calls=calls, checked=checked):
                calls.append(source)
                if len(calls) > steps:
                    raise StoreError("cut short")
                checked(source)

            with monkeypatch.context() as patch:
                patch.setattr(push_module.CodeSource, "check", dies)
                with pytest.raises(StoreError, match="cut short"):
                    push(index, server.url(f"{table}_{steps}"))
        index.rollback(number)
        for steps in range(6):
            push(index, server.url(f"{table}_{steps}"))
            check(server, f"{table}_{steps}", index, xq=XQ[:1])


@pytest.mark.parametrize("seed", range(2))
def test_any_life(server, table, url, tmp_path, seed, monkeypatch):
    """Random changes, some of them pushed; few codes, so that nearly everything is a tie."""
    monkeypatch.setattr(push_module, "STEP", 30)
    monkeypatch.setattr(push_module, "BATCH", 13)
    rng = np.random.default_rng(seed)
    with grown(tmp_path / "i") as index:
        for step in range(14):
            ids = [id_ for id_, *_ in expected(index)]
            action = rng.choice(["update", "replace", "remove", "compact", "rollback", "add"])
            if action == "update":
                index.update(*tagged(100 + step, n=20))
            elif action == "add":
                index.add(XQ, keys=[f"add {step}/{i}" for i in range(len(XQ))])
            elif action == "replace":
                some = rng.choice(ids, 8, replace=False)
                index.update(*tagged(200 + step, n=8), ids=some, on_duplicate="replace")
            elif action == "remove":
                index.remove(rng.choice(ids, 9, replace=False))
            elif action == "compact":
                index.compact()
            else:
                earlier = [it.round for it in index.rounds()][-4:-1]
                try:
                    index.rollback(int(rng.choice(earlier)))
                except InputError:  # compact has erased what that round needs
                    continue
            if rng.random() < 0.6:
                push(index, url)
                check(server, table, index, xq=XQ[:3])
        push(index, url)
        check(server, table, index)


def test_steps_are_whole_rounds_and_hide_nothing(server, table, url, tmp_path, monkeypatch):
    """What a reader finds between steps: rounds up to one, and no item gone that is there in the end."""
    monkeypatch.setattr(push_module, "STEP", 1)
    with grown(tmp_path / "i") as index:
        push(index, url)
        index.remove([5])
        for seed in range(12, 15):
            index.update(*tagged(seed, n=9), ids=np.arange(30, 39), on_duplicate="replace")
            index.update(*tagged(seed + 20, n=4))
        before, seen = {id_ for id_, *_ in server.rows(table)}, []
        done = push_module.CodeSource.check

        def look(source):
            seen.append(server.rows(table))
            done(source)

        monkeypatch.setattr(push_module.CodeSource, "check", look)
        push(index, url)
        after = {id_: at for id_, _, _, at in expected(index)}
        assert len(seen) > 4
        for rows in seen:
            assert {id_ for id_, *_ in rows} >= before & set(after)
        check(server, table, index)


def test_a_long_life(server, table, url, tmp_path, capsys):
    """ROWS codes: pushed, updated, removed, replaced, compacted, rolled back."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS // 10, 7)).astype(np.float32)
    with WOHIndex.create(tmp_path / "i", **{**SMALL, "bits": 32}, keep_models=9) as index:
        index.update(*tagged(0))
        for _ in range(10):
            index.add(X := X + rng.normal(size=X.shape).astype(np.float32))
        push(index, url)
        check(server, table, index)
        index.update(*tagged(1))
        index.remove(np.arange(0, ROWS, 7))
        index.add(X, ids=np.arange(1, 7 * len(X), 7), on_duplicate="replace")
        push(index, url)
        check(server, table, index)
        before = index.rounds()[-1].round
        index.compact()
        index.remove(np.arange(1, ROWS, 70))
        push(index, url)
        check(server, table, index)
        index.add(X)
        push(index, url)
        index.rollback(before)
        push(index, url)
        check(server, table, index)


# ---- deaths ---------------------------------------------------------------------------------------


@pytest.mark.disk
def test_killed_anywhere_and_pushed_again(server, table, tmp_path):
    """SIGKILL at a random moment of a push; the next push ends as if it had not been."""
    rng = np.random.default_rng(1)
    worker = [sys.executable, WORKER, "60", "25", *server.modules]
    first, second = tmp_path / "first", tmp_path / "second"
    with grown(first) as index:
        index.update(*tagged(30, n=300))
    shutil.copytree(first, second)
    with WOHIndex.open(second) as index:
        index.remove(np.arange(150, 190))
        index.update(*tagged(31, n=200), ids=np.arange(200, 400), on_duplicate="replace")
        index.compact()
        index.update(*tagged(32, n=150))
    with subprocess.Popen(
        list(map(str, worker)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:

        def job(path, name, after):
            child.stdin.write(
                json.dumps({"index": str(path), "url": server.url(name), "after": after}) + "\n"
            )
            child.stdin.flush()
            done = json.loads(child.stdout.readline())
            assert not done["failed"]
            return done

        try:
            whole = {path: job(path, f"{table}_w", None)["seconds"] for path in (first, second)}
            killed, span = 0, 1.0
            for trial in range(KILLS + 20):
                name, before = f"{table}_{trial}", killed
                for path in (first, second):
                    killed += job(path, name, span * rng.uniform(0, whole[path]))["killed"]
                    if path == second or trial % 2:  # the other half goes on from a half-done first push
                        job(path, name, None)
                        with WOHIndex.open(path) as index:
                            check(server, name, index, xq=XQ[:2])
                if trial + 1 >= KILLS and killed >= KILLS / 2:
                    break
                if killed == before:  # pushes take less time than they did
                    span /= 2
        finally:
            child.stdin.close()
    print(f"\n{killed} of {2 * trial + 2} pushes were killed before their end; whole ones took {whole}")
    assert killed >= KILLS / 2
