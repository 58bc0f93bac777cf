"""The command line: what it prints, how it fails."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import save_chunk, tagged

from woh_faiss import WOHIndex, __version__
from woh_faiss_cli.main import main

BUILD = ["--bits", "16", "--anchors", "20"]


def run(*arguments, code=0, **options):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], **options)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own with chunks in it, and an index that has learned the first."""
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        save_chunk(f"chunk-{seed}.npz", seed, keys=[f"{seed}/photo {i}" for i in range(40)])
    np.savez("rest.npz", features=tagged(5, n=4)[0])
    np.savez("queries.npz", features=tagged(8, n=3)[0], keys=["q/0", "q/1", "q/2"])
    run("build", "chunk-0.npz", *BUILD)
    return tmp_path


def test_the_whole_job(here):
    updated = run("update", "chunk-1.npz", "chunk-2.npz")
    assert updated.stdout == ""
    assert re.search(
        r"round 3: 40 items appended, 40 learned from in .* s; 6 tags known; 120 items", updated.stderr
    )
    assert "round 4: 4 items appended; 124 items in all" in run("add", "rest.npz").stderr
    table = run("query", "queries.npz", "-k", "2").stdout
    assert table.count("query q/") == 3
    assert "distance" in table
    lines = [
        json.loads(line) for line in run("query", "queries.npz", "-k", "2", "--json").stdout.splitlines()
    ]
    with WOHIndex.open("index.woh") as index:
        D, I = index.search(tagged(8, n=3)[0], 2)
        items = index.items(I.ravel())
    assert [line["id"] for line in lines] == I.ravel().tolist()
    assert [line["distance"] for line in lines] == D.ravel().tolist()
    assert [line["query"] for line in lines] == ["q/0", "q/0", "q/1", "q/1", "q/2", "q/2"]
    assert [line["rank"] for line in lines] == [1, 2] * 3
    assert [line["key"] for line in lines] == [item.key for item in items]
    assert [line["tags"] for line in lines] == [item.tags for item in items]
    assert list(lines[0]) == ["query", "rank", "id", "key", "distance", "tags"]


def test_query_by_id_and_by_key_give_the_same_neighbours(here):
    by_id = [json.loads(line) for line in run("query", "--id", 7, "-k", 3, "--json").stdout.splitlines()]
    by_key = [
        json.loads(line) for line in run("query", "--key", "0/photo 7", "-k", 3, "--json").stdout.splitlines()
    ]
    assert [{**line, "query": "0/photo 7"} for line in by_id] == by_key
    assert len(by_id) == 3
    assert 7 not in {line["id"] for line in by_id}


def test_rerank_prints_scores(here):
    lines = [
        json.loads(line)
        for line in run("query", "queries.npz", "-k", 3, "--rerank", 40, "--json").stdout.splitlines()
    ]
    scores = [line["score"] for line in lines[:3]]
    assert scores == sorted(scores, reverse=True)
    assert "distance" not in lines[0]
    assert "score" in run("query", "queries.npz", "--rerank", 40).stdout


def test_more_neighbours_than_items_are_noted_and_left_out(here):
    result = run("query", "queries.npz", "-k", 50, "--json")
    assert len(result.stdout.splitlines()) == 3 * 40
    assert result.stderr == "note: index.woh holds only 40 items\n"


def test_an_empty_index_is_no_error(here):
    WOHIndex.create(here / "empty.woh").close()
    result = run("query", "queries.npz", "--index", "empty.woh", "--json")
    assert result.stdout == ""
    assert result.stderr == "note: empty.woh is empty; 'woh-index update' appends items\n"
    assert "0" in run("info", "--index", "empty.woh").stdout


def test_features_come_from_npz_npy_or_a_folder(here):
    features = tagged(8, n=3)[0]
    np.save("queries.npy", features)
    (here / "folder").mkdir()
    np.save("folder/features.npy", features)
    expected = [json.loads(line)["id"] for line in run("query", "queries.npz", "--json").stdout.splitlines()]
    for path in ("queries.npy", "folder"):
        lines = [json.loads(line) for line in run("query", path, "--json").stdout.splitlines()]
        assert [line["id"] for line in lines] == expected
        assert lines[-1]["query"] == 2


