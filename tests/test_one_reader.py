"""query, evaluate and benchmark read what build reads, and answer as from .npz files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import tagged
from test_cli import BUILD, run
from test_inputs import lists_of, write_mat73

from woh_faiss.errors import InputError
from woh_faiss.evaluation.benchmark.cells import data_digest
from woh_faiss.evaluation.datasets.named import load
from woh_faiss.inputs import Columns, read_labelled

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.usefixtures("few_anchors")

N = 60
CLASSES = ["hill", "sea", "snow"]


def strings(tags):
    return np.array([";".join([*own, ""]) for own in tags])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same items as .npz, Parquet, HDF5, .mat and a folder of embeddings, and an index of them."""
    folder = tmp_path_factory.mktemp("same")
    X, tags = tagged(1, N)
    keys = [f"k{i:02d}" for i in range(N)]
    kinds = np.arange(N) % 3
    marks = np.eye(3, dtype=int)[kinds]
    known = {"tags": tags, "key": keys, "label": kinds}
    np.savez(folder / "a.npz", features=X, tags=strings(tags), keys=keys, labels=marks)
    pq.write_table(pa.table({"emb": lists_of(X), **known}), folder / "a.parquet", row_group_size=11)
    with h5py.File(folder / "a.h5", "w") as file:
        file["features"], file["tags"], file["keys"], file["labels"] = X, strings(tags).tolist(), keys, marks
    names = sorted({tag for own in tags for tag in own})
    dense = np.array([[tag in own for tag in names] for own in tags], float)
    write_mat73(folder / "a.mat", I_tr=X.astype(float), T_tr=dense, L_tr=marks.astype(float))
    for part in ("img_emb", "metadata"):
        (folder / "out" / part).mkdir(parents=True)
    np.save(folder / "out/img_emb/img_emb_0.npy", X)
    pq.write_table(pa.table(known), folder / "out/metadata/metadata_0.parquet")
    run("build", folder / "a.npz", *BUILD, "--index", folder / "i.woh")
    return folder


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def measured(*arguments):
    flags = ["--bits", 16, "--chunks", 2, "--queries", 15, "--json"]
    found = lines(run("evaluate", *arguments, *flags))
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def test_evaluate_measures_the_same_from_any_format(folder):
    expected = measured(folder / "a.npz")
    for name in ("a.parquet", "a.h5", "out"):
        assert measured(folder / name) == expected


def test_benchmark_reads_the_same_from_any_format(folder, tmp_path):
    found = [load("files", [folder / name]) for name in ("a.npz", "a.parquet", "a.h5")]
    assert len({data_digest(replace(chunk, keys=None)) for chunk in found}) == 1
    flags = ["--methods", "float-l2", "--seeds", 1, "--queries", 15, "-o", tmp_path / "r"]
    done = run("benchmark", folder / "a.parquet", "--labels-column", "", *flags, code=1)
    assert "no labels to measure by" in done.stderr
    done = run("benchmark", folder / "a.parquet", "--limit", 20, *flags, code=1)
    assert "at most half of the 20 items" in done.stderr
    done = run("benchmark", "--dataset", "synthetic", 90, "--limit", 50, *flags, code=2)
    assert "go with --dataset files" in done.stderr


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "out"])
def test_query_answers_the_same_from_any_format(folder, name):
    flags = ["-k", 3, "--json", "--index", folder / "i.woh"]
    expected = lines(run("query", folder / "a.npz", *flags))
    assert lines(run("query", folder / name, *flags)) == expected
    assert {line["query"] for line in expected} == {f"k{i:02d}" for i in range(N)}
    first = lines(run("query", folder / name, *flags, "--limit", 2))
    assert first == expected[: 2 * 3]
    chosen = lines(run("query", folder / name, *flags, "--row", "k07", "--row", "k02"))
    assert chosen == expected[21:24] + expected[6:9]


def test_rows_are_numbered_in_their_file_whatever_the_chunks(folder, monkeypatch):
    flags = ["-k", 1, "--json", "--index", folder / "i.woh", "--key-column", ""]
    whole = lines(run("query", folder / "a.parquet", *flags))
    monkeypatch.setattr("woh_faiss.inputs.open.CHUNK_SIZE", 7)
    assert lines(run("query", folder / "a.parquet", *flags)) == whole
    assert [line["query"] for line in whole] == list(range(N))
    assert lines(run("query", folder / "a.parquet", *flags, "--limit", 9)) == whole[:9]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a.parquet", "--row", "nobody"], 1, "no row of a.parquet has the key 'nobody'"),
        (["a.parquet", "--row", "k01", "--key-column", ""], 1, "a.parquet has no keys for --row"),
        (["a.parquet", "--row", "k01", "--limit", 1], 2, "give --row or --limit, not both"),
        (["--id", 1, "--limit", 1], 2, "--row, --limit and --...-column go with QUERIES"),
        (["--tags", "sea", "--features-column", "emb"], 2, "go with QUERIES"),
        (["a.npz", "--features-column", "emb"], 1, "chunk file, whose arrays have fixed names"),
        (["a.parquet", "--features-column", "tags"], 1, "expected lists of numbers"),
    ],
)
def test_what_cannot_be_chosen_is_refused(folder, monkeypatch, arguments, code, message):
    monkeypatch.chdir(folder)
    done = run("query", *arguments, "--index", "i.woh", code=code)
    assert message in done.stderr
    assert done.stdout == ""


