"""Rounds on Dask workers, two processes on this machine, against the same rounds in one process."""

import os
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from conftest import LENGTH, length, tagged
from conftest import SMALL as SHORT
from numpy.testing import assert_array_equal

from woh_faiss import WOH, Chunk, WOHConfig, WOHIndex
from woh_faiss.errors import ClusterError, InputError
from woh_faiss.index import instance_half
from woh_faiss.index import writer as index_writer
from woh_faiss.learner import blocks, instance, training_round
from woh_faiss.tags.tag_lists import TagLists

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pytest.importorskip("dask.bag")
distributed = pytest.importorskip("distributed")

from woh_faiss.integrations import dask as on_workers  # noqa: E402

pytestmark = pytest.mark.xdist_group("dask")  # one cluster

#: A task takes milliseconds whatever is in it: two iterations a round where time is short.
SMALL = SHORT if LENGTH >= 1 else SHORT | {"iterations": 2}

#: As many BLAS threads as here: sums of several threads are others.
THREADS = {
    name: os.environ.get(name, str(len(os.sched_getaffinity(0))))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
}


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "distributed.nanny.pre-spawn-environ": THREADS,
        "distributed.worker.daemon": True,
        "distributed.comm.timeouts.connect": "120s",  # a busy machine
        "distributed.admin.tick.limit": "1h",  # no complaints about a busy machine
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # any free port; None is always 8787
            memory_limit="300MB", silence_logs=50,
        ) as cluster,
    ):  # fmt: skip
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


def stream(seed, n=150):
    """A chunk some of whose items carry no tag, and some another item's."""
    X, tags = tagged(seed, n)
    tags[1::4] = np.roll(np.array(tags[1::4], object), 1).tolist()
    return X, [[] if i % 11 == 3 else given for i, given in enumerate(tags)]


def cut(X, parts):
    """X as a dask array of partitions of any sizes."""
    ends = np.sort(np.random.default_rng(parts).choice(np.arange(1, len(X)), parts - 1, replace=False))
    return da.from_array(X, chunks=(tuple(np.diff([0, *ends, len(X)]).tolist()), X.shape[1]))


def differing(one, other):
    """Names of what is not the same to the bit."""
    arrays = [
        woh.state() | {name: getattr(woh, name) for name in ("codes_", "trained_", "trust_")}
        for woh in (one, other)
    ]
    assert arrays[0].keys() == arrays[1].keys()
    return [name for name, value in arrays[0].items() if value.tobytes() != arrays[1][name].tobytes()]


