"""Rounds on Dask workers, two processes on this machine, against the same rounds in one process."""

import os
import resource

import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOH, Chunk, WOHConfig, WOHIndex, rows, solver
from woh_faiss.errors import ClusterError, InputError
from woh_faiss.tag_lists import TagLists

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from woh_faiss.integrations import dask as on_workers  # noqa: E402

#: As many BLAS threads as here: sums of several threads are others.
THREADS = {
    name: os.environ.get(name, str(os.cpu_count())) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
}


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "distributed.nanny.pre-spawn-environ": THREADS,
        "distributed.worker.daemon": True,
        "distributed.admin.tick.limit": "1h",  # no complaints about a busy machine
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1",
            memory_limit="400MB", silence_logs=50,
        ) as cluster,
    ):  # fmt: skip
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


def stream(seed, n=150):
    """A chunk some of whose items carry no tag."""
    X, tags = tagged(seed, n)
    return X, [[] if i % 11 == 3 else given for i, given in enumerate(tags)]


def cut(X, parts):
    """X as a dask array of partitions of any sizes."""
    ends = np.sort(np.random.default_rng(parts).choice(np.arange(1, len(X)), parts - 1, replace=False))
    return da.from_array(X, chunks=(tuple(np.diff([0, *ends, len(X)]).tolist()), X.shape[1]))


def differing(one, other):
    """Names of what is not the same to the bit."""
    arrays = [
        woh.state() | {name: getattr(woh, name) for name in ("codes_", "trained_", "misfit_")}
        for woh in (one, other)
    ]
    assert arrays[0].keys() == arrays[1].keys()
    return [name for name, value in arrays[0].items() if value.tobytes() != arrays[1][name].tobytes()]


def peak():
    """The most memory this process ever had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_chunk_larger_than_a_worker(client, monkeypatch):
    """1.2 GB, where a worker may have 0.4: only blocks of 17 MB ever exist."""
    n, d, size = 18_432, 16_384, 256
    monkeypatch.setattr(rows, "BLOCK", size)

    def made(block_info=None):
        start = block_info[None]["array-location"][0][0]
        return np.random.default_rng(start).random((size, d), np.float32)

    X = da.map_blocks(
        made, chunks=((size,) * (n // size), (d,)), dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    tags = TagLists(("a", "b", "c"), np.arange(n + 1), np.arange(n) % 3)
    woh = WOH(bits=16, anchors=20, vector_size=4, iterations=1)
    first = Chunk.of(np.asarray(np.random.default_rng(1).random((60, d), np.float32)), tags.rows(slice(60)))
    woh.partial_fit(first.features, first.tags)
    assert X.nbytes > 1.2e9
    before = client.run(lambda: None) and client.run(peak)
    on_workers.partial_fit(woh, X, tags, client=client)
    after = client.run(peak)
    grown = {worker: after[worker] - before[worker] for worker in before}
    print("peak of a worker, MB:", after, "more than before:", grown)
    assert max(grown.values()) < 250
    assert woh.trained_.sum() == n
    assert woh.hasher_.encode(np.random.default_rng(0).random((size, d), np.float32)).shape == (size, 2)


CASES = [(preset, parts, 16) for preset in ("paper", "adaptive") for parts in (1, 2, 7, 50)]
CASES += [(preset, 7, bits) for preset in ("paper", "adaptive") for bits in (64, 128)]


@pytest.mark.parametrize(("preset", "parts", "bits"), CASES)
def test_a_round_is_the_same_to_the_bit_in_any_partitions(client, monkeypatch, preset, parts, bits):
    monkeypatch.setattr(rows, "BLOCK", 16)  # ten blocks: more than are added in one go
    config = WOHConfig(**{**SMALL, "bits": bits}, preset=preset)
    here, there = (WOH(config).partial_fit(*stream(0, 40)) for _ in range(2))
    X, tags = stream(1)
    here.partial_fit(X, tags)
    on_workers.partial_fit(there, cut(X, parts), tags, client=client)
    assert differing(here, there) == []
    assert 0 < here.trained_.sum() < len(X)
