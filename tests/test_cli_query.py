"""woh-index query: shapes of search, in batches, against the library and a naive scan."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import save_chunk, tagged
from test_cli import BUILD, run

from woh_faiss import WOHIndex

N_QUERIES = 150  # more than are searched at once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An index of 120 items with keys, and queries."""
    folder = tmp_path_factory.mktemp("query")
    for seed in range(3):
        save_chunk(folder / f"chunk-{seed}.npz", seed, keys=[f"{seed}/photo {i}" for i in range(40)])
    np.savez(folder / "queries.npz", features=tagged(8, n=N_QUERIES)[0])
    index = ["--index", folder / "index.woh"]
    run("build", folder / "chunk-0.npz", *BUILD, *index)
    run("update", folder / "chunk-1.npz", folder / "chunk-2.npz", *index)
    run("remove", 7, 50, *index)
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def distances(folder):
    """Of each query to each item that is left, with the ids, by counting bits."""
    with WOHIndex.open(folder / "index.woh") as index:
        ids = [i for i in range(120) if i not in (7, 50)]
        codes = np.array([index.reconstruct(i) for i in ids])
        xq = index.encode(tagged(8, n=N_QUERIES)[0])
    return np.array(ids), np.unpackbits(xq[:, None] ^ codes[None], axis=2).sum(axis=2, dtype=int)


def lines(*arguments, **options):
    return [json.loads(line) for line in run("query", *arguments, "--json", **options).stdout.splitlines()]


def ids_file(name, ids):
    Path(name).write_text("".join(f"{i}\n" for i in ids))
    return name


@pytest.mark.parametrize("radius", [0, 3, 16])
def test_a_radius_is_inclusive(here, distances, radius):
    ids, D = distances
    got = lines("queries.npz", "--radius", radius)
    want = []
    for query, row in enumerate(D):
        order = [i for i in np.argsort(row, kind="stable") if row[i] <= radius]
        want += [(query, rank, ids[i], row[i]) for rank, i in enumerate(order, start=1)]
    assert [(line["query"], line["rank"], line["id"], line["distance"]) for line in got] == want


def test_many_queries_are_answered_as_one_by_one(here, distances):
    ids, D = distances
    asked = ["queries.npz", "-k", 4, "--by", "hamming"]
    got = np.array([line["id"] for line in lines(*asked)]).reshape(N_QUERIES, 4)
    np.testing.assert_array_equal(got, ids[np.argsort(D, axis=1, kind="stable")[:, :4]])
    piped = [line.split("\t") for line in run("query", *asked).stdout.splitlines()[1:]]
    assert [int(cells[2]) for cells in piped] == got.ravel().tolist()


def test_allow_and_deny_lists(here, distances):
    ids, D = distances
    allow, deny = list(range(0, 110, 2)), [4, 8, 999]
    kept = np.isin(ids, allow) & ~np.isin(ids, deny)
    flags = ["--allow", ids_file("allow.txt", allow), "--deny", ids_file("deny.txt", deny)]
    for more in ([], ["--by", "kind"], ["--by", "hamming"]):
        got = lines("queries.npz", "-k", 60, *flags, *more)
        assert {line["id"] for line in got} == set(ids[kept].tolist())
        assert len(got) == N_QUERIES * kept.sum()
    asked = lines("queries.npz", "-k", 3, "--by", "hamming", *flags)
    got = np.array([line["id"] for line in asked]).reshape(N_QUERIES, 3)
    np.testing.assert_array_equal(got, ids[kept][np.argsort(D[:, kept], axis=1, kind="stable")[:, :3]])
    within = lines("queries.npz", "--radius", 5, *flags)
    assert len(within) == (D[:, kept] <= 5).sum()
    for by in (["--id", 3], ["--key", "1/photo 3"], ["--tags", "sea"]):
        found = [line["id"] for line in lines(*by, "-k", 200, *flags)]
        assert set(found) == set(ids[kept].tolist())


def test_ids_that_no_item_has_allow_nothing(here):
    assert lines("queries.npz", "--allow", ids_file("none.txt", [7, 50, 10**12])) == []
    assert lines("queries.npz", "--radius", 99, "--allow", ids_file("none.txt", [])) == []
    assert len(lines("--id", 3, "-k", 500, "--deny", "none.txt")) == 117


def test_a_radius_around_an_item_leaves_the_item_out(here):
    found = lines("--id", 3, "--radius", 80)
    assert sorted(line["id"] for line in found) == [i for i in range(120) if i not in (3, 7, 50)]
    assert {line["query"] for line in found} == {3}
    assert {line["query"] for line in lines("--key", "0/photo 3", "--radius", 80)} == {"0/photo 3"}