def test_info(here):
    facts = json.loads(run("info", "--json").stdout)
    assert facts["ntotal"] == 40
    assert facts["history"][0]["trained"] == 40
    table = run("info", "--tags", 1).stdout
    for text in ("ntotal", "fingerprint", "codes.faiss", "6 learned from, 6 seen"):
        assert text in table


@pytest.mark.parametrize("name", ["other.woh", "mit leer.woh", "索引.woh"])
def test_the_index_is_where_index_or_the_environment_says(here, name):
    run("build", "chunk-1.npz", *BUILD, "--index", name)
    assert json.loads(run("info", "--json", env={"WOH_INDEX": name}).stdout)["path"] == str(here / name)
    assert (
        json.loads(run("info", "--json", "--index", "index.woh", env={"WOH_INDEX": name}).stdout)["path"]
        != name
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "none.npz"], "none.npz does not exist"),
        (["query", "narrow.npz"], "features have 3 columns, the model was fitted with 7"),
        (["query", "broken.npz"], "broken.npz"),
        (["query", "--id", "99"], "id 99 is not in"),
        (["query", "--key", "x"], "has the key 'x'"),
        (["query", "queries.npz", "-k", "5", "--rerank", "2"], "rerank is 2, expected at least k = 5"),
        (["query", "queries.npz", "--index", "none.woh"], "no index at"),
        (["info", "--index", "rest.npz"], "is a file, expected an index folder"),
        (["build", "chunk-1.npz"], "index.woh exists already; 'woh-index update' extends it"),
        (
            ["build", "chunk-1.npz", "--index", "b.woh", "--bits", "12"],
            "bits is 12, expected a multiple of 8",
        ),
        (["build", "rest.npz", "--index", "b.woh"], "has no tags to learn from"),
        (
            ["build", "chunk-1.npz", "--index", "b.woh", "--word-vectors", "broken.npz"],
            "word vectors broken.npz",
        ),
        (["update", "chunk-0.npz"], "key '0/photo 0' is in the index already"),
        (["update", "chunk-1.npz", "nan.npz"], "nan.npz: features of row 1 are not finite"),
        (["update", "objects.npz"], "key 'tags' is a pickled object array"),
        (["add", "nan.npz"], "features of row 1 are not finite"),
        (["evaluate", "chunk-0.npz"], "labels"),
    ],
)
def test_what_a_person_can_mend_is_one_line(here, arguments, message):
    np.savez("narrow.npz", features=np.ones((1, 3)))
    np.savez("nan.npz", features=np.array([[1.0] * 7, [np.nan] * 7]), tags=["sea", "hill"])
    np.savez("objects.npz", features=np.ones((2, 7)), tags=np.array([["a"], ["b", "c"]], dtype=object))
    (here / "broken.npz").write_bytes(b"PK\x03\x04 and then nothing")
    result = run(*arguments, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (here / "b.woh").exists()
    assert json.loads(run("info", "--json").stdout)["rounds"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["query"],
        ["query", "queries.npz", "--id", "3"],
        ["query", "--id", "3", "--rerank", "9"],
        ["query", "queries.npz", "-k", "0"],
        ["update"],
        ["build", "chunk-1.npz", "--preset", "best"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_2(here, arguments):
    assert "Usage: " in run(*arguments, code=2).stderr


def test_a_bug_keeps_its_traceback(here, monkeypatch):
    monkeypatch.setattr(WOHIndex, "search", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(main, ["query", "queries.npz"], catch_exceptions=False)


@pytest.mark.parametrize("command", main.commands.values(), ids=main.commands)
def test_every_command_has_help_and_an_example(command):
    assert command.help
    assert "Example:" in command.help


def test_version():
    assert run("--version").stdout == f"woh-index {__version__}\n"


def test_as_a_real_process_and_into_a_closed_pipe(here):
    command = [sys.executable, "-m", "woh_faiss_cli", "query", "queries.npz", "-k", "40", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert json.loads(process.stdout.readline())["rank"] == 1
    process.stdout.close()  # the reader has seen enough
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