# ---- labels --------------------------------------------------------------------------------------------


def labels_of(path, **options):
    return read_labelled([path], **options).labels


def test_labels_have_any_usual_form(folder, tmp_path):
    expected = np.eye(3, dtype=bool)[np.arange(N) % 3]
    for name in ("a.npz", "a.parquet", "a.h5", "a.mat", "out"):
        np.testing.assert_array_equal(labels_of(folder / name), expected)
    X, tags = tagged(1, N)
    texts = [CLASSES[i % 3] for i in range(N)]
    forms = {
        "text": texts,
        "bytes": pa.array([text.encode() for text in texts]),
        "dictionary": pa.array(texts).dictionary_encode(),
        "lists": [[text] for text in texts],
        "marks": lists_of(expected.astype(np.int8)),
        "numbers": pa.array(np.arange(N) % 3).dictionary_encode(),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"emb": lists_of(X), "tags": tags, **forms}), path)
    for name in forms:
        np.testing.assert_array_equal(labels_of(path, labels=name), expected)
    assert labels_of(path, labels="") is None
    assert labels_of(path) is None  # none has a usual name
    assert len(read_labelled([path], labels="text", limit=7)) == 7


def test_classes_by_name_are_the_same_in_every_file(tmp_path):
    for name, texts in {"a": ["sea", "hill"], "b": ["snow", "sea"]}.items():
        pq.write_table(
            pa.table({"emb": lists_of(np.eye(2)), "tags": [["x"], ["y"]], "class": texts}),
            tmp_path / f"{name}.parquet",
        )
    said = []
    chunk = read_labelled([tmp_path], note=said.append)
    assert chunk.labels.astype(int).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert said[-1] == f"{tmp_path / 'a.parquet'}: labels from 'class'"
    assert len(said) == 2


def test_a_folder_s_name_may_be_the_label(tmp_path):
    for topic in ("hill", "sea"):
        (tmp_path / f"topic={topic}").mkdir()
        pq.write_table(
            pa.table({"emb": lists_of(np.eye(2)), "tags": [["x"], ["y"]]}),
            tmp_path / f"topic={topic}/0.parquet",
        )
    found = read_labelled([tmp_path], labels="topic").labels
    assert found.astype(int).tolist() == [[1, 0]] * 2 + [[0, 1]] * 2


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, None], "labels of row 1 are null"),
        (["a", None], "labels of row 1 are null"),
        (["a", ""], "labels of row 1 have an empty name"),
        ([[0, 1], [0]], "labels of row 1 have 1 numbers, those of row 0 2"),
        ([[0, 1], [0, 2]], "labels"),
        ([0, -1], "class -1 of row 1"),
        ([0.5, 1.5], "column 'label' is double, expected class numbers or lists of 0 and 1 or text"),
    ],
)
def test_labels_that_cannot_be_used_are_one_line(tmp_path, labels, message):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"emb": lists_of(np.eye(2)), "tags": [["x"], ["y"]], "label": labels}), path)
    with pytest.raises(InputError) as caught:
        labels_of(path, labels="label")
    assert message in str(caught.value)


def test_labels_of_different_kinds_are_refused(tmp_path):
    for name, labels in {"a": [0, 1], "b": ["x", "y"]}.items():
        table = pa.table({"emb": lists_of(np.eye(2)), "tags": [["x"], ["y"]], "label": labels})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"b.parquet are of another kind than those of .*a.parquet"):
        labels_of(tmp_path)


def test_a_chunk_file_s_labels_have_their_place(folder):
    with pytest.raises(InputError, match="has its labels in an array 'labels'"):
        labels_of(folder / "a.npz", labels="label")
    two = read_labelled([folder / "a.npz", folder / "a.npz"], limit=N + 5)
    assert len(two) == N + 5
    assert two.tags.of_row(N) == two.tags.of_row(0)
    with pytest.raises(InputError, match="no column of tags"):
        read_labelled([folder / "a.parquet"], columns=Columns(tags=""))
