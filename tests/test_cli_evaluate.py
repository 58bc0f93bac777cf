from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from click.testing import CliRunner

from woh_faiss.evaluation.quality import Quality
from woh_faiss.evaluation.streaming import Result, stream
from woh_faiss.inputs.chunk import concatenate, read_chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss_cli.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("few_anchors")


def invoke(*arguments):
    return CliRunner().invoke(evaluate, [str(a) for a in arguments], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """80 items in two files: three classes, each with its own direction and tag."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for number in range(2):
        classes = rng.integers(0, 3, 40)
        np.savez(
            folder / f"{number}.npz",
            features=rng.normal(size=(40, 6)) + 3 * np.eye(6)[classes],
            tags=np.array(["sea", "hill", "city"])[classes],
            labels=np.eye(3, dtype=np.uint8)[classes],
        )
    return [folder / "0.npz", folder / "1.npz"]


def test_json_lines_are_the_library_s_results(files):
    result = invoke(*files, "--json", "--bits", "8,16,8", "--chunks", 3, "--queries", 20, "--seed", 4)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    data = concatenate([read_chunk(path) for path in files])
    configs = [WOHConfig(bits=bits, seed=4) for bits in (8, 16)]
    how = {"instance_bits": 64, "by": "both", "expand": 3}
    expected = list(stream(data, configs, chunks=3, queries=20, seed=4, **how))
    assert len(lines) == len(expected) == 2 * 3 + 2
    for line, r in zip(lines, expected, strict=True):
        assert list(line) == [field.name for field in fields(Result)]
        assert (line["method"], line["preset"], line["bits"], line["round"]) == (
            r.method,
            r.preset,
            r.bits,
            r.round,
        )
        for name in Quality._fields:
            assert line[name] == pytest.approx(getattr(r, name), abs=1e-6)
        assert line["instance_bits"] == (64 if r.bits else None)
        assert (line["queries"], line["database"]) == (20, r.database)
    assert lines[-1]["preset"] is lines[-1]["bits"] is None


@pytest.mark.parametrize(("chunks", "columns"), [(3, [1, 2, 3]), (6, [1, 3, 6])])
def test_table(files, chunks, columns, tmp_path):
    plot = tmp_path / "map.png"
    result = invoke(*files, "--bits", 8, "--chunks", chunks, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert plot.stat().st_size > 1000
    text = " ".join(result.stdout.split())
    assert [t for t in range(1, 9) if f"round {t}" in text] == columns
    assert "20 queries against up to 60 items" in text
    assert "…" not in text  # nothing is cut off
    for method in ("woh", "float-l2", "float-cosine"):
        assert text.count(method) == 2
    assert "8 + 64" in text
    for column in ("P@10", "self@1", "self@10", "float recall"):
        assert column in text


def test_by_hamming_there_are_learned_bits_alone(files):
    result = invoke(*files, "--json", "--bits", "16", "--chunks", 2, "--by", "hamming")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    data = concatenate([read_chunk(path) for path in files])
    expected = list(stream(data, [WOHConfig(bits=16)], chunks=2))
    assert [line["map"] for line in lines] == pytest.approx([r.map for r in expected], abs=1e-6)
    assert lines[0]["instance_bits"] == 0


def test_instance_bits_need_no_tags(files, tmp_path):
    chunk = read_chunk(files[0])
    np.savez(tmp_path / "bare.npz", features=chunk.features, labels=chunk.labels)
    result = invoke(tmp_path / "bare.npz", "--json", "--bits", "0", "--instance-bits", 32, "--chunks", 2)
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[1])
    assert (line["bits"], line["instance_bits"], line["preset"]) == (0, 32, None)
    assert line["self10"] > 0.9
    assert invoke(tmp_path / "bare.npz", "--bits", "0", "--by", "hamming").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--bits", "8,x"], 2, "not a list of whole numbers"),
        (["--bits", "12"], 1, "multiple of 8"),
        (["--queries", "41"], 1, "at most half of the 80 items"),
        (["--chunks", "0"], 2, "--chunks"),
        (["--plot", "map.xyz"], 1, "expected a name ending in"),
        (["--word-vectors", "none.txt"], 1, "none.txt"),
    ],
)
def test_mistakes_are_one_line(files, arguments, code, message):
    result = invoke(*files, *arguments)
    assert result.exit_code == code, result.output
    assert message in result.output
    if code == 1:
        assert result.output.startswith("Error: ")
        assert result.output.count("\n") == 1


def test_data_with_neither_labels_nor_tags_say_so(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.zeros((9, 2)))
    result = invoke(tmp_path / "a.npz", "--bits", "0")
    assert result.exit_code == 1
    assert "neither labels nor tags" in result.output
