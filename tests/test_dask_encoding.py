"""Codes of data sets made block by block, in this process as on a cluster of threads."""

import numpy as np
import pytest
from conftest import LEARNED, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.index.code_files import read_codes
from woh_faiss.learner import blocks

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from woh_faiss.integrations import dask_encoding  # noqa: E402
from woh_faiss.integrations.dask_encoding import encode, read_parquet  # noqa: E402


@pytest.fixture
def index(tmp_path):
    """An index of learned bits alone."""
    with WOHIndex.create(tmp_path / "index.woh", **LEARNED) as index:
        index.update(*tagged(0))
        yield index


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "120s"}),  # a busy machine
        distributed.Client(
            processes=False,
            n_workers=1,
            threads_per_worker=2,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as client,
    ):
        yield client


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(dask_encoding, "BLOCK", 16)


@pytest.mark.parametrize("parts", [1, 7, 50])
def test_files_are_the_same_in_any_partitions(client, index, small_blocks, tmp_path, parts):
    X, tags = tagged(3, 150)
    names = {"tags": tags, "ids": np.arange(1000, 1150)}
    paths = encode(
        index.hasher, da.from_array(X, chunks=(150 // parts, 7)), tmp_path / "new", rows=30, **names
    )
    assert [path.name for path in paths] == [f"codes-00000{i}.npz" for i in range(5)]
    again = encode(index.hasher, da.from_array(X, chunks=41), tmp_path / "again", rows=32, **names)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert [len(read_codes(path)[0]) for path in paths] == [32, 32, 32, 32, 22]
    for path in paths:
        index.add_codes(path)
    assert_array_equal(index.search(X, 1, by="hamming")[0], 0)
    assert index.items([1149])[0].tags == tags[149]
    packed = np.concatenate([read_codes(path)[0].features for path in paths])
    assert_array_equal(packed, index.hasher.encode(X))


def test_a_run_that_died_is_run_again(client, index, small_blocks, tmp_path, monkeypatch):
    X = da.from_array(tagged(3, 150)[0], chunks=41)
    whole = encode(index.hasher, X, tmp_path / "whole", rows=32)
    written = iter(range(100))

    def full(*args):
        if next(written) == 2:
            raise OSError("the disk is full")
        return write(*args)

    write = dask_encoding.write_codes
    with monkeypatch.context() as patch:
        patch.setattr(dask_encoding, "write_codes", full)
        with pytest.raises(OSError, match="full"):
            encode(index.hasher, X, tmp_path / "died", rows=32)
    assert len(list((tmp_path / "died").iterdir())) == 2
    died = encode(index.hasher, X, tmp_path / "died", rows=32)
    assert [path.read_bytes() for path in died] == [path.read_bytes() for path in whole]


def test_what_cannot_be_encoded_is_refused_before_anything_is_written(client, index, small_blocks, tmp_path):
    X = tagged(3, 60)[0]
    (tmp_path / "codes-000009.npz").touch()
    with pytest.raises(InputError, match=r"codes-000009\.npz, which this run does not write"):
        encode(index.hasher, da.from_array(X), tmp_path)
    (tmp_path / "codes-000009.npz").unlink()
    with pytest.raises(InputError, match="features have 5 columns"):
        encode(index.hasher, da.from_array(X[:, :5]), tmp_path)
    with pytest.raises(InputError, match="there are 3 ids for 60 items"):
        encode(index.hasher, da.from_array(X), tmp_path, ids=[1, 2, 3])
    with pytest.raises(InputError, match="rows is 0"):
        encode(index.hasher, da.from_array(X), tmp_path, rows=0)
    assert list(tmp_path.glob("codes*")) == []
    X[50, 0] = np.inf
    with pytest.raises(InputError, match="features of row 50 are not finite"):
        encode(index.hasher, da.from_array(X), tmp_path, rows=32)


def write_parquet(folder, X, tags, *, fixed=False):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kind = pa.list_(pa.float32(), X.shape[1]) if fixed else pa.list_(pa.float32())
    folder.mkdir(exist_ok=True)
    for number, first in enumerate(range(0, len(X), 60)):
        part = slice(first, first + 60)
        table = pa.table(
            {
                "vector": pa.array(list(X[part]), kind),
                "tags": tags[part],
                "id": np.arange(len(X))[part],
                "name": [f"k{i}" for i in range(len(X))][part],
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=25)
    return folder


@pytest.mark.parametrize("fixed", [False, True])
def test_parquet_is_read_by_row_groups(client, index, tmp_path, fixed):
    X, tags = tagged(3, 150)
    folder = write_parquet(tmp_path / "set", X, tags, fixed=fixed)
    table = read_parquet(folder, "vector", tags="tags", ids="id", keys="name")
    assert table.X.chunks == ((25, 25, 10, 25, 25, 10, 25, 5), (7,))
    assert table.X.dtype == np.float32
    assert_array_equal(table.X.compute(), X)
    assert table.tags == tags
    assert_array_equal(table.ids, np.arange(150))
    assert table.keys[149] == "k149"
    assert table.metadata is None
    metadata = read_parquet(folder, "vector", metadata=["name", "id"]).metadata
    assert metadata == {"name": table.keys, "id": [*range(150)]}
    columns = {"name": metadata["name"], "place": da.from_array(np.array(metadata["id"]), chunks=40)}
    [path] = encode(
        index.hasher, *table[:1], tmp_path, ids=table.ids + 1000, tags=table.tags, metadata=columns
    )
    assert_array_equal(read_codes(path)[0].features, index.hasher.encode(X))
    index.add_codes(path)
    assert index.ids("name = 'k7' or place = 149").tolist() == [1007, 1149]
    with pytest.raises(InputError, match="has no column 'price', only"):
        read_parquet(folder, "vector", metadata=["price"])


def test_parquet_that_cannot_be_used_is_named(client, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with pytest.raises(InputError, match="has no rows"):
        read_parquet(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"none")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_parquet(tmp_path)
    X, tags = tagged(3, 50)
    folder = write_parquet(tmp_path / "set", X, tags)
    with pytest.raises(InputError, match="no column 'features', only vector, tags, id, name"):
        read_parquet(folder)
    with pytest.raises(InputError, match="features are int64, expected lists of numbers"):
        read_parquet(folder, "id")
    ragged = pa.table({"vector": [[1.0, 2.0], [1.0], [3.0]]})
    pq.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(InputError, match="row group 0 are not all lists of 2 numbers"):
        read_parquet(tmp_path / "ragged.parquet", "vector").X.compute()
