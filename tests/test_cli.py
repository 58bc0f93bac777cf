"""The command line: what it prints, how it fails."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import WORDS, full_length_only, save_chunk, tagged

from woh_faiss import WOHIndex, __version__
from woh_faiss.errors import LockedError
from woh_faiss_cli.main import COMMANDS, main
from woh_faiss_cli.options import progress

BUILD = ["--bits", "16", "--anchors", "20"]


def run(*arguments, code=0, **options):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], **options)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def built_in(folder):
    """`folder`, with two chunks, an index of the first, and features of four items and of three queries."""
    for seed in range(2):
        save_chunk(folder / f"chunk-{seed}.npz", seed)
    np.savez(folder / "rest.npz", features=tagged(5, n=4)[0])
    np.savez(folder / "queries.npz", features=tagged(8, n=3)[0])
    with contextlib.chdir(folder):
        run("build", "chunk-0.npz", *BUILD)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    with contextlib.chdir(folder):
        for seed in range(3):
            save_chunk(f"chunk-{seed}.npz", seed, keys=[f"{seed}/photo {i}" for i in range(40)])
        np.savez("rest.npz", features=tagged(5, n=4)[0])
        np.savez("queries.npz", features=tagged(8, n=3)[0], keys=["q/0", "q/1", "q/2"])
        run("build", "chunk-0.npz", *BUILD)
    return folder


def test_the_whole_job(here):
    updated = run("update", "chunk-1.npz", "chunk-2.npz")
    assert updated.stdout == ""
    assert re.search(
        r"round 3: 40 items appended, 40 learned from in .* s; 6 tags known; 120 items", updated.stderr
    )
    assert "round 4: 4 items appended; 124 items in all" in run("add", "rest.npz").stderr
    head, *rows = [line.split("\t") for line in run("query", "queries.npz", "-k", "2").stdout.splitlines()]
    assert head == ["query", "rank", "id", "key", "score", "tags"]
    assert [row[0] for row in rows] == ["q/0", "q/0", "q/1", "q/1", "q/2", "q/2"]
    lines = [
        json.loads(line) for line in run("query", "queries.npz", "-k", "2", "--json").stdout.splitlines()
    ]
    with WOHIndex.open("index.woh") as index:
        D, I = index.search(tagged(8, n=3)[0], 2)
        items = index.items(I.ravel())
    assert [line["id"] for line in lines] == I.ravel().tolist() == [int(row[2]) for row in rows]
    assert [line["score"] for line in lines] == D.ravel().tolist()
    assert [line["query"] for line in lines] == ["q/0", "q/0", "q/1", "q/1", "q/2", "q/2"]
    assert [line["rank"] for line in lines] == [1, 2] * 3
    assert [line["key"] for line in lines] == [item.key for item in items]
    assert [line["tags"] for line in lines] == [item.tags for item in items]
    assert list(lines[0]) == ["query", "rank", "id", "key", "score", "tags"]


def test_query_by_id_and_by_key_give_the_same_neighbours(here):
    by_id = [json.loads(line) for line in run("query", "--id", 7, "-k", 3, "--json").stdout.splitlines()]
    by_key = [
        json.loads(line) for line in run("query", "--key", "0/photo 7", "-k", 3, "--json").stdout.splitlines()
    ]
    assert [{**line, "query": "0/photo 7"} for line in by_id] == by_key
    assert len(by_id) == 3
    assert 7 not in {line["id"] for line in by_id}


@pytest.mark.parametrize("by", ["both", "kind", "instance", "hamming"])
@pytest.mark.parametrize("expand", [0, 3])
def test_items_are_ordered_by_what_is_asked(here, by, expand):
    asked = ["query", "queries.npz", "-k", 3, "--by", by, "--expand", expand]
    lines = [json.loads(line) for line in run(*asked, "--json").stdout.splitlines()]
    with WOHIndex.open("index.woh") as index:
        D, I = index.search(tagged(8, n=3)[0], 3, by=by, expand=expand)
    measure, other = ("distance", "score") if by == "hamming" else ("score", "distance")
    assert [line["id"] for line in lines] == I.ravel().tolist()
    assert [line[measure] for line in lines] == D.ravel().tolist()
    assert other not in lines[0]
    assert run(*asked).stdout.split("\t")[4] == measure


def test_explained_terms_add_up(here):
    lines = [
        json.loads(line)
        for line in run("query", "queries.npz", "-k", 5, "--explain", "--json").stdout.splitlines()
    ]
    for line in lines:
        assert line["kind"] + line["instance"] == pytest.approx(line["score"], abs=2e-4)
        assert 0 <= line["instance"] <= 1
    head, row = (run("query", "--id", 3, "-k", 1, "--explain").stdout.splitlines())[:2]
    assert head.split("\t")[6:] == ["kind", "instance", "predicted", "trust"]
    assert row.count("\t") == 9


def test_a_folder_is_a_chunk_too(here):
    X, tags = tagged(6)
    (here / "my folder").mkdir()
    for name, array in {
        "features": X,
        "tags": [given[0] for given in tags],
        "ids": np.arange(40) + 900,
    }.items():
        np.save(f"my folder/{name}.npy", array)
    assert "round 2: 40 items appended, 40 learned from" in run("update", "my folder").stderr
    assert json.loads(run("query", "--id", 939, "-k", 1, "--json").stdout)["query"] == 939


@pytest.mark.parametrize("work", [range(3), range(1)])
def test_a_bar_on_a_terminal_when_there_is_more_than_one(monkeypatch, work):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress(iter(work), len(work))) == list(work)
    assert ("chunks" in terminal.getvalue()) is (len(work) > 1)


def test_without_word_vectors_or_with_them(here):
    (here / "words.txt").write_text("".join(f"{word} {i} 1 -{i}\n" for i, word in enumerate(WORDS)))
    done = run("build", "chunk-0.npz", "--index", "w.woh", *BUILD, "--word-vectors", "words.txt")
    assert "6 tags known, 6 of 6 new ones with a word vector" in done.stderr
    (here / "words.txt").unlink()
    assert "6 tags known; 80 items" in run("update", "chunk-1.npz", "--index", "w.woh").stderr


def test_a_locked_index_is_an_error_too(here, monkeypatch):
    def extend(*_, **__):
        raise LockedError("index.woh is being written by another process")

    monkeypatch.setattr(WOHIndex, "extend", extend)
    assert run("update", "chunk-1.npz", code=1).stderr.startswith("Error: index.woh is being written")


def test_more_neighbours_than_items_are_noted_and_left_out(here):
    result = run("query", "queries.npz", "-k", 50, "--json")
    assert len(result.stdout.splitlines()) == 3 * 40
    assert result.stderr == "note: index.woh holds only 40 items\n"


@pytest.mark.usefixtures("few_anchors")
def test_an_empty_index_is_no_error(here):
    WOHIndex.create(here / "empty.woh").close()
    result = run("query", "queries.npz", "--index", "empty.woh", "--json")
    assert result.stdout == ""
    assert result.stderr == "note: empty.woh is empty; 'woh-index update' appends items\n"
    assert json.loads(run("info", "--index", "empty.woh", "--json").stdout)["ntotal"] == 0
    assert re.search(r"ntotal\s+0\b", run("info", "--index", "empty.woh").stdout)
    refused = run("add", "rest.npz", "--index", "empty.woh", code=1).stderr
    assert refused.startswith("Error: ")
    assert "has learned nothing yet" in refused
    assert "round 1: 40 items" in run("update", "chunk-0.npz", "--index", "empty.woh").stderr


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
    for text in ("ntotal", "model_digest", "codes.faiss", "6 learned from, 6 seen"):
        assert text in table


@pytest.mark.parametrize("name", ["other.woh", "mit leer.woh", "索引.woh"])
def test_the_index_is_where_index_or_the_environment_says(here, name):
    run("build", "chunk-1.npz", *BUILD, "--index", name)
    assert json.loads(run("info", "--json", env={"WOH_INDEX": name}).stdout)["path"] == str(here / name)
    given = run("info", "--json", "--index", "index.woh", env={"WOH_INDEX": name})
    assert json.loads(given.stdout)["path"] == str(here / "index.woh")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "none.npz"], "none.npz does not exist"),
        (["query", "narrow.npz"], "features have 3 columns, the model was fitted with 7"),
        (["query", "broken.npz"], "broken.npz"),
        (["query", "--id", "99"], "id 99 is not in"),
        (["query", "--id", "-1"], "id -1 is not in"),
        (["query", "--id", str(2**63)], f"id {2**63} is not in"),
        (["query", "--id", str(2**80)], "ids have dtype object, expected integers"),
        (["query", "--key", "x"], "has the key 'x'"),
        (["query", "queries.npz", "--index", "none.woh"], "no index at"),
        (["info", "--index", "rest.npz"], "is a file, expected an index folder"),
        (["build", "chunk-1.npz"], "index.woh exists already; 'woh-index update' extends it"),
        (
            ["build", "chunk-1.npz", "--index", "b.woh", "--bits", "12"],
            "bits is 12, expected a multiple of 8",
        ),
        (["build", "rest.npz", "--index", "b.woh"], "has no tags to learn from"),
        (["build", "chunk-1.npz", "rest.npz", "--index", "b.woh"], "has no tags to learn from"),
        (["build", "chunk-1.npz", "--index", "rest.npz/b.woh"], "Not a directory"),
        (["update", "rest.npz"], "has no tags to learn from"),
        (["add", "rest.npz", "next.npz"], "next.npz: id 40 is what an item of rest.npz"),
        (
            ["build", "chunk-1.npz", "--index", "b.woh", "--word-vectors", "broken.npz"],
            "word vectors broken.npz",
        ),
        (["update", "chunk-0.npz", "--no-skip"], "key '0/photo 0' is in the index already"),
        (["update", "chunk-1.npz", "nan.npz"], "nan.npz: features of row 1 are not finite"),
        (["update", "objects.npz"], "key 'tags' is a pickled object array"),
        (["add", "nan.npz"], "features of row 1 are not finite"),
        (["evaluate", "chunk-0.npz"], "30 items are left beside 10 queries"),
    ],
)
def test_what_a_person_can_mend_is_one_line(here, arguments, message):
    np.savez("narrow.npz", features=np.ones((1, 3)))
    np.savez("nan.npz", features=np.array([[1.0] * 7, [np.nan] * 7]), tags=["sea", "hill"])
    np.savez("next.npz", features=np.ones((1, 7)), ids=[40])
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
        ["query", "--tags", "sea", "--by", "kind"],
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


@pytest.mark.parametrize("command", [main.get_command(None, name) for name in COMMANDS], ids=COMMANDS)
def test_every_command_has_help_and_an_example(command):
    assert command.help
    assert "Example:" in command.help


def test_version():
    assert run("--version").stdout == f"woh-index {__version__}\n"


def process(*arguments, **more):
    """A real process, its stderr, and (unless `stdout` says otherwise) its stdout."""
    command = [sys.executable, "-m", "woh_faiss_cli", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 600, "check": False, **more}
    return subprocess.run(command, **options)


def test_as_a_real_process(here):
    done = process("query", "queries.npz", "-k", 2, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == run("query", "queries.npz", "-k", 2, "--json").stdout


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_a_reader_that_has_seen_enough(here, extra):
    """What `| head -n 1` does; 100 x 40 lines do not fit in the pipe."""
    np.save("many.npy", tagged(8, n=100)[0])
    command = [sys.executable, "-m", "woh_faiss_cli", "query", "many.npy", "-k", "40", *extra]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "queries.npz"],
        ["query", "queries.npz", "--json"],
        ["info"],
        ["info", "--json"],
        *full_length_only(["evaluate", "labelled.npz", "--bits", "8", "--chunks", "1"]),
    ],
    ids=" ".join,
)
def test_nobody_reads_or_the_disk_is_full(here, arguments):
    X, tags = tagged(0)
    np.savez("labelled.npz", features=X, tags=[given[0] for given in tags], labels=np.arange(40) % 2)
    reader, writer = os.pipe()
    os.close(reader)
    done = process(*arguments, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    with Path("/dev/full").open("wb") as full:
        done = process(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: cannot write the results: No space left on device")
    assert done.stderr.count(b"\n") == 1


def test_an_error_of_the_system_elsewhere_keeps_its_traceback(here, monkeypatch):
    def search(*_, **__):
        raise PermissionError(13, "Permission denied", "secret")

    monkeypatch.setattr(WOHIndex, "search", search)
    with pytest.raises(PermissionError):
        CliRunner().invoke(main, ["query", "queries.npz"], catch_exceptions=False)


def test_a_shell_may_close_stdout(here):
    script = "exec >&-; exec " + " ".join(map(shlex.quote, [sys.executable, "-m", "woh_faiss_cli", "info"]))
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


HARD_KEYS = ["[bold]索引[/x] :smile:", "ключ 2\u20033", "é", "plain"]


def test_keys_are_printed_as_they_are_or_escaped(here):
    """No mark-up, no emoji codes; where stdout has another encoding, an escape instead of a traceback."""
    X, _ = tagged(5, n=4)
    np.savez("hard.npz", features=X, keys=HARD_KEYS)
    run("add", "hard.npz")
    assert all(key in run("query", "hard.npz", "-k", 44).stdout for key in HARD_KEYS)
    for encoding in ("utf-8", "latin-1", *full_length_only("ascii")):
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        done = process("query", "hard.npz", "-k", 44, "--json", env=env)
        assert done.stderr == b""
        lines = [json.loads(line) for line in done.stdout.decode(encoding).splitlines()]
        assert {line["query"] for line in lines} == set(HARD_KEYS) < {line["key"] for line in lines}
        done = process("query", "--key", HARD_KEYS[0], env=env)
        assert (done.returncode, done.stderr) == (0, b"")
        assert ("索引" if encoding == "utf-8" else "\\u7d22\\u5f15") in done.stdout.decode(encoding)


def test_undecodable_names_are_named(here):
    for arguments in (
        ["query", b"caf\xe9.npz"],
        ["info", "--index", b"caf\xe9"],
        ["query", "--key", b"\xff"],
    ):
        command = [sys.executable, "-m", "woh_faiss_cli", *arguments]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 1
        assert re.fullmatch(rb"Error: [^\n]*\\udc[ef][^\n]*\n", done.stderr)


@pytest.mark.parametrize("k", [10**6 + 1, 10**12, 10**25])
def test_any_k_needs_the_memory_of_what_is_there(here, k):
    for extra in ([], ["--by", "hamming"]):
        result = run("query", "queries.npz", "-k", k, "--json", *extra)
        assert len(result.stdout.splitlines()) == 3 * 40
        assert result.stderr == "note: index.woh holds only 40 items\n"
    assert len(run("query", "--id", 3, "-k", k, "--json").stdout.splitlines()) == 39


def test_query_by_tags_and_explain(here):
    lines = [
        json.loads(line) for line in run("query", "--tags", "sea", "-k", 3, "--json").stdout.splitlines()
    ]
    assert [line["query"] for line in lines] == ["sea"] * 3
    assert sorted((line["score"] for line in lines), reverse=True) == [line["score"] for line in lines]
    both = run("query", "queries.npz", "--tags", "sea;hill", "-k", 2, "--json", "--explain").stdout
    lines = [json.loads(line) for line in both.splitlines()]
    assert [line["query"] for line in lines] == ["q/0", "q/0", "q/1", "q/1", "q/2", "q/2"]
    assert all(len(line["predicted"]) == 5 for line in lines)
    assert "predicted" in run("query", "--id", 3, "--explain").stdout
    assert "nothing is known of the tags 'unheard'" in run("query", "--tags", "unheard", code=1).stderr
    run("query", "--tags", "sea", "--id", 3, code=2)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals")
def test_info_fits_into_80_columns_and_has_no_padding_in_a_pipe(here):
    command = [sys.executable, "-m", "woh_faiss_cli", "info"]
    ours, theirs = os.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    subprocess.run(command, stdout=theirs, check=True, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in shown.decode()
    piped = run("info").stdout
    assert "  " not in piped
    rows = [line.split("\t") for line in piped.splitlines()]
    assert ["ntotal", "40"] in rows
    digest = next(row[1] for row in rows if row[0] == "model_digest")
    assert len(digest) == 64
    heads = rows.index(["round", "kind", "items", "learned", "ntotal", "seconds"])
    assert rows[heads + 1][:5] == ["1", "trained", "40", "40", "40"]
