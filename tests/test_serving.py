"""Readers beside a writer: threads, processes, forks, copies; no lock, no mixture, the state they opened."""

import copy
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import serving_worker
from conftest import drawn, length, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError

pytestmark = pytest.mark.disk

K = serving_worker.K
HYPER = {"bits": 16, "anchors": 20, "vector_size": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What `path` is a copy of."""
    path = tmp_path_factory.mktemp("made") / "i.woh"
    with WOHIndex.create(path, **HYPER) as index:
        index.update(*tagged(0))
    return path


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / "i.woh")


def naive(codes, ids, xq):
    """Distances and ids of the K nearest, ties by row."""
    distances = np.unpackbits(xq[:, None] ^ codes[None], axis=2).sum(axis=2, dtype=int)
    order = np.argsort(distances, axis=1, kind="stable")[:, :K]
    return np.take_along_axis(distances, order, axis=1), ids[order]


def work(index, rng, live):
    """One commit of any kind; `live` are the ids in the order of their rows."""
    kind = rng.choice(["update", "add", "replace", "remove", "compact"], p=[0.2, 0.3, 0.2, 0.2, 0.1])
    if kind in ("update", "add"):
        done = getattr(index, str(kind))(*tagged(int(rng.integers(1000)), n=12))
        live += range(max(live) + 1, max(live) + 1 + done.n)
    elif kind == "compact":
        index.compact()
    else:
        some = rng.choice(live, 5, replace=False).tolist()
        for id_ in some:
            live.remove(id_)
        if kind == "remove":
            index.remove(some)
        else:
            index.add(*tagged(int(rng.integers(1000)), n=5), ids=some, on_duplicate="replace")
            live += some


@pytest.mark.slow
def test_every_answer_while_a_writer_works_is_one_of_a_committed_state(path, tmp_path):
    """Two processes of two threads each; every answer is compared, in its order, with a naive scan."""
    rng, xq = np.random.default_rng(0), tagged(99, n=6)[0]
    np.save(tmp_path / "xq.npy", xq)
    command = [sys.executable, serving_worker.__file__, str(path), str(tmp_path / "xq.npy")]
    readers = [
        subprocess.Popen(
            [*command, str(tmp_path / f"{number}.npz"), "2", "0.005", "0.003"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    states = []
    with WOHIndex.open(path) as index:
        live = index._store.view.ids.tolist()

        def state():
            codes = np.array([index.reconstruct(i) for i in live])
            D, I = naive(codes, np.array(live), index.encode(xq))
            states.append(np.hstack([D, I]).tolist())

        state()
        for reader in readers:
            assert reader.stdout.readline() == "serving\n"
        for _ in range(drawn(80)):
            work(index, rng, live)
            state()
    assert WOHIndex.verify(path) == []
    for reader in readers:
        _, said = reader.communicate(timeout=600)
        assert (reader.returncode, said) == (0, "")
    seen = set()
    for number in range(2):
        answers = np.load(tmp_path / f"{number}.npz")["answers"].tolist()
        at = {}
        for thread, query, *answer in answers:
            now = at.get(thread, 0)
            while now < len(states) and states[now][query] != answer:
                now += 1
            assert now < len(states), "an answer of no committed state, or of one before its last answer's"
            at[thread] = now
            seen.add(now)
    assert len(seen) > len(states) // 4


def test_auto_refresh_follows_before_a_search(path):
    xq = tagged(5, n=3)[0]
    with (
        WOHIndex.open(path) as writer,
        WOHIndex.open(path, auto_refresh=0) as follows,
        WOHIndex.open(path, auto_refresh=3600) as waits,
        WOHIndex.open(path) as stays,
    ):
        before = writer.search(xq, 50)
        writer.update(*tagged(1))
        after = writer.search(xq, 50)
        assert not np.array_equal(before[1], after[1])
        for index, expected in ((follows, after), (waits, before), (stays, before)):
            for got, want in zip(index.search(xq, 50), expected, strict=True):
                assert_array_equal(got, want)
        assert waits.refresh()
        assert_array_equal(waits.search(xq, 50)[1], after[1])


def test_every_kind_of_search_follows(path):
    xq = tagged(5, n=3)[0]
    searches = {
        "search": lambda index: index.search(xq, 3),
        "by instance": lambda index: index.search(xq, 3, by="instance"),
        "by hamming": lambda index: index.search(xq, 3, by="hamming"),
        "range_search": lambda index: index.range_search(xq, 9),
        "search_ids": lambda index: index.search_ids([0], 3),
        "range_search_ids": lambda index: index.range_search_ids([0], 9),
        "search_tags": lambda index: index.search_tags(["sea"], 3),
        "encode": lambda index: index.encode(xq),
    }
    with WOHIndex.open(path) as writer, WOHIndex.open(path, auto_refresh=0) as reader:
        for number, search in enumerate(searches.values(), start=2):
            writer.add(tagged(number)[0])
            search(reader)
            assert len(reader.rounds()) == number


@pytest.mark.parametrize("seconds", ["1", -1, float("nan")])
def test_auto_refresh_is_a_number_of_seconds(path, seconds):
    with pytest.raises(InputError, match="auto_refresh"):
        WOHIndex.open(path, auto_refresh=seconds)


def answers(index):
    return [*map(np.ndarray.tolist, index.search(tagged(5, n=3)[0], 7)), index.ntotal, index.explain([3, 4])]


def pickled(index):
    return pickle.loads(pickle.dumps(index))  # noqa: S301 - our own


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
def test_a_copy_is_of_the_same_state_and_goes_its_own_way(path, copied):
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        writer.remove([2, 3])
        index.refresh()
        before = [index.ntotal, index.search(tagged(5, n=3)[0], 60)[1].tolist()]
        writer.update(*tagged(1))
        with copied(index) as other:
            assert [other.ntotal, other.search(tagged(5, n=3)[0], 60)[1].tolist()] == before
            assert other.refresh()
            assert other.ntotal != index.ntotal
        assert [index.ntotal, index.search(tagged(5, n=3)[0], 60)[1].tolist()] == before


def test_a_copy_of_a_state_that_is_gone_says_so(path):
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        for seed in range(1, 4):  # two models are kept
            writer.update(*tagged(seed))
        with pytest.raises(StoreError, match="open the index again"):
            copy.deepcopy(index)
        index.refresh()
        writer.remove([1])
        writer.compact()
        with pytest.raises(StoreError, match="codes were rewritten since; open the index again"):
            copy.deepcopy(index)
        assert index.search(tagged(5, n=3)[0], 7)[1].shape == (3, 7)  # it goes on with what it has mapped


@pytest.mark.slow
def test_spawned_workers_search_the_same_state(path):
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        expected = answers(index)
        writer.update(*tagged(1))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map(answers, [index] * 3) == [expected] * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_forked_children_work_whatever_the_threads_of_their_parent_do(path):
    """Threads search, read models and refresh all the time; each child does all of that and ends."""
    with WOHIndex.open(path, auto_refresh=0) as index, WOHIndex.open(path) as writer:
        stop, faults = threading.Event(), []

        def busy():
            while not stop.is_set():
                try:
                    answers(index)
                    fresh = pickled(index)  # reads the model anew
                    answers(fresh)
                    fresh.close()
                except StoreError as error:
                    if "open the index again" not in str(error):
                        faults.append(error)
                except Exception as error:
                    faults.append(error)

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(length(30)):
                writer.add(tagged(number + 2, n=3)[0])
                child = os.fork()
                if not child:
                    signal.alarm(600)  # which ends a child that hangs
                    ok = answers(index)[2] >= 40 + 3 * number
                    os._exit(0 if ok and not index.refresh() else 1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert faults == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_child_does_not_move_the_place_its_parent_reads_at(path):
    """The model file is open before the fork, and each reads half of it."""
    with WOHIndex.open(path) as index:
        model = index._store.view.learned()
        names = sorted(model)
        first = model[names[0]]
        child = os.fork()
        if not child:
            signal.alarm(600)
            for name in names:
                model[name]
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert_array_equal(model[names[0]], first)
        for name in names[1:]:
            model[name]  # a CRC is compared


def test_a_search_keeps_to_one_state_while_another_thread_refreshes(path, monkeypatch):
    """The hash function and the codes are of one state, however the refresh falls."""
    xq = tagged(5, n=4)[0]
    with WOHIndex.open(path) as index, WOHIndex.open(path) as writer:
        before = index.search(xq, 9)
        writer.update(*tagged(1))
        real = type(index.hasher).halves

        def halves(self, X):
            index.refresh()  # as another thread might, between encoding and searching
            return real(self, X)

        monkeypatch.setattr(type(index.hasher), "halves", halves)
        for got, want in zip(index.search(xq, 9), before, strict=True):
            assert_array_equal(got, want)
        assert index.ntotal == writer.ntotal


@pytest.mark.parametrize("ask", [lambda index: index.store.newest(), WOHIndex.rounds, WOHIndex.tags])
def test_what_is_asked_while_another_thread_refreshes_is_of_the_state_before(path, monkeypatch, ask):
    """The catalogue is read as of one moment, then a thread moves the index on: it is no other index."""
    from woh_faiss.store import database

    real, moved = database.moment, []

    @contextmanager
    def moment(connection):
        with real(connection):
            if not moved:
                moved.append(connection.execute("SELECT count(*) FROM rounds").fetchone())
                with WOHIndex.open(path) as other:
                    other.add(tagged(9)[0])
                thread = threading.Thread(target=index.refresh)
                thread.start()
                thread.join()
            yield

    with WOHIndex.open(path) as index:
        before, expected = index.ntotal, ask(index)
        monkeypatch.setattr(database, "moment", moment)
        assert ask(index) == expected
        assert index.ntotal == before + 40


def test_a_reader_answers_at_once_while_a_writer_holds_the_lock(path):
    with WOHIndex.open(path) as index, WOHIndex.open(path) as other, other._store.writing():
        start = time.monotonic()
        index.refresh()
        index.search(tagged(5)[0], 3)
        assert time.monotonic() - start < 9  # a lock is waited for for ten
