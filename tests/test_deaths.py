"""The whole of an update, from features to disk, dies at every step; the index must answer on."""

from __future__ import annotations

import os
import shutil
import signal

import faiss
import numpy as np
import pytest
from conftest import SMALL, tagged

from woh_faiss import WOH, WOHIndex, codes
from woh_faiss.store import files

CHUNKS = {seed: tagged(seed, n=12) for seed in range(4)}


def write(kind, path):
    """What the process that dies is doing."""
    with WOHIndex.open(path) as index:
        if kind == "update":
            index.update(*CHUNKS[1])
        else:
            index.add(CHUNKS[1][0])


def die_at(step, work):
    """Run `work` in a child that is killed at its step number `step`; False if it had fewer steps."""
    child = os.fork()
    if child == 0:
        seen = 0

        def on_step(_name):
            nonlocal seen
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        files.on_step = on_step
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def answers(path, rounds):
    """Search results of the index, checked against its own codes; its number of items."""
    xq = CHUNKS[3][0]
    with WOHIndex.open(path) as index:
        assert len(index.rounds()) == rounds
        D, I = index.search(xq, 5)
        stored = index._store.codes(np.arange(index.ntotal))
        packed = codes.pad(index.encode(xq))
    distances = np.unpackbits(stored[None] ^ packed[:, None], axis=2).sum(axis=2)
    np.testing.assert_array_equal(I, np.argsort(distances, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(D, np.sort(distances, axis=1)[:, :5])
    return stored


def faiss_bytes(stored):
    plain = faiss.IndexBinaryFlat(8 * stored.shape[1])
    plain.add(stored)
    return faiss.serialize_index_binary(plain).tobytes()


@pytest.mark.parametrize("kind", ["update", "add"])
def test_an_update_dies_at_every_step(tmp_path, kind):
    with WOHIndex.create(tmp_path / "start", **SMALL) as index:
        index.update(*CHUNKS[0])
    woh = WOH(**SMALL).partial_fit(*CHUNKS[0])
    old = codes.pad(woh.codes_)
    appended = woh.partial_fit(*CHUNKS[1]).codes_ if kind == "update" else woh.encode(CHUNKS[1][0])
    new = np.concatenate([old, codes.pad(appended)])
    after_two = np.concatenate([new, codes.pad(woh.partial_fit(*CHUNKS[2]).codes_)])
    after_old = None
    seen, step = [], 0
    while True:
        path = tmp_path / f"dies-{step}"
        shutil.copytree(tmp_path / "start", path)
        if not die_at(step, lambda path=path: write(kind, path)):
            break
        with WOHIndex.open(path) as index:
            committed = index.ntotal == 24
        seen.append(committed)
        found = answers(path, rounds=2 if committed else 1)
        np.testing.assert_array_equal(found, new if committed else old)
        with WOHIndex.open(path) as index:  # the next update repairs and goes on
            index.update(*CHUNKS[2])
        if not committed and after_old is None:
            woh = WOH(**SMALL).partial_fit(*CHUNKS[0]).partial_fit(*CHUNKS[2])
            after_old = np.concatenate([old, codes.pad(woh.codes_)])
        final = after_two if committed else after_old
        assert (path / "codes.faiss").read_bytes() == faiss_bytes(final)
        expected = {
            f"model-{t}.npz"
            for t in ((2, 3) if committed and kind == "update" else (1, 3 if committed else 2))
        }
        assert {file.name for file in path.glob("model-*")} == expected
        step += 1
    assert len(seen) >= 16
    assert seen == sorted(seen)  # old up to the commit, new from it on
    assert {True, False} == set(seen)


def test_a_build_that_dies_leaves_no_index(tmp_path):
    path = tmp_path / "i.woh"

    def build():
        from woh_faiss import Chunk

        WOHIndex.build(path, [Chunk.of(*CHUNKS[0])], **SMALL)

    assert die_at(20, build)
    assert not path.exists()
    build()
    assert len(answers(path, rounds=1)) == 12
