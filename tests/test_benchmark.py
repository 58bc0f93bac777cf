"""woh-index benchmark: what is measured, kept, and shown."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csr_array
from test_cli import run
from test_mat import save73

from woh_faiss import Chunk, WOHConfig
from woh_faiss.errors import InputError
from woh_faiss.evaluation import benchmark
from woh_faiss.evaluation.baselines import METHODS
from woh_faiss.evaluation.baselines.ablations import VARIANTS
from woh_faiss.evaluation.benchmark import (
    NAMES,
    Cell,
    Records,
    Setting,
    cells,
    measure,
    paper,
    published_numbers,
)
from woh_faiss.evaluation.benchmark.cells import data_digest
from woh_faiss.evaluation.benchmark.measuring import by_iteration, objective
from woh_faiss.evaluation.benchmark.report import table
from woh_faiss.evaluation.datasets import prepared, synthetic
from woh_faiss.evaluation.datasets.named import SETS
from woh_faiss.evaluation.metrics import precision_at
from woh_faiss.evaluation.quality import Quality
from woh_faiss.evaluation.streaming import split, stream
from woh_faiss.inputs.chunk import concatenate
from woh_faiss_cli.main import main

pytestmark = pytest.mark.usefixtures("few_anchors")

SETTING = Setting(chunks=3, queries=30, min_count=1)
WORDS = ["sea", "beach", "hill", "snow", "city", "night"]


def social(n=660, d=12, seed=0):
    rng = np.random.default_rng(seed)
    topic = rng.integers(6, size=n)
    X = (np.eye(6, d)[topic] * 2 + rng.normal(size=(n, d))).astype(np.float32)
    tags = [[WORDS[t], WORDS[(t + 1) % 6]] if rng.random() < 0.6 else [WORDS[t]] for t in topic]
    return replace(Chunk.of(X, tags), labels=np.eye(6, dtype=bool)[topic])


@pytest.fixture(scope="module")
def chunk():
    return social()


@pytest.fixture
def files(tmp_path, chunk):
    np.savez(
        tmp_path / "all.npz",
        features=chunk.features,
        tags=np.array([";".join([*chunk.tags.of_row(i), ""]) for i in range(len(chunk))]),
        labels=np.asarray(chunk.labels).astype(int),
    )
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_measured_as_the_protocol_has_it(chunk, name):
    (cell,) = cells([name], [72 if name == "faiss-rabitq" else 16], [1])
    got = measure(chunk, cell, SETTING)
    assert [it["round"] for it in got["rounds"]] == ([1, 2, 3] if got["distinct"] is not None else [3])
    assert (got["queries"], got["database"]) == (30, 630)
    assert got["first"][-1] == 500
    assert np.all(np.diff(got["recall"]) >= 0)
    assert 0 < got["recall"][-1] <= 1
    learners = METHODS | VARIANTS
    if name in METHODS or name.startswith("woh"):
        config = WOHConfig(
            bits=16, seed=1, min_count=1, preset="paper" if name == "woh-paper" else "adaptive"
        )
        given = {"make": learners[name].of} if name in learners else {}
        if name == "woh-twin":
            given = {"instance_bits": 8, "by": "both", "expand": 3}
            config = replace(config, bits=8)
        want = list(stream(chunk, [config], chunks=3, queries=30, seed=1, **given))
        assert [it["map"] for it in got["rounds"]] == [it.map for it in want[:3]]
        assert got["quality"] == {name: getattr(want[2], name) for name in Quality._fields}
        assert got["precision"][got["first"].index(10)] == pytest.approx(got["quality"]["p10"])
        assert got["bytes"] == 2
        assert 0 < got["distinct"] <= 1
    elif name.startswith("float"):
        want = [it.map for it in stream(chunk, [WOHConfig(bits=8)], chunks=3, queries=30, seed=1)][3:]
        assert got["rounds"][0]["map"] == pytest.approx(want[["float-l2", "float-cosine"].index(name)])
        assert got["bytes"] == 48


def test_precision_is_that_of_the_evaluation(chunk):
    from woh_faiss.evaluation.metrics import cosine

    got = measure(chunk, Cell("float-cosine", None, 0), SETTING)
    held_out, rest = split(chunk, 30, 0)
    X, L = chunk.features, chunk.labels
    for first, precision in zip(got["first"], got["precision"], strict=True):
        want = precision_at(first, X[held_out], X[rest], L[held_out], L[rest], distance=cosine)
        assert precision == pytest.approx(want)


def test_cells_leave_out_what_a_method_cannot_do():
    every = cells(["all"], [16, 64, 96], [0, 1])
    assert {cell.method for cell in every} == set(NAMES) - set(VARIANTS)
    assert {cell.bits for cell in every if cell.method == "cosdish"} == {16, 64, 96}
    assert {cell.bits for cell in every if cell.method == "faiss-rabitq"} == {96}
    assert [cell for cell in every if cell.method == "float-l2"] == [
        Cell("float-l2", None, 0),
        Cell("float-l2", None, 1),
    ]
    varied = cells(["sh"], [16], [0], {"alpha": [3, 30]})[1:]
    assert [cell.hyper for cell in varied] == [{"alpha": 3}, {"alpha": 30}]
    assert varied[0].label == "woh-paper (alpha 3)"
    for bad in (lambda: cells(["sh", "nope"], [16], [0]), lambda: cells(["sh"], [16], [0], {"nope": [1]})):
        with pytest.raises(InputError, match="nope"):
            bad()


def test_data_has_one_name_whatever_holds_it(chunk):
    assert data_digest(chunk) == data_digest(social())
    assert data_digest(chunk) != data_digest(social(seed=1))
    assert data_digest(chunk) != data_digest(replace(chunk, labels=~np.asarray(chunk.labels)))


def test_a_cell_is_measured_once(chunk, tmp_path):
    cell, other = Cell("lsh", 16, 0), Cell("lsh", 16, 1)
    records = Records(tmp_path, data_digest(chunk), SETTING)
    records.add(cell, measure(chunk, cell, SETTING))
    again = Records(tmp_path, data_digest(chunk), SETTING)
    assert cell in again
    assert other not in again
    assert cell not in Records(tmp_path, data_digest(social(seed=1)), SETTING)
    assert cell not in Records(tmp_path, data_digest(chunk), Setting(chunks=4, queries=30, min_count=1))
    assert again.of([other, cell]) == records.of([cell])


def test_a_line_cut_short_is_measured_again_and_another_damage_is_named(chunk, tmp_path):
    cell, other = Cell("lsh", 16, 0), Cell("lsh", 16, 1)
    records = Records(tmp_path, "data", SETTING)
    for each in (cell, other):
        records.add(each, measure(chunk, each, SETTING))
    whole = records.path.read_bytes()
    records.path.write_bytes(whole[:-20])
    cut = Records(tmp_path, "data", SETTING)
    assert cell in cut
    assert other not in cut
    cut.add(other, records.of([other])[0])
    assert Records(tmp_path, "data", SETTING).of([cell, other]) == records.of([cell, other])
    records.path.write_bytes(b"{\n" + whole)
    with pytest.raises(InputError, match=r"results\.jsonl: line 1 is not JSON"):
        Records(tmp_path, "data", SETTING)


def test_a_table_is_bold_where_it_is_best():
    def record(method, bits, seed, value):
        last = {"round": 1, "map": value, "seconds": 0}
        return {"method": method, "hyper": {}, "bits": bits, "seed": seed, "rounds": [last]}

    records = [
        *(record("woh", 16, seed, 0.5 + seed / 10) for seed in (0, 1)),
        *(record("sh", 16, seed, 0.4) for seed in (0, 1)),
        *(record("float-l2", None, seed, 0.45) for seed in (0, 1)),
    ]
    made = table("MAP", records, benchmark.report._map, best=True)
    assert made.head == ["method", "database", "16 bits"]
    texts = [[text for text, _ in row] for row in made.rows]
    assert texts == [
        ["woh", "learned", "0.550 ± 0.050"],
        ["sh", "encoded", "0.400 ± 0.000"],
        ["float-l2", "as it is", "0.450 ± 0.000"],
    ]
    assert [[best for _, best in row].index(True) for row in made.rows[:1]] == [2]
    assert not any(best for row in made.rows[1:] for _, best in row)


@pytest.mark.slow
def test_the_command_measures_what_is_missing_and_reports_all(files, monkeypatch):
    monkeypatch.chdir(files)
    flags = ["--seeds", 2, "--chunks", 3, "--queries", 30, "--min-count", 1, "-o", "rep"]
    first = run("benchmark", "all.npz", "--methods", "woh,osh,float-l2", *flags, "--bits", 16)
    assert first.stderr.count("measured") == 2 * (1 + 1 + 1)
    assert "0 of 6 cells were there" in first.stderr
    flags += ["--bits", "8,16", "--vary", "alpha=3,300"]
    more = run("benchmark", "all.npz", "--methods", "woh,osh,sh,float-l2", *flags)
    assert more.stderr.count("measured") == 2 * (1 + 1 + 2) + 8
    assert "6 of 22 cells were there" in more.stderr
    page = (files / "rep" / "report.html").read_text()
    assert (
        page.count("<svg")
        == len(list((files / "rep").glob("*.svg")))
        == len(list((files / "rep").glob("*.png")))
    )
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:|//)""", page.replace('xlink:href="#', ""))
    assert "woh-index benchmark all.npz" in page
    assert "--vary alpha=3,300" in page
    for name in ("woh", "osh", "sh", "float-l2", "woh-paper (alpha 300)"):
        assert f"<td>{name}</td>" in page
    rows = list(csv.DictReader((files / "rep" / "results.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (files / "rep" / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 22
    assert len(rows) == sum(len(line["rounds"]) for line in lines)
    woh = [
        float(row["map"]) for row in rows if (row["method"], row["bits"], row["round"]) == ("woh", "16", "3")
    ]
    assert woh == [
        line["rounds"][-1]["map"] for line in lines if (line["method"], line["bits"]) == ("woh", 16)
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--methods", "woh,nope"], 1, "unknown methods nope"),
        (["--vary", "alpha"], 2, "not of the form"),
        (
            ["more.npy", "again.npy", "--dataset", "mirflickr25k"],
            1,
            "3 arguments were given for mirflickr25k, expected FOLDER and FEATURES, or a FILE",
        ),
        (["--dataset", "synthetic"], 1, "is 'all.npz', expected a whole number"),
        (["--vary", "nope=1"], 1, "cannot vary nope"),
        (["--queries", "600"], 1, "at most half"),
    ],
)
def test_what_cannot_be_measured_is_refused(files, monkeypatch, arguments, code, said):
    monkeypatch.chdir(files)
    result = run("benchmark", "all.npz", *arguments, "-o", "rep", code=code)
    assert said in result.stderr


def test_the_objective_is_eq_4_written_out():
    rng = np.random.default_rng(0)
    n, m, c, f, r = 20, 6, 5, 4, 8
    phi, Z, P, W = (rng.normal(size=shape) for shape in ((n, m), (n, f), (m, r), (r, c)))
    Y, B = (rng.random((n, c)) < 0.4).astype(float), rng.choice([-1.0, 1.0], (n, r))
    config = WOHConfig(bits=8, preset="paper", alpha=2.0, beta=0.5, theta=0.3, mu=1.5)
    value = np.linalg.norm(Y - B @ W, axis=1).sum() + 2 * (W**2).sum()
    for weight, target in ((0.5, phi), (0.3, Z)):
        M = np.linalg.solve(B.T @ B + 2 / weight * np.eye(r), B.T @ target)
        value += weight * ((target - B @ M) ** 2).sum() + 2 * (M**2).sum()
    value += 1.5 * ((B - phi @ P) ** 2).sum() + 2 * (P**2).sum()
    assert objective(config, phi, csr_array(Y), Z, B, W, P) == pytest.approx(value)


def test_the_objective_falls_with_the_iterations(chunk):
    config = WOHConfig(bits=16, preset="paper", min_count=1, anchors=50)
    values = by_iteration(chunk, config, most=6)
    assert len(values) == 6
    assert values[-1] < values[0]
    assert values == by_iteration(chunk, config, most=6)
    assert measure(chunk, Cell("woh-paper", 8, 0), SETTING)["objective"][-1] > 0
    assert measure(chunk, Cell("woh", 8, 0), SETTING)["objective"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_other_sets_are_measured_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--methods", "woh,lsh", "--bits", 8, "--seeds", 1, "--chunks", 2, "--queries", 40, "-o", "rep"]
    done = run("benchmark", "--dataset", "synthetic", 400, *flags)
    assert done.stderr.count("measured") == 2
    again = run("benchmark", "--dataset", "synthetic", 400, *flags)
    assert "2 of 2 cells were there" in again.stderr
    page = (tmp_path / "rep" / "report.html").read_text()
    assert "Benchmark on synthetic, 400" in page
    assert "--dataset synthetic" in page


def test_the_command_knows_the_sets_that_can_be_loaded():
    (option,) = (it for it in main.get_command(None, "benchmark").params if it.name == "name")
    assert list(option.type.choices) == list(SETS)


def test_a_set_may_bring_its_own_split_and_chunks(chunk):
    own = Setting(min_count=1, size=250, own=60)
    got = measure(chunk, Cell("woh", 8, 1), own)
    assert (got["queries"], got["database"]) == (60, 600)
    config = WOHConfig(bits=8, seed=1, min_count=1)
    want = list(stream(chunk, [config], chunks=[250, 350], queries=np.arange(60), seed=1))
    assert [it["map"] for it in got["rounds"]] == [it.map for it in want[:2]]
    assert [it.database for it in want[:2]] == [250, 600]
    for bad in ([250, 351], [0, 600]):
        with pytest.raises(InputError, match="chunks"):
            stream(chunk, [config], chunks=bad, queries=np.arange(60))
    for bad in ([0, 0], [-1], [660], np.arange(660), []):
        with pytest.raises(InputError, match="each once, and not all"):
            split(chunk, np.array(bad, np.int64), 0)


def test_ablations_leave_out_one_part_each(chunk, monkeypatch):
    # With few anchors some parts make no difference.
    monkeypatch.setitem(WOHConfig.__init__.__kwdefaults__, "anchors", 1000)
    found = paper.ablation([8], [0])
    assert [cell.label for cell in found] == [
        *("woh-paper", "woh-1", "woh-2", "woh-3", "woh-4"),
        *("woh-paper (beta 0)", "woh-paper (mu 0)", "woh-paper (weighted 0)"),
    ]
    scores = {measure(chunk, cell, SETTING)["rounds"][-1]["map"] for cell in found}
    assert len(scores) == len(found)
    assert paper.ablation([8], [0])[1] == Cell("woh-1", 8, 0)
    same = measure(chunk, Cell("woh-paper", 8, 0, {"theta": 0}), SETTING)
    assert measure(chunk, Cell("woh-1", 8, 0), SETTING)["rounds"][-1]["map"] == same["rounds"][-1]["map"]


@pytest.mark.parametrize(
    ("left", "methods", "said"),
    [
        ({"tags"}, "woh,float-l2", "the data has no labels to measure by"),
        ({"tags"}, "float-l2", "the data has no labels to measure by"),
        ({"labels"}, "float-l2,woh", "the data has no tags to "),
    ],
)
@pytest.mark.parametrize("paper", [[], ["--paper"]])
def test_data_without_labels_or_tags_is_refused_before_anything_is_written(files, left, methods, said, paper):
    with np.load(files / "all.npz") as arrays:
        np.savez(files / "some.npz", features=arrays["features"], **{name: arrays[name] for name in left})
    flags = ["--methods", methods, "--queries", 40, "--seeds", 1, *paper, "-o", files / "rep"]
    done = run("benchmark", files / "some.npz", *flags, code=1)
    assert done.stderr.startswith(f"Error: {said}")
    assert done.stderr.count("\n") == 1
    assert not (files / "rep").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method,bits\nSH,8\n", "no column map"),
        ("method,bits,map\nNOPE,8,0.5\n", "line 2: expected a method"),
        ("method,bits,map\nSH,eight,0.5\n", "line 2: expected a method"),
        ("method,bits,map\nSH,8\n", "line 2: expected a method"),
        ("method,bits,map\nSH,8,-1\n", "line 2: expected a method"),
        ('method,bits,map\n"SH\n', "is not CSV"),
        (None, "cannot read"),
        (b"\xff\xfe", "is not CSV"),
    ],
)
def test_published_numbers_that_cannot_be_compared_are_refused(tmp_path, text, said):
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=said):
        published_numbers.of_file(path)


