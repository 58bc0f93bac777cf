"""The whole of an update, from features to disk, dies at every step; the index must answer on."""

from __future__ import annotations

import functools
import shutil

import crash_injection
import faiss
import numpy as np
import pytest
from conftest import LEARNED, LENGTH, SMALL, tagged
from crash_injection import deadly

from woh_faiss import WOH, Chunk, WOHIndex, codes
from woh_faiss.errors import StoreError
from woh_faiss.store import files

pytestmark = pytest.mark.disk


def chunk(seed):
    """Of tags that are never together no vectors are learned, which takes most of a first round's time."""
    X, tags = tagged(seed, n=12)
    return X, tags if LENGTH >= 1 else [given[:1] for given in tags]


CHUNKS = {seed: chunk(seed) for seed in range(4)}


def write(kind, path):
    """What the process that dies is doing."""
    with WOHIndex.open(path) as index:
        if kind == "add":
            index.add(CHUNKS[1][0])
        else:
            index.update(*CHUNKS[1])


@functools.cache
def naive(*jobs):
    """The stored codes after these (kind, chunk), from a trainer that never saw a disk."""
    woh, stored = WOH(**SMALL), [np.empty((0, codes.stored_bits(SMALL["bits"]) // 8), np.uint8)]
    for kind, seed in jobs:
        X, tags = CHUNKS[seed]
        stored.append(codes.pad(woh.encode(X) if kind == "add" else woh.partial_fit(X, tags).codes_))
    return np.concatenate(stored)


def install(on_step):
    files.on_step = on_step


def steps_of(work):
    """The names of the steps of `work`."""
    return crash_injection.steps_of(work, install)


def die_at(step, work):
    """Run `work` in a child that is killed at its step number `step`; False if it had fewer steps."""
    return crash_injection.die_at(step, work, install)


def answers(path, rounds):
    """Its stored codes, after a look that search answers from them."""
    xq = CHUNKS[3][0]
    with WOHIndex.open(path) as index:
        assert len(index.rounds()) == rounds
        D, I = index.search(xq, 5, by="hamming")
        if not rounds:
            assert (I == -1).all()
            return index._store.view.codes([])
        stored = index._store.view.codes(np.arange(index.ntotal))
        packed = codes.pad(index.encode(xq))
    distances = np.unpackbits(stored[None] ^ packed[:, None], axis=2).sum(axis=2)
    np.testing.assert_array_equal(I, np.argsort(distances, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(D, np.sort(distances, axis=1)[:, :5])
    return stored


def faiss_bytes(stored):
    plain = faiss.IndexBinaryFlat(8 * stored.shape[1])
    plain.add(stored)
    return faiss.serialize_index_binary(plain).tobytes()


@pytest.mark.parametrize(
    ("before", "kind"), [([], "update"), ([("update", 0)], "update"), ([("update", 0)], "add")]
)
def test_a_death_at_any_step_leaves_the_old_index_or_the_new(tmp_path, before, kind):
    with WOHIndex.create(tmp_path / "start", **LEARNED) as index:
        for _, seed in before:
            index.update(*CHUNKS[seed])
    done = [*before, (kind, 1)]
    old, new = naive(*before), naive(*done)
    # What is in the file once the next update has repaired the index and gone on, by whether it was new.
    final = {
        False: faiss_bytes(naive(*before, ("update", 2))),
        True: faiss_bytes(naive(*done, ("update", 2))),
    }
    seen = []
    shutil.copytree(tmp_path / "start", tmp_path / "lives")
    steps = steps_of(lambda: write(kind, tmp_path / "lives"))
    for step in deadly(steps):
        path = tmp_path / f"dies-{step}"
        shutil.copytree(tmp_path / "start", path)
        assert die_at(step, lambda path=path: write(kind, path))
        with WOHIndex.open(path) as index:
            committed = index.ntotal == len(new)
        seen.append(committed)
        jobs = done if committed else before
        np.testing.assert_array_equal(answers(path, rounds=len(jobs)), new if committed else old)
        with WOHIndex.open(path) as index:
            index.update(*CHUNKS[2])
        assert len(answers(path, rounds=len(jobs) + 1)) == (len(jobs) + 1) * 12
        assert (path / "codes.faiss").read_bytes() == final[committed]
        trained = [t for t, (job, _) in enumerate([*jobs, ("update", 2)], start=1) if job == "update"]
        assert {file.name for file in path.iterdir() if not file.name.startswith("catalog.db")} == {
            *("codes.faiss", "ids.i64", "anchors.npy"),
            *(f"model-{t}.npz" for t in trained[-2:]),
        }
    assert len(steps) >= 16
    assert not die_at(len(steps), lambda: write(kind, tmp_path / "start"))
    assert seen == sorted(seen)  # old up to the commit, new from it on
    assert {True, False} == set(seen)
    np.testing.assert_array_equal(answers(tmp_path / "lives", rounds=len(done)), new)


def test_a_build_that_dies_anywhere_leaves_no_index_and_the_next_one_works(tmp_path, monkeypatch):
    monkeypatch.setattr("woh_faiss.index.index.FIRST_ROUND", 12)  # each chunk is a round

    def build(path):
        WOHIndex.build(path, [Chunk.of(*CHUNKS[seed]) for seed in (0, 1)], **LEARNED).close()

    expected, named = faiss_bytes(naive(("update", 0), ("update", 1))), []
    path = tmp_path / "lives" / "i.woh"
    path.parent.mkdir()
    steps = steps_of(lambda: build(path))
    assert [entry.name for entry in path.parent.iterdir()] == ["i.woh"]
    assert (path / "codes.faiss").read_bytes() == expected
    for step in deadly(steps):
        path = tmp_path / str(step) / "i.woh"
        path.parent.mkdir()
        assert die_at(step, lambda path=path: build(path))
        if path.exists():  # it died behind the rename, with everything done
            named.append(step)
            assert (path / "codes.faiss").read_bytes() == expected
            continue
        with pytest.raises(StoreError, match="no index at"):
            WOHIndex.open(path)
        if step % (5 if LENGTH >= 1 else 10) == 0:
            build(path)
            assert len(answers(path, rounds=2)) == 24
            assert (path / "codes.faiss").read_bytes() == expected
    assert len(steps) >= 48
    # After the rename, before and after its fsync.
    assert named == [step for step in deadly(steps) if step >= len(steps) - 3]
