"""Threads of a round: the same numbers with any count, one thread of BLAS meanwhile, settings put back."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - it brings a BLAS of its own
from conftest import tagged
from threadpoolctl import threadpool_info, threadpool_limits

from woh_faiss import WOH
from woh_faiss.learner import blocks
from woh_faiss.learner.threads import MOST, one_blas_thread, ordered


def blas():
    """Threads of each BLAS that is not Faiss's."""
    return [
        it["num_threads"]
        for it in threadpool_info()
        if it["user_api"] == "blas" and "faiss" not in it["filepath"]
    ]


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    with threadpool_limits(request.param, "blas"):
        yield request.param


def test_settings_are_put_back_whoever_leaves_first(threads):
    assert set(blas()) == {threads}
    with one_blas_thread(), one_blas_thread():
        assert set(blas()) == {1}
    assert set(blas()) == {threads}
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with one_blas_thread():
        thread.start()
        assert inside.wait(30)
        assert set(blas()) == {1}
    leave.set()
    thread.join()
    assert set(blas()) == {threads}
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError
    assert set(blas()) == {threads}


@pytest.mark.parametrize("n", [0, 1, 7, 50])
def test_results_come_in_order_and_few_wait(threads, n):
    running, most, lock = 0, 0, threading.Lock()
    meeting = threading.Barrier(min(threads, n)) if n else None

    def step(i):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if i < meeting.parties:  # the first ones are there at the same time
            meeting.wait(30)
        with lock:
            running -= 1
        return i * i

    with one_blas_thread():
        assert list(ordered(step, n)) == [i * i for i in range(n)]
    assert most == min(threads, n, MOST)


def test_an_error_ends_it_and_nothing_goes_on(threads):
    done = []

    def step(i):
        if i == 3:
            raise ValueError("row 3")
        done.append(i)

    with pytest.raises(ValueError, match="row 3"), one_blas_thread():
        list(ordered(step, 1000))
    assert len(done) < 3 + 2 * MOST
    with one_blas_thread():
        assert list(ordered(str, 3)) == ["0", "1", "2"]


def test_a_step_that_asks_for_steps_does_them_itself():
    with threadpool_limits(2, "blas"), one_blas_thread():
        assert list(ordered(lambda i: sum(ordered(lambda j: i * j, 10)), 20)) == [45 * i for i in range(20)]


@pytest.mark.parametrize("preset", ["paper", "adaptive"])
def test_codes_are_the_same_with_any_number_of_threads(monkeypatch, preset):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    found = []
    for count in (1, 2, 5):
        with threadpool_limits(count, "blas"):
            woh = WOH(bits=16, anchors=30, vector_size=5, preset=preset)
            packed = [woh.partial_fit(*tagged(seed, 100)).codes_ for seed in range(3)]
            found.append((np.vstack(packed), woh.hasher_.fingerprint, woh.encode(tagged(9, 100)[0])))
    for codes, fingerprint, encoded in found[1:]:
        np.testing.assert_array_equal(codes, found[0][0])
        np.testing.assert_array_equal(encoded, found[0][2])
        assert fingerprint == found[0][1]


def test_a_forked_child_has_threads_of_its_own():
    program = (
        "import os, scipy.linalg\n"
        "from threadpoolctl import threadpool_limits\n"
        "from woh_faiss.learner.threads import one_blas_thread, ordered\n"
        "def run():\n"
        "    with threadpool_limits(2, 'blas'), one_blas_thread():\n"
        "        assert list(ordered(str, 9)) == list('012345678')\n"
        "run()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    run()\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "7\n", done.stderr


def test_a_users_limit_holds():
    program = (
        "import numpy\n"
        "from woh_faiss.learner import threads\n"
        "with threads.one_blas_thread():\n"
        "    print(threads._mine.threads)\n"
    )
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | {variable: "1"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
        )
        assert done.stdout == "1\n", done.stderr
