"""A random sample of whole inputs is round 1: each item once, with its id; an interrupted build continues."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from conftest import SMALL, full_length_only, save_chunk, tagged
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_resume import extend, files_of

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.inputs import SampledInputs, first_sampled, open_inputs, sample_rows
from woh_faiss_cli.main import main


def parquet(path: Path, seed: int, n: int, **columns):
    X, tags = tagged(seed, n)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"embedding": list(X), "tags": tags, **columns}), path)
    return path


def hdf5(path, seed, n):
    h5py = pytest.importorskip("h5py")
    X, tags = tagged(seed, n)
    with h5py.File(path, "w") as file:
        file["features"], file["tags"] = X, [" ".join(names) for names in tags]
    return path


@pytest.fixture
def files(tmp_path):
    """Three formats, 20 + 25 + 15 items, no names."""
    return [
        save_chunk(tmp_path / "a.npz", 0, 20),
        parquet(tmp_path / "b.parquet", 1, 25),
        hdf5(tmp_path / "c.h5", 2, 15),
    ]


def everything(files):
    """(features, tags) of each item in the order of the files."""
    chunks = list(open_inputs(files))
    return [(tuple(x), c.tags.of_row(i)) for c in chunks for i, x in enumerate(np.asarray(c.features, "f8"))]


@given(st.integers(2, 400), st.data())
def test_a_sample_has_the_last_item_and_others_at_random(n, data):
    m, seed = data.draw(st.integers(1, n - 1)), data.draw(st.integers(0, 9))
    rows = sample_rows(n, m, seed)
    assert len(set(rows.tolist())) == m
    assert_array_equal(rows, np.sort(rows))
    assert rows[0] >= 0
    assert rows[-1] == n - 1
    assert_array_equal(rows, sample_rows(n, m, seed))


@pytest.mark.parametrize("size", [None, 7, 25])
@pytest.mark.parametrize("m", [1, 17, 59])
def test_each_item_once_the_sample_first_the_rest_in_order(files, size, m):
    expected = everything(files)
    inputs = first_sampled(open_inputs(files, chunk_size=size), m, 3)
    assert inputs.n == inputs.count() == 60
    pieces = list(inputs.pieces())
    ids = [piece.chunk.ids.tolist() for piece in pieces]
    assert ids[0] == sample_rows(60, m, 3).tolist()
    rest = [id_ for part in ids[1:] for id_ in part]
    assert rest == sorted(set(range(60)) - set(ids[0]))
    for piece, part in zip(pieces, ids, strict=True):
        X = np.asarray(piece.chunk.features, "f8")
        found = [(tuple(x), piece.chunk.tags.of_row(i)) for i, x in enumerate(X)]
        assert found == [expected[i] for i in part]
    assert [piece.number for piece in pieces] == sorted({piece.number for piece in pieces})
    assert pieces[-1].number <= len(inputs)


@pytest.mark.parametrize("m", [0, 60, 100])
def test_no_sample_of_few_items_or_none(files, m):
    inputs = open_inputs(files)
    assert first_sampled(inputs, m, 0) is inputs


def test_names_stay(tmp_path):
    files = [
        parquet(tmp_path / "a.parquet", 0, 30, id=range(1000, 1030), key=[f"k{i}" for i in range(30)]),
        parquet(tmp_path / "b.parquet", 1, 30, id=range(30), key=[f"l{i}" for i in range(30)]),
    ]
    with WOHIndex.build(tmp_path / "i.woh", open_inputs(files), first_sample=20, **SMALL) as index:
        assert next(r.n for r in index.rounds()) == 20
        assert {index.id_of(f"k{i}") for i in range(30)} == set(range(1000, 1030))
        assert {index.id_of(f"l{i}") for i in range(30)} == set(range(30))


def test_keys_without_ids_have_their_place_as_id(tmp_path):
    file = parquet(tmp_path / "a.parquet", 0, 50, key=[f"k{i}" for i in range(50)])
    with WOHIndex.build(tmp_path / "i.woh", open_inputs([file]), first_sample=20, **SMALL) as index:
        assert [index.id_of(f"k{i}") for i in range(50)] == list(range(50))


def test_inputs_of_which_only_some_have_names_are_not_sampled(tmp_path):
    files = [
        parquet(tmp_path / "a.parquet", 0, 30, key=[f"k{i}" for i in range(30)]),
        parquet(tmp_path / "b.parquet", 1, 30),
    ]
    inputs = open_inputs(files)
    assert first_sampled(inputs, 20, 0) is inputs


def build(path, files, m=20, **how):
    return WOHIndex.build(path, open_inputs(files, chunk_size=10), first_sample=m, **(SMALL | how))


@pytest.fixture(autouse=True)
def _small_first_round(monkeypatch):
    monkeypatch.setattr("woh_faiss.index.index.FIRST_ROUND", 15)


@pytest.mark.parametrize(
    ("done", "seed"), [(1, 0), (2, 4), (5, 0), *full_length_only((1, 4), (2, 0), (5, 4))]
)
def test_what_was_interrupted_continues_to_the_same_bytes(tmp_path, files, done, seed):
    build(tmp_path / "whole.woh", files, seed=seed).close()
    with build(tmp_path / "i.woh", files, seed=seed, max_chunks=done) as index:
        assert len(index.rounds()) == done
        _, skipped = extend(index, *files, size=10)
        assert skipped == list(range(1, done + 1))
        assert extend(index, *files, size=10)[0] == []
    whole, part = (files_of(tmp_path / name) for name in ("whole.woh", "i.woh"))
    assert whole == part
    assert len(whole[2]) == 60


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_items_without_names_are_known_by_their_chunk(tmp_path, files, policy):
    with build(tmp_path / "i.woh", files) as index:
        done, skipped = extend(index, *files, size=10, on_duplicate=policy)
        assert (done, len(skipped)) == ([], len(index.rounds()))


def test_a_folder_that_grows_brings_its_new_items_only(tmp_path):
    folder = tmp_path / "photos"
    parquet(folder / "a.parquet", 0, 30)
    parquet(folder / "b.parquet", 1, 30)
    with build(tmp_path / "i.woh", [folder]) as index:
        parquet(folder / "c.parquet", 2, 20)
        assert extend(index, folder, size=10)[0] == [10, 10]
        assert extend(index, folder, size=10)[0] == []
        assert sorted(index.store.view.ids.tolist()) == list(range(80))


def test_items_from_elsewhere_come_between(tmp_path, files):
    """The ids that the other items have by their places stay free."""
    with build(tmp_path / "i.woh", files, max_chunks=1) as index:
        X, tags = tagged(9, 12)
        index.update(X, tags)
        extend(index, *files, size=10)
        ids = index.store.view.ids.tolist()
        assert sorted(ids) == list(range(72))
        assert ids[20:32] == list(range(60, 72))


def test_other_inputs_are_taken_as_they_come(tmp_path, files):
    with build(tmp_path / "i.woh", files) as index:
        other = parquet(tmp_path / "other.parquet", 7, 70)
        assert extend(index, other, size=35) == ([35, 35], [])
        assert index.ntotal == 130


def test_what_is_asked_for_again_is_taken_again(tmp_path, files):
    with build(tmp_path / "i.woh", files) as index:
        assert sum(extend(index, *files, size=10, skip_known=False)[0]) == 60
        assert index.ntotal == 120


def test_data_of_one_kind_after_another_teach_as_shuffled_ones(tmp_path):
    rng = np.random.default_rng(0)
    topic = np.sort(rng.integers(12, size=600))
    X = (np.eye(12, 24)[topic] + rng.normal(size=(600, 24)) / 4).astype(np.float32)
    order = rng.permutation(600)

    def precision(rows, m):
        file = tmp_path / f"{m}-{rows[0]}.parquet"
        table = {"embedding": list(X[rows]), "tags": [[f"t{topic[r]}", "all"] for r in rows]}
        pq.write_table(pa.table(table), file)
        path = file.with_suffix(".woh")
        inputs = open_inputs([file], chunk_size=60)
        with WOHIndex.build(path, inputs, first_sample=m, bits=16, anchors=40, min_count=1) as index:
            _, I = index.search(X, 20, by="kind")
            return (topic[rows][I] == topic[:, None]).mean()

    shuffled, ordered = precision(order, 0), precision(np.arange(600), 120)
    assert ordered > 0.97 * shuffled
    assert precision(np.arange(600), 0) < ordered


def test_a_sample_is_checked(tmp_path, files):
    with pytest.raises(InputError, match="first_sample is -1, expected at least 0"):
        build(tmp_path / "i.woh", files, m=-1)
    assert not (tmp_path / "i.woh").exists()


def test_a_damaged_row_is_named_by_its_place_in_the_file(tmp_path):
    X, tags = tagged(0, 40)
    X[33, 2] = np.nan
    pq.write_table(pa.table({"embedding": list(X), "tags": tags}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet.*row 3 .*from row 30"):
        build(tmp_path / "i.woh", [tmp_path / "a.parquet"])
    assert not (tmp_path / "i.woh").exists()


def test_the_command_says_so_in_one_line(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ["build", *map(str, files), "--bits", "8", "--anchors", "9", "--min-count", "1"]
    done = CliRunner().invoke(main, [*args, "--first-sample", "20", "--index", "i.woh"])
    assert done.exit_code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "sample" in line]
    assert said == ["note: round 1 is a sample of 20 of 60 items; the others follow in their order"]
    assert re.search(r"^round 1: 20 items appended", done.stderr, re.MULTILINE)
    plain = CliRunner().invoke(main, [*args, "--first-sample", "0", "--index", "j.woh"])
    assert "sample" not in plain.stderr
    with WOHIndex.open("i.woh") as one, WOHIndex.open("j.woh") as other:
        assert sorted(one.store.view.ids) == sorted(other.store.view.ids)
        assert isinstance(first_sampled(open_inputs(files), 20, 0), SampledInputs)
