"""Faults that other tools had and no other test here covers; docs/cases.md has the whole list."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal
from resealed import reseal

from woh_faiss import WOHIndex, WordVectors, read_chunk
from woh_faiss.errors import InputError, StoreError, WOHError
from woh_faiss.io import npz
from woh_faiss.store import NewRound, Store

MAPS = Path("/proc/self/maps")


@pytest.mark.parametrize("id_", [-1, 40, 2**40, -(2**63)])
def test_an_id_that_is_not_there_is_never_a_place(index, id_):
    """40 is the number of rows, and -1 the last one of an array."""
    for ask in (index.items, index.explain, lambda ids: index.search_ids(ids, 3)):
        with pytest.raises(StoreError, match=f"id {id_} is not in"):
            ask([0, id_])


def test_an_id_of_an_empty_index(tmp_path):
    with Store.create(tmp_path / "i.woh", config={}, d=8) as store:
        for id_ in (0, -1):
            with pytest.raises(StoreError, match=f"id {id_} is not in"):
                store.view.codes([id_])


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_an_empty_index_answers_any_number_of_queries_alike(tmp_path, n):
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        for by, none in (("both", -np.inf), ("hamming", 2**31 - 1)):
            D, I = index.search(np.ones((n, 7)), 3, by=by)
            assert_array_equal(D, np.full((n, 3), none))
            assert_array_equal(I, np.full((n, 3), -1))
            assert index.describe(D, I) == [[]] * n


def test_what_search_does_not_know_is_refused(index, tmp_path):
    """Ignored, a filter would answer with everything."""
    np.save(tmp_path / "q.npy", np.ones((1, 7)))
    for option in ("--filter", "--only", "--nprobe", "--type"):
        command = [sys.executable, "-m", "woh_faiss_cli", "query", str(tmp_path / "q.npy"), option, "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"No such option: {option}" in done.stderr or f"No such option '{option}'" in done.stderr
        assert done.stdout == ""
        for ask in (index.search, index.search_ids, index.search_tags):
            with pytest.raises(TypeError, match=option[2:]):
                ask(np.ones((1, 7)), 3, **{option[2:]: 1})


@pytest.mark.parametrize("bits", [8, 64, 576])
def test_a_code_that_is_equal_is_always_found(tmp_path, bits):
    """Of clustered codes, where graphs have holes; also with every second one removed."""
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, size=(20, bits // 8), dtype=np.uint8)
    codes = centres[rng.integers(20, size=600)]
    codes[:, 0] ^= rng.integers(0, 4, size=600, dtype=np.uint8)
    with Store.create(tmp_path / "i", config={}, d=bits) as store:
        what = {"kind": "encoded", "keys": [None] * 600, "tags": [[]] * 600, "trained": 0, "seconds": 0}
        with store.writing() as writing:
            writing.commit(NewRound(codes=codes, ids=np.arange(600), **what))
        assert (store.view.search(codes, 1)[0] == 0).all()
        with store.writing() as writing:
            writing.remove(list(range(0, 600, 2)))
        assert (store.view.search(codes[1::2], 1)[0] == 0).all()


@pytest.mark.parametrize(
    "dtype",
    [f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8", "i2", "i8", "u4")] + ["i1", "u1"],
)
@pytest.mark.parametrize("form", ["npz", "npy", "folder", "Fortran"])
def test_real_features_of_any_type_are_the_same_features(index, tmp_path, dtype, form):
    X = np.abs(np.round(tagged(3, n=5)[0])).astype(dtype)
    if form == "npz":
        np.savez(path := tmp_path / "q.npz", features=X)
    elif form == "folder":
        (path := tmp_path / "q").mkdir()
        np.save(path / "features.npy", X)
    else:
        np.save(path := tmp_path / "q.npy", np.asfortranarray(X) if form == "Fortran" else X)
    for got, want in zip(
        index.search(read_chunk(path).features, 4), index.search(X.astype(np.float64), 4), strict=True
    ):
        assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["c8", "U5", "S5", "M8[s]", "m8[s]"])
def test_features_of_no_real_type_are_named(tmp_path, dtype):
    X = np.ones((2, 3), int).astype(dtype)
    np.savez(tmp_path / "c.npz", features=X)
    with pytest.raises(InputError) as caught:
        read_chunk(tmp_path / "c.npz")
    assert f"c.npz: features have dtype {X.dtype}, expected real numbers" in str(caught.value)


class OwnPath:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


@pytest.mark.parametrize("kind", [str, os.fsencode, OwnPath], ids=["str", "bytes", "PathLike"])
def test_a_path_may_be_of_any_kind(index, tmp_path, kind):
    np.save(tmp_path / "q.npy", np.ones((1, 7)))
    (tmp_path / "w.txt").write_text("sea 1 2 3\n")
    with WOHIndex.open(kind(index.path)) as same:
        assert same.search(read_chunk(kind(tmp_path / "q.npy")).features, 1)[1].shape == (1, 1)
    assert len(WordVectors.open(kind(tmp_path / "w.txt"))) == 1
    Store.create(kind(tmp_path / "new.woh"), config={}, d=8).close()


def test_an_index_is_known_by_its_content_not_by_its_place(index, tmp_path):
    """Moved and copied, it is the same model."""
    expected, digest = index.search(tagged(3, n=5)[0], 4), index.info()["model_digest"]
    index.close()
    copy = shutil.copytree(index.path, tmp_path / "copy of it")
    shutil.move(index.path, tmp_path / "moved")
    for path in (copy, tmp_path / "moved"):
        with WOHIndex.open(path) as same:
            assert same.info()["model_digest"] == digest
            for got, want in zip(same.search(tagged(3, n=5)[0], 4), expected, strict=True):
                assert_array_equal(got, want)
            assert same.update(*tagged(1)).round == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda index: index.update(*tagged(1)),
        lambda index: index.add(tagged(1)[0]),
        lambda index: index.search(tagged(1)[0], 3),
        lambda index: index.range_search(tagged(1)[0], 3),
        lambda index: index.search_tags(["sea"], 3),
        lambda index: index.explain([0]),
    ],
    ids=["update", "add", "search", "range_search", "search_tags", "explain"],
)
def test_a_model_of_another_index_is_not_mixed_in(tmp_path, use):
    """Of the same width and number of bits, of another seed: codes of two functions do not compare."""
    for seed in (0, 1):
        with WOHIndex.create(tmp_path / str(seed), seed=seed, **SMALL) as index:
            index.update(*tagged(0))
    shutil.copy(tmp_path / "1" / "model-1.npz", tmp_path / "0" / "model-1.npz")
    with WOHIndex.open(tmp_path / "0") as index, pytest.raises(StoreError, match="SHA-256 is not the one"):
        use(index)


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list maps")
def test_codes_and_ids_are_mapped_not_read(index):
    with WOHIndex.open(index.path):
        mapped = MAPS.read_text()
    assert all(str(index.path / name) in mapped for name in ("codes.faiss", "ids.i64"))


@pytest.mark.parametrize("name", ["model-1.npz", "anchors.npy"])
def test_nothing_is_appended_through_a_flipped_byte(index, name):
    """A query trusts a CRC or nothing; codes that stay for ever do not."""
    index.close()
    data = bytearray((index.path / name).read_bytes())
    data[-1000 if name == "model-1.npz" else -1] ^= 1
    (index.path / name).write_bytes(data)
    for grow in (lambda index: index.update(*tagged(1)), lambda index: index.add(tagged(1)[0])):
        with WOHIndex.open(index.path) as damaged:
            with pytest.raises(StoreError, match=rf"{name} is damaged \("):
                grow(damaged)
            assert damaged.ntotal == 40


def test_no_other_runtime_is_touched():
    """Two OpenMP runtimes in a process abort it: torch is never ours, and nothing is hidden by a variable."""
    script = (
        "import os, sys; before = dict(os.environ)\n"
        "import woh_faiss, woh_faiss.index.writer, woh_faiss.evaluation.streaming\n"
        "import woh_faiss_cli.main, gensim.models\n"
        "assert dict(os.environ) == before\nassert 'torch' not in sys.modules\n"
    )
    # SWIG, when an old faiss is imported; as an error it crashes Python (pyproject.toml has it, too).
    swig = "ignore:builtin type:DeprecationWarning"
    subprocess.run([sys.executable, "-W", "error", "-W", swig, "-c", script], check=True)


def test_zip64_archives_are_read(tmp_path):
    """As NumPy writes members beyond 4 GiB."""
    with (
        zipfile.ZipFile(tmp_path / "c.npz", "w") as archive,
        archive.open("features.npy", "w", force_zip64=True) as f,
    ):
        np.lib.format.write_array(f, np.ones((2, 3)))
    assert_array_equal(read_chunk(tmp_path / "c.npz").features, np.ones((2, 3)))


def test_many_features_in_a_file_of_their_own_stay_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "READ", 16 << 20)
    np.save(tmp_path / "features.npy", np.ones((100_000, 64), np.float32))  # 26 MB
    tracemalloc.start()
    chunk = read_chunk(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(chunk.features, np.memmap)
    assert peak < 4 << 20


def test_a_message_is_one_line_whatever_is_in_it():
    assert str(WOHError("a\nb\t\x1b[31m\u2028\udcff é 索引")) == r"a\nb\t\x1b[31m\u2028\udcff é 索引"
    assert str(WOHError(r"a\b")) == r"a\b"


def test_health_that_another_wrote_is_shown_without(index, tmp_path):
    """A round whose record lacks the figures that the table shows."""
    import sqlite3
    from contextlib import closing

    index.close()
    with closing(sqlite3.connect(index.path / "catalog.db")) as connection:
        connection.execute("UPDATE rounds SET health = '{}'")
        reseal(connection)
        connection.commit()
    command = [sys.executable, "-m", "woh_faiss_cli", "info", "--index", str(index.path)]
    assert "ntotal" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["history"][0]["health"] == {}
