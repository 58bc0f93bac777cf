"""A process dies at every single step of an update or a creation; also: other processes in the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import store_worker
from crash_injection import deadly
from store_worker import ask, chunk, commit

from woh_faiss.errors import LockedError, StoreError
from woh_faiss.store import NewRound, Store, writer_lock

pytestmark = pytest.mark.disk

WORKER = [sys.executable, store_worker.__file__]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("scenario", store_worker.SCENARIOS)
def test_death_at_any_step_leaves_the_old_state_or_the_new(scenario, tmp_path):
    steps, *answers = ask("deaths", scenario, tmp_path)
    point = "after rename catalog.db" if scenario == "create" else "after COMMIT"
    commit_at = steps.index(point)
    assert len(steps) >= 14
    for number, answer in zip(deadly(steps), answers, strict=True):
        assert answer["step"] == steps[number]
        assert answer["killed"], answer
        assert answer["status"] == 0, answer
        assert answer["state"] == ("old" if number < commit_at else "new"), answer
    expected = {"codes.faiss", "ids.i64"}
    kept = {"create": set(), "first": {"anchors.npy", "model-1.npz"}}
    for number, answer in zip(deadly(steps), answers, strict=True):
        models = kept.get(scenario)
        if models is None:  # two models are there throughout, but which depends on the side of COMMIT
            models = {"anchors.npy", *[n for n in json.loads(answer["files"]) if n.startswith("model-")]}
            assert len(models) == 3
        elif number < commit_at:
            models = set()
        assert set(json.loads(answer["files"])) == expected | models, answer


def test_death_at_any_step_of_a_round_with_other_codes_beside_a_reader(tmp_path):
    steps, *answers = ask("recoding", tmp_path)
    commit_at = steps.index("after COMMIT")
    for name in ("codes.faiss.1", "ids.i64.1"):
        order = [f"before write {name}", f"after write {name}", f"after fsync {name}", "before fsync folder"]
        places = [steps.index(step) for step in order]
        assert places == sorted(places)
        assert places[-1] < commit_at < steps.index(f"before rename {name[:-2]}")
    for number, answer in zip(deadly(steps), answers, strict=True):
        assert answer["killed"], answer
        done = number >= commit_at
        assert answer["state"] == ("new" if done else "old"), answer
        assert answer["reader"] == [True, done, True], answer
        assert answer["after"], answer
        assert ("ann-ivf-1.npz" in answer["files"]) != done, answer
        assert not any(name.endswith(".1") for name in answer["files"]), answer


def test_every_file_is_synced_before_the_commit_and_the_header_patched_after(tmp_path):
    """The order of the design, step by step."""
    log = []
    with Store.create(tmp_path / "i", config={}, d=32) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr("woh_faiss.store.files.on_step", log.append)
        commit(store, **chunk(1, anchors=True))
    done = [name.removeprefix("after ") for name in log if name.startswith("after ")]
    assert done[done.index("COMMIT") - 1] == "fsync folder"
    assert done[done.index("COMMIT") + 1 :] == ["patch codes.faiss", "fsync codes.faiss header"]
    for name in ("codes.faiss", "ids.i64", "model-1.npz", "anchors.npy"):
        assert done.index(f"write {name}") < done.index(f"fsync {name}") < done.index("COMMIT")


@pytest.fixture
def holder(tmp_path):
    """(path, process that holds the lock until it gets a line)"""
    Store.create(tmp_path / "i.woh", config={}, d=store_worker.D).close()
    command = [*WORKER, "hold", str(tmp_path / "i.woh")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV
    ) as process:
        assert process.stdout.readline() == '"held"\n'
        yield tmp_path / "i.woh", process
        process.stdin.close()


def test_a_second_writer_is_told_who_waits_and_for_how_long(holder):
    path, process = holder
    with Store.open(path) as store, pytest.raises(LockedError) as caught, store.writing(timeout=0.05):
        pass
    text = str(caught.value)
    assert str(path) in text
    said = re.search(rf"process {process.pid} since (\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)", text)
    assert abs(datetime.now() - datetime.fromisoformat(said[1])).total_seconds() < 600
    assert "waited 0.05 s" in text
    assert "try again" in text
    assert "\n" not in text


def test_a_second_writer_that_waits_gets_its_turn_and_sees_the_first_ones_round(holder):
    path, process = holder
    about, rounds = threading.Event(), []

    def write():
        with Store.open(path) as store:
            about.set()
            with store.writing(timeout=600) as writing:
                rounds.append((writing.snapshot.round, store.snapshot.round))
                writing.commit(NewRound(**chunk(2)))

    thread = threading.Thread(target=write)
    thread.start()
    assert about.wait(600)
    assert rounds == []
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == '"committed"\n'
    thread.join(600)
    assert rounds == [(1, 1)]
    with Store.open(path) as store:
        assert store.snapshot.round == 2
    expected = store_worker.faiss_bytes([chunk(1)["codes"], chunk(2)["codes"]], store_worker.D)
    assert (path / "codes.faiss").read_bytes() == expected


def test_what_a_dead_writer_says_of_itself_is_not_believed(holder):
    path, _ = holder
    for left in ("", "x y", "1 2 3", f"{2**40} 1", "-1 1e30"):
        (path / writer_lock.NAME).write_text(left)
        with (
            Store.open(path) as store,
            pytest.raises(LockedError, match="by another process; waited"),
            store.writing(timeout=0),
        ):
            pass


def test_readers_do_not_wait_for_a_writer(holder):
    path, _ = holder
    with Store.open(path) as store:
        assert store.refresh() is False
        assert store.view.search(np.zeros((1, 4), np.uint8), 1)[1].tolist() == [[-1]]


def test_a_writer_in_another_process_is_locked_out_by_this_one(tmp_path):
    with Store.create(tmp_path / "i", config={}, d=32) as store:
        with store.writing():
            assert f"process {os.getpid()} since" in ask("try_write", tmp_path / "i")[0]
        assert ask("try_write", tmp_path / "i") == ["got the lock"]


def test_a_forked_child_searches_where_its_parent_has_searched(tmp_path):
    path = tmp_path / "i"
    with Store.create(path, config={}, d=32) as store:
        commit(store, **chunk(1, n=5000))
    assert ask("fork_after_search", path) == ["true"]


@pytest.fixture
def closed_folder():
    """An index that another user may read, not write; not below tmp_path, which only its owner may enter."""
    parent = Path(tempfile.mkdtemp())
    parent.chmod(0o755)
    path = parent / "i"
    with Store.create(path, config={}, d=32) as store:
        commit(store, **chunk(1))
    yield path
    path.chmod(0o755)
    shutil.rmtree(parent)


@pytest.mark.parametrize("side_files", [True, False])
def test_a_user_who_may_only_read_can_search_but_not_write(closed_folder, side_files):
    if not side_files:
        for name in ("catalog.db-wal", "catalog.db-shm"):
            (closed_folder / name).unlink(missing_ok=True)
    with Store.open(closed_folder) as store:
        expected = f"{store.snapshot} {store.view.search(np.zeros((1, 4), np.uint8), 3)[1][0].tolist()}"
    if not side_files:
        for name in ("catalog.db-wal", "catalog.db-shm"):
            (closed_folder / name).unlink(missing_ok=True)
    closed_folder.chmod(0o555)
    ((answer, refused),) = ask("unprivileged", closed_folder)
    assert answer == expected
    assert str(closed_folder) in refused
    assert "permissions" in refused


def test_a_read_only_folder_with_an_unfinished_log_is_refused_not_read_past(closed_folder):
    (closed_folder / "catalog.db-shm").unlink(missing_ok=True)
    (closed_folder / "catalog.db-wal").write_bytes(b"left by a writer that died")
    closed_folder.chmod(0o555)
    ((answer, _),) = ask("unprivileged", closed_folder)
    assert "did not end cleanly" in answer


def test_two_creations_at_once_are_refused(tmp_path):
    refused = []

    def on_step(name):
        if name == "before write codes.faiss" and not refused:
            refused.append(name)
            with pytest.raises(StoreError, match="another process is making an index"):
                Store.create(tmp_path / "i", config={}, d=32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woh_faiss.store.files.on_step", on_step)
        Store.create(tmp_path / "i", config={}, d=32).close()
    assert refused
