"""--on-bad skip leaves rows out that cannot be used, lists them, and gives what the others alone give."""

import json

import numpy as np
import pytest
from conftest import tagged
from test_cli import BUILD, run
from test_inputs import lists_of, plain, write_mat73

from woh_faiss import WOHIndex
from woh_faiss.inputs import BadRows, Columns, open_inputs

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")

N, D = 30, 7
#: Row, what is put into it, what is said of it.
FAULTS = {
    3: ("nan", "features are not finite (NaN or infinite)"),
    4: ("null", "features are null"),
    11: ("short", "features are not 7 numbers"),
    12: ("element", "features have a null"),
    17: ("inf", "features are not finite (NaN or infinite)"),
    29: ("key", "key is null"),
}


def spoiled(X):
    """(lists of features, keys) with the faults in them."""
    rows, keys = [[*map(float, x)] for x in X], [f"k{i}" for i in range(len(X))]
    for row, (fault, _) in FAULTS.items():
        if fault == "null":
            rows[row] = None
        elif fault == "short":
            rows[row] = rows[row][:3]
        elif fault == "key":
            keys[row] = None
        else:
            rows[row][2] = {"nan": np.nan, "inf": np.inf, "element": None}[fault]
    return rows, keys


@pytest.fixture
def parquet(tmp_path):
    X, tags = tagged(1, N)
    rows, keys = spoiled(X)
    pq.write_table(pa.table({"emb": rows, "tags": tags, "key": keys}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("size", [None, 4, 1])
def test_parquet_gives_the_other_rows_and_names_these(parquet, size):
    bad = BadRows()
    inputs = open_inputs([parquet], chunk_size=size, learn=True, bad=bad)
    assert inputs.count() == N - len(FAULTS)
    chunks = list(inputs)
    X, tags = tagged(1, N)
    good = [row for row in range(N) if row not in FAULTS]
    np.testing.assert_array_equal(np.concatenate([chunk.features for chunk in chunks]), X[good])
    assert [own for chunk in chunks for own in plain(chunk)[2]] == [tags[row] for row in good]
    assert np.concatenate([chunk.keys for chunk in chunks]).tolist() == [f"k{row}" for row in good]
    found = sorted(bad.records(), key=lambda record: record["row"])
    assert found == [
        {"file": str(parquet), "row": row, "fault": why} for row, (_, why) in sorted(FAULTS.items())
    ]


def test_ids_that_are_missing_or_negative(tmp_path):
    pq.write_table(
        pa.table({"emb": lists_of(np.ones((4, 2))), "tags": [["x"]] * 4, "id": pa.array([5, None, -1, 7])}),
        tmp_path / "a.parquet",
    )
    bad = BadRows()
    (chunk,) = open_inputs([tmp_path / "a.parquet"], learn=True, bad=bad)
    assert chunk.ids.tolist() == [5, 7]
    assert list(bad.found.values()) == ["id is null", "id is negative"]


def test_a_first_row_without_features_does_not_decide_their_width(tmp_path):
    rows = [None, [], [1.0, 2], [3.0, 4]]
    pq.write_table(pa.table({"emb": rows, "tags": [["x"]] * 4}), tmp_path / "a.parquet")
    (chunk,) = open_inputs([tmp_path / "a.parquet"], learn=True, bad=BadRows())
    assert chunk.features.tolist() == [[1, 2], [3, 4]]


def test_other_formats_leave_rows_out_that_are_not_finite(tmp_path):
    X, tags = tagged(1, N)
    X[[2, 9], 0] = np.nan, -np.inf
    strings = np.array([";".join([*own, ""]) for own in tags])
    keys = [f"k{i}" for i in range(N)]
    np.savez(tmp_path / "a.npz", features=X, tags=strings, keys=keys)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"], file["tags"], file["keys"] = X, strings.tolist(), keys
    names = sorted({tag for own in tags for tag in own})
    marks = np.array([[tag in own for tag in names] for own in tags], float)
    write_mat73(tmp_path / "a.mat", I_tr=X.astype(float), T_tr=marks)
    for part in ("img_emb", "metadata"):
        (tmp_path / "out" / part).mkdir(parents=True)
    np.save(tmp_path / "out/img_emb/img_emb_0.npy", X)
    pq.write_table(pa.table({"tags": tags, "key": keys}), tmp_path / "out/metadata/metadata_0.parquet")
    good = np.delete(np.arange(N), [2, 9])
    for name in ("a.npz", "a.h5", "a.mat", "out"):
        for size in (None, 10):
            bad = BadRows()
            chunks = list(open_inputs([tmp_path / name], chunk_size=size, learn=True, bad=bad))
            found = np.concatenate([chunk.features for chunk in chunks])
            np.testing.assert_array_equal(found, X[good])
            assert sum(len(chunk.tags) for chunk in chunks) == len(good)
            if name != "a.mat":
                assert [own for chunk in chunks for own in plain(chunk)[2]] == [tags[row] for row in good]
                assert [key for chunk in chunks for key in chunk.keys.tolist()] == [f"k{row}" for row in good]
            assert sorted(row for _, row in bad.found) == [2, 9]


def test_the_commands_stop_unless_they_are_told_to_skip(tmp_path, monkeypatch, parquet):
    monkeypatch.chdir(tmp_path)
    X, tags = tagged(1, N)
    good = [row for row in range(N) if row not in FAULTS]
    table = {"emb": X[good].tolist(), "tags": [tags[i] for i in good], "key": [f"k{i}" for i in good]}
    pq.write_table(pa.table(table), "good.parquet")
    refused = run("build", "a.parquet", *BUILD, code=1)
    assert "a.parquet: features of row" in refused.stderr
    for half in (["--on-bad", "skip"], ["--bad-report", "bad.jsonl"]):
        assert "go together" in run("build", "a.parquet", *BUILD, *half, code=2).stderr
    skip = ["--on-bad", "skip", "--bad-report", "bad.jsonl"]
    done = run("build", "a.parquet", *BUILD, *skip)
    assert "note: 6 rows were left out; bad.jsonl lists them\n" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {line["row"]: line["fault"] for line in lines} == {row: why for row, (_, why) in FAULTS.items()}
    run("build", "good.parquet", *BUILD, "--index", "other.woh")
    codes = [(tmp_path / name / "codes.faiss").read_bytes() for name in ("index.woh", "other.woh")]
    assert codes[0] == codes[1]
    again = run("update", "a.parquet", *skip)
    assert "already learned (round 1), skipped" in again.stderr
    sampled = run("build", "a.parquet", *BUILD, *skip, "--first-sample", 10, "--index", "sampled.woh")
    assert f"a sample of 10 of {len(good)} items" in sampled.stderr
    with WOHIndex.open("sampled.woh") as index:
        assert sorted(item.key for item in index.items(index.ids())) == sorted(f"k{row}" for row in good)
    columns = Columns(key="")
    assert len(list(open_inputs(["good.parquet"], columns=columns, bad=BadRows()))) == 1