@pytest.mark.slow
def test_the_papers_experiment_on_a_files_own_split(tmp_path, monkeypatch):
    """A .mat as its authors hand it round: train with tags, test without; chunks of 2,000 and the rest."""
    monkeypatch.chdir(tmp_path)
    data = social(n=4300)
    Y = csr_array((np.ones(len(data.tags.indices)), data.tags.indices, data.tags.indptr))
    X, L = data.features.astype(float), data.labels.astype(float)
    savemat(
        "set.mat",
        {"XTrain": X[200:], "YTrain": Y[200:], "LTrain": L[200:], "XTest": X[:200], "LTest": L[:200]},
    )
    (tmp_path / "table1.csv").write_text("method,bits,map\nWOH,16,71.5\nSH,16,0.2\nSH,99,0.2\n")
    flags = ["--paper", "--published", "table1.csv", "--ablation", "--bits", 16, "--seeds", 1, "-o", "rep"]
    done = run("benchmark", "--dataset", "mat", "set.mat", "--methods", "sh,woh-paper", *flags)
    lines = [json.loads(line) for line in (tmp_path / "rep" / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 2 + 4 + 3
    for line in lines:
        assert (line["queries"], line["database"], len(line["rounds"])) == (200, 4100, 2)
        assert (line["size"], line["own"], line["min_count"]) == (2000, 200, 1)
    ours = {line["method"]: line["rounds"][-1]["map"] for line in lines if not line["hyper"]}
    sh, woh = ours["sh"], ours["woh-paper"]
    best = "woh-paper > sh" if woh > sh else "sh > woh-paper"
    tau = 1 if woh > sh else -1
    assert done.stdout.splitlines() == [
        f"sh, 16 bits: MAP {sh:.3f}, published 0.200 ({sh - 0.2:+.3f})",
        f"woh-paper, 16 bits: MAP {woh:.3f}, published 0.715 ({woh - 0.715:+.3f})",
        f"order at 16 bits: published woh-paper > sh; here {best}; Kendall's tau {tau:.2f}",
    ]
    page = (tmp_path / "rep" / "report.html").read_text()
    assert "MAP beside table1.csv" in page
    assert (tmp_path / "rep" / "ablation.svg").is_file()
    save73(tmp_path / "small.mat", {"XTrain": X[40:], "YTrain": Y[40:], "XTest": X[:40], "LTest": L[:40]})
    refused = run("benchmark", "--dataset", "mat", "small.mat", "--learn-from", 50, "-o", "other", code=2)
    assert "--learn-from does not go with a set that brings its own split" in refused.stderr
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "rep" / "sensitivity-beta.svg").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_the_papers_experiment_prepares_other_sets(tmp_path, monkeypatch):
    """Tags under 50 uses go, then items without any; its methods and lengths, unless others are named."""
    monkeypatch.chdir(tmp_path)
    flags = ["--paper", "--methods", "lsh", "--queries", 40, "--seeds", 1, "-o", "rep"]
    run("benchmark", "--dataset", "synthetic", 2500, *flags)
    lines = [json.loads(line) for line in (tmp_path / "rep" / "results.jsonl").read_text().splitlines()]
    assert [line["bits"] for line in lines] == [*paper.BITS]
    whole = prepared(concatenate(list(synthetic(2500))), min_count=50)
    assert {line["database"] for line in lines} == {len(whole) - 40}
    assert set(paper.SYSTEMS.values()) <= set(NAMES)