def peak():
    """The most memory this process ever had, MB; its `ru_maxrss` would be that of its parent, if higher."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


def test_a_chunk_larger_than_a_worker(client, monkeypatch):
    """1.07 GB, or a part of it, where a worker may have 0.3: only blocks of 17 MB ever exist."""
    n, d, size = 256 * min(64, max(32, length(64))), 16_384, 256
    monkeypatch.setattr(blocks, "BLOCK", size)

    def made(block_info=None):
        start = block_info[None]["array-location"][0][0]
        return np.tile(np.random.default_rng(start).random((size, 64), np.float32), d // 64)

    X = da.map_blocks(
        made, chunks=((size,) * (n // size), (d,)), dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    tags = TagLists(("a", "b", "c"), np.arange(n + 1), np.arange(n) % 3)
    woh = WOH(bits=16, anchors=20, vector_size=4, iterations=1)
    first = Chunk.of(np.asarray(np.random.default_rng(1).random((60, d), np.float32)), tags.rows(slice(60)))
    woh.partial_fit(first.features, first.tags)
    assert X.nbytes > 5e8
    before = client.run(peak)
    on_workers.partial_fit(woh, X, tags, client=client)
    after = client.run(peak)
    grown = {worker: after[worker] - before[worker] for worker in before}
    print("peak of a worker, MB:", after, "more than before:", grown)
    assert max(grown.values()) < 150
    assert woh.trained_.sum() == n
    assert woh.hasher_.encode(np.random.default_rng(0).random((size, d), np.float32)).shape == (size, 2)


#: Each preset, one part and many, and longer codes; at full length each preset with each number of parts.
CASES = [("paper", 1, 16), ("adaptive", 2, 64), ("paper", 50, 128)]
if LENGTH >= 1:
    CASES += [(preset, parts, 16) for preset in ("paper", "adaptive") for parts in (1, 2, 7, 50)][1:]
    CASES += [("paper", 7, 128), ("adaptive", 7, 64)]


@pytest.mark.parametrize(("preset", "parts", "bits"), CASES)
def test_a_round_is_the_same_to_the_bit_in_any_partitions(client, monkeypatch, preset, parts, bits):
    monkeypatch.setattr(blocks, "BLOCK", 16)  # ten blocks: more than are added in one go
    config = WOHConfig(**{**SMALL, "bits": bits}, preset=preset)
    here, there = (WOH(config).partial_fit(*stream(0, 40)) for _ in range(2))
    X, tags = stream(1)
    here.partial_fit(X, tags)
    on_workers.partial_fit(there, cut(X, parts), tags, client=client)
    assert differing(here, there) == []
    assert 0 < here.trained_.sum() < len(X)


def test_a_round_that_adapts_to_new_kinds_of_items(client, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    here, there = (WOH(**SMALL).partial_fit(*stream(0, 40)) for _ in range(2))
    X, tags = stream(1)
    X, tags = X[:, ::-1].copy(), [[f"new {tag}" for tag in given] for given in tags]
    here.partial_fit(X, tags)
    on_workers.partial_fit(there, cut(X, 7), tags, client=client)
    assert here.adapted_
    assert there.adapted_
    assert differing(here, there) == []


def test_the_first_rounds_may_be_on_workers_too(client, monkeypatch):
    """The paper's in blocks; of a semantic start, which looks at all rows, here."""
    monkeypatch.setattr(blocks, "BLOCK", 16)
    X, tags = stream(2)
    for preset in ("paper", "adaptive"):
        here, there = (WOH(WOHConfig(**SMALL, preset=preset)) for _ in range(2))
        here.partial_fit(np.asfortranarray(X), tags)
        on_workers.partial_fit(there, cut(X, 5), tags, client=client)
        assert differing(here, there) == []
        assert_array_equal(here.anchors_, there.anchors_)
    monkeypatch.setattr(on_workers, "MOST_HERE", 149)
    with pytest.raises(InputError, match=r"150 items, .* at most 149; learn a chunk of a few thousand first"):
        on_workers.partial_fit(WOH(**SMALL), cut(X, 5), tags, client=client)


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith("catalog")}


def test_an_index_updated_on_workers_has_the_same_files(client, monkeypatch, tmp_path):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    X, tags = stream(1, 60)
    ids, keys = np.arange(500, 560), [f"k{i}" for i in range(60)]
    lazy = da.from_array(X, chunks=(17, 7))
    unknown = lazy[da.from_array(np.ones(60, bool), chunks=17)]  # an array that does not know its sizes
    bag = dask.bag.from_sequence(tags, npartitions=3)
    with (
        WOHIndex.create(tmp_path / "here", **SMALL) as here,
        WOHIndex.create(tmp_path / "there", **SMALL) as there,
    ):
        for index in (here, there):
            index.update(*tagged(0), ids=np.arange(40), keys=[f"a{i}" for i in range(40)])
        price = np.arange(60) / 4
        metadata = {"price": price, "topic": ["sea", None] * 30}
        here.update(X, tags, ids=ids, keys=keys, metadata=metadata)
        lazy_ids = da.from_array(ids, chunks=9)
        metadata["price"] = da.from_array(price, chunks=7)
        done = on_workers.update(
            there, unknown, bag, ids=lazy_ids, keys=keys, metadata=metadata, client=client
        )
        assert there.ids("price < 1 and topic is null").tolist() == [501, 503]
        assert (done.n, done.trained, done.kind) == (60, sum(map(bool, tags)), "trained")
        assert files(here.path) == files(there.path)
        # Known items are left out before anything is computed, by the policies of update.
        here.update(*stream(3, 60), ids=ids + 30, on_duplicate="skip")
        X3, tags3 = stream(3, 60)
        on_workers.update(there, cut(X3, 4), tags3, ids=ids + 30, on_duplicate="skip", client=client)
        assert files(here.path) == files(there.path)
        assert WOHIndex.verify(there.path) == []
        for a, b in zip(here.search(X3, 5), there.search(X3, 5), strict=True):
            assert_array_equal(a, b)