def test_a_page_of_a_radius(here):
    run("query", "queries.npz", "--radius", "2", "--html", "out.html")
    text = Path("out.html").read_text(encoding="utf-8")
    assert "all at most 2 bits away of 118 items" in text
    assert text.count("<section") == N_QUERIES


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--radius", "3", "-k", "5"], 2, "give -k or --radius"),
        (["--radius", "3", "--by", "kind"], 2, "--radius is in bits"),
        (["--radius", "3", "--tags", "sea"], 2, "--radius is in bits"),
        (["--radius", "-1"], 2, "-1 is not in the range"),
        (["--radius", "2.5"], 2, "not a valid integer"),
        (["--allow", "missing.txt"], 2, "No such file"),
        (["--deny", "words.txt"], 1, "words.txt: line 2 is 'photo', expected an id"),
        (["--deny", "large.txt"], 1, "line 1 is '1180591620717411303424', expected an id"),
    ],
)
def test_what_does_not_go_together_is_refused(here, arguments, code, said):
    Path("words.txt").write_text("3\nphoto\n")
    Path("large.txt").write_text(f"{2**70}\n")
    result = run("query", "queries.npz", *arguments, code=code)
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_long_batch(folder):
    """A real process is interrupted after its first answers; what it had said stays said."""
    with WOHIndex.open(folder / "index.woh") as index:
        many = np.repeat(tagged(8, n=1000)[0], 200, axis=0)
        assert len(index.search(many[:2], 1)[1]) == 2
    np.save(folder / "many.npy", many)
    command = [sys.executable, "-m", "woh_faiss_cli", "query", str(folder / "many.npy"), "--json"]
    with subprocess.Popen(
        [*command, "--index", str(folder / "index.woh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=600)
    assert json.loads(first)["query"] == 0
    assert rest.count("\n") < len(many) * 10 - 1
    assert process.returncode == 130
    assert said.endswith("stopped\n")
    assert "Traceback" not in said


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals")
def test_a_terminal_gets_tables(here, tmp_path):
    np.savez(tmp_path / "q.npz", features=tagged(1, n=2)[0])
    command = [sys.executable, "-m", "woh_faiss_cli", "query", tmp_path / "q.npz", "-k", 2]
    ours, theirs = os.openpty()
    done = subprocess.run([*map(str, command)], stdout=theirs, stderr=subprocess.PIPE, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stderr == b""
    assert re.findall(r"query \d", shown) == ["query 0", "query 1"]
    assert shown.count("\u2500" * 10) >= 2
    piped = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout
    cells = [line.split("\t") for line in piped.splitlines()[1:]]
    assert len(cells) == 4
    assert all(re.search(rf"\b{row[2]} .* {row[4]}\b", shown) for row in cells)


def test_many_ids_and_keys_are_each_asked(here):
    one = [run("query", "--id", id_, "-k", 3, "--json").stdout for id_ in (3, 8)]
    by_key = run("query", "--key", "2/photo 5", "-k", 3, "--json").stdout
    many = run("query", "--id", 3, "--id", 8, "--key", "2/photo 5", "-k", 3, "--json").stdout
    assert many == "".join(one) + by_key
    refused = run("query", "--id", 3, "--id", 7, code=1)  # which was removed
    assert refused.stdout == ""
    assert "id 7 is not in" in refused.stderr


def test_a_key_that_is_not_there_brings_the_likest(here):
    for given, likest in {"0/photo-12": "0/photo 12", "x/photo 30": "0/photo 30"}.items():
        message = run("query", "--key", given, code=1).stderr
        assert f"has the key '{given}'; did you mean " in message
        assert repr(likest) in message
        assert message.endswith("'woh-index items' lists the keys there are\n")
    message = run("query", "--key", "%_\\", code=1).stderr
    assert "did you mean" not in message


def test_items_are_listed(here):
    rows = [line.split("\t") for line in run("items").stdout.splitlines()]
    assert len(rows) == 118
    assert rows[0][:2] == ["0", "0/photo 0"]
    assert "7" not in {row[0] for row in rows}
    (found,) = map(json.loads, run("items", "--match", "2/PHOTO 39", "--json").stdout.splitlines())
    assert found == {"id": 119, "key": "2/photo 39", "tags": found["tags"], "round": 3, "trust": 1}
    assert len(run("items", "--limit", 4).stdout.splitlines()) == 4
    assert "no item of index.woh matches" in run("items", "--match", "none of these").stderr


def test_tags_that_nothing_is_known_of_are_told(here):
    done = run("query", "--tags", "qqqq sea zzz", "-k", "2")
    assert "note: nothing is known of 'qqqq', 'zzz', which the query leaves out" in done.stderr
    assert "note" not in run("query", "--tags", "sea", "-k", "2").stderr


def test_tags_of_a_query_are_split_as_those_of_items(here):
    done = run("query", "--tags", "sea, golden gate", "-k", "2")
    assert "note: --tags: tags are split at commas, not at blanks\n" in done.stderr
    assert "nothing is known of 'golden gate'" in done.stderr
    assert lines("--tags", "#SEA", "-k", "2")[0]["id"] == lines("--tags", "sea", "-k", "2")[0]["id"]