#: Items a round; items from which instance bits are final here. The last rounds come after that.
ROUNDS, ENOUGH_HERE = (40, 60, 70, 50, 60)[: 5 if LENGTH >= 1 else 4], 150


#: Fewer instance bits, which go the same way, at full length.
HALVES = [({}, False), ({"preset": "paper"}, True), ({"bits": 0}, True), ({"instance_bits": 8}, True)]


@pytest.mark.parametrize(("more", "first_there"), HALVES if LENGTH >= 1 else HALVES[:3])
def test_both_halves_are_the_same_before_and_after_the_instance_bits_are_final(
    client, monkeypatch, tmp_path, more, first_there
):
    """Files and early features, too. Blocks of 16 rows cut every round, partitions cut blocks."""
    config = {**SMALL, **more} if LENGTH >= 1 else {**SMALL, "iterations": 1, **more}
    monkeypatch.setattr(blocks, "BLOCK", 16)
    for module in (instance, instance_half, index_writer):
        monkeypatch.setattr(module, "ENOUGH", ENOUGH_HERE)
    with (
        WOHIndex.create(tmp_path / "here", **config) as here,
        WOHIndex.create(tmp_path / "there", **config) as there,
    ):
        end = 0
        for number, n in enumerate(ROUNDS):
            X, tags = stream(number, n)
            one = here.update(X, tags)
            if number == 0 and not first_there:
                two = there.update(X, tags)
            else:
                two = on_workers.update(there, cut(X, 3 + number), tags, client=client)
            assert (one.n, one.trained, one.kind) == (two.n, two.trained, two.kind)
            assert (one.checksum, one.model_digest) == (two.checksum, two.model_digest)
            assert files(here.path) == files(there.path)
            assert early_of(here) == early_of(there)
            before, end = end, end + n
            final = end >= ENOUGH_HERE
            assert there.hasher.instance.final == final
            assert there.hasher.instance.n == (ROUNDS[0] if not final else sum(ROUNDS[:3]))
            assert len(early_of(there)) == (0 if final else end)
            recoded = final and before < ENOUGH_HERE
            assert (there._store.snapshot.generation > 0) == final
            if recoded:  # all earlier rows have bits of the final function
                every = np.concatenate([stream(i, rows)[0] for i, rows in enumerate(ROUNDS[: number + 1])])
                stored = there._store.view.mapped.codes[:, there.config.bits // 8 : there.code_size]
                assert_array_equal(stored, there.hasher.instance.packed(instance.unit_single(every)))
                with pytest.raises(InputError, match="cannot be restored"):
                    there.rollback(number)
        assert WOHIndex.verify(there.path) == []
        xq = stream(9, 20)[0]
        for one, two in zip(here.search(xq, 7), there.search(xq, 7), strict=True):
            assert_array_equal(one, two)


def early_of(index):
    """The features that the index keeps: (row, bytes)."""
    with sqlite3.connect(f"file:{index.path / 'catalog.db'}?mode=ro", uri=True) as connection:
        found = connection.execute("SELECT row, x FROM early_features ORDER BY row").fetchall()
    connection.close()
    return found


def test_a_worker_that_dies_while_instance_bits_become_final_changes_nothing(client, monkeypatch, tmp_path):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    for module in (instance, instance_half, index_writer):
        monkeypatch.setattr(module, "ENOUGH", ENOUGH_HERE)
    marker = tmp_path / "armed"
    with (
        WOHIndex.create(tmp_path / "here", **SMALL) as here,
        WOHIndex.create(tmp_path / "there", **SMALL) as there,
    ):
        for index in (here, there):
            index.update(*stream(0, 100))
        X, tags = stream(1, 100)
        here.update(X, tags)
        workers = set(client.scheduler_info()["workers"])
        marker.touch()
        monkeypatch.setattr(
            instance_half, "packed_signs", dying(os.fspath(marker), instance_half.packed_signs)
        )
        on_workers.update(there, cut(X, 4), tags, client=client)
        assert not marker.exists()
        client.wait_for_workers(2, timeout=120)
        assert set(client.scheduler_info()["workers"]) != workers
        assert files(here.path) == files(there.path)
        assert early_of(there) == []
        assert WOHIndex.verify(there.path) == []


def test_what_cannot_be_used_is_refused_and_nothing_changes(client, monkeypatch, index):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    X, tags = stream(1, 60)
    before = files(index.path)
    bad = X.copy()
    bad[[37, 50]] = np.nan
    for features, given, message in (
        (cut(bad, 3), tags, "features of row 37 are not finite"),
        (cut(X, 3), tags[:-1], "there are 59 tags for 60 rows"),
        (cut(X[:, :5], 3), tags, "features have 5 columns, the model was fitted with 7"),
        (X, tags, "features are a ndarray, expected a dask.array"),
        (da.zeros((3, 4, 5)), tags, "features have 3 dimensions"),
    ):
        with pytest.raises(InputError, match=message):
            on_workers.update(index, features, given, client=client)
        assert files(index.path) == before
    index.update(X, tags)
    assert index.ntotal == 100


def test_without_a_client_it_says_so(index):
    with pytest.raises(InputError, match="there is no Dask client"):
        on_workers.update(index, da.zeros((3, 7)), [["sea"]] * 3)


def dying(marker, step):
    """`step`, whose worker dies while there is a file `marker`, which it takes along."""

    def killed(*args):
        import os

        try:
            os.unlink(marker)  # noqa: PTH108 - sent to a worker
        except FileNotFoundError:
            return step(*args)
        os._exit(1)

    return killed


def armed(monkeypatch, marker, iteration):
    """A worker dies in the codes' steps of the given iteration."""
    count, W_of = iter(range(100)), training_round.W_of

    def arming(*args):
        if next(count) == iteration:
            marker.touch()
        return W_of(*args)

    monkeypatch.setattr(training_round, "W_of", arming)
    monkeypatch.setattr(training_round, "_improved", dying(os.fspath(marker), training_round._improved))


def test_a_worker_that_dies_in_a_round_changes_nothing_in_it(client, monkeypatch, tmp_path):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    here, there = (WOH(WOHConfig(**SMALL)).partial_fit(*stream(0, 40)) for _ in range(2))
    X, tags = stream(1)
    here.partial_fit(X, tags)
    workers = set(client.scheduler_info()["workers"])
    armed(monkeypatch, tmp_path / "armed", 1)
    on_workers.partial_fit(there, cut(X, 7), tags, client=client)
    assert not (tmp_path / "armed").exists()
    client.wait_for_workers(2, timeout=120)
    assert set(client.scheduler_info()["workers"]) != workers
    assert differing(here, there) == []


def test_a_round_that_cannot_go_on_is_one_error_and_no_round(client, cluster, monkeypatch, index):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    before = files(index.path)
    X, tags = stream(1, 60)
    with monkeypatch.context() as patch:
        armed(patch, index.path.with_name("armed"), 0)
        with pytest.raises(ClusterError, match=r"lost what the round needs \(\w+\); nothing was changed"):
            on_workers.update(index, cut(X, 7), tags, client=client)
    assert files(index.path) == before
    assert WOHIndex.verify(index.path) == []
    client.wait_for_workers(2, timeout=120)
    assert on_workers.update(index, cut(X, 7), tags, client=client).n == 60
