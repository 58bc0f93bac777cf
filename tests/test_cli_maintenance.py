"""woh-index remove, compact, verify and rollback, and --on-duplicate: what they print, how they fail."""

import contextlib
import json
import re

import numpy as np
import pytest
from conftest import save_chunk, tagged
from test_cli import BUILD, run

from woh_faiss import WOHIndex


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    with contextlib.chdir(folder):
        for seed in range(2):
            save_chunk(f"chunk-{seed}.npz", seed, keys=[f"{seed}/photo {i}" for i in range(40)])
        np.savez("queries.npz", features=tagged(8, n=3)[0])
        run("build", "chunk-0.npz", *BUILD, "--keep-models", 3)
        run("update", "chunk-1.npz")
    return folder


def found(*more):
    lines = run("query", "queries.npz", "-k", 200, "--json", *more).stdout.splitlines()
    return {json.loads(line)["id"] for line in lines}


def test_remove_by_id_key_and_file(here):
    done = run("remove", 3, 4, "--key", "0/photo 7", "--key", "1/photo 0")
    assert (done.stdout, done.stderr) == ("", "4 items removed; 76 items in all\n")
    (here / "ids.txt").write_text("8\r\n\n 9 \n")
    (here / "keys.txt").write_text("\ufeff0/photo 10\n1/photo 1\r\n", encoding="utf-8")
    assert run("remove", "--ids-file", "ids.txt", 11).stderr == "3 items removed; 73 items in all\n"
    assert run("remove", "--keys-file", "keys.txt").stderr == "2 items removed; 71 items in all\n"
    assert run("remove", "--ids-file", "-", input="12\n13\n").stderr == "2 items removed; 69 items in all\n"
    assert found() == set(range(80)) - {3, 4, 7, 8, 9, 10, 11, 12, 13, 40, 41}
    again = run("remove", 3, 99, 14, code=1)
    assert "id 3, id 99 are not in the index (2 of 3 given)" in again.stderr
    assert run("remove", 3, 99, 14, "--ignore-missing").stderr == "1 item removed; 68 items in all\n"
    info = json.loads(run("info", "--json").stdout)
    assert (info["ntotal"], info["rows"], info["removed"]) == (68, 80, 12)
    assert re.search(r"removed\s+12\b", run("info").stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give an ID, --key, --ids-file or --keys-file"),
        (["seven"], 2, "is not a valid integer"),
        (["--keys-file", "none.txt"], 2, "none.txt"),
        (["--ids-file", "bad.txt"], 1, "bad.txt: line 2 is 'x y', expected an id; keys go into --keys-file"),
        (["--ids-file", "chunk-0.npz"], 1, "is not UTF-8 text"),
        (["--", "-1"], 1, "id -1 is not in the index (1 of 1 given)"),
        ([2**70], 1, "expected 1-D integers"),
        (["--key", "x"], 1, "key 'x' is not in the index"),
    ],
)
def test_what_remove_refuses(here, arguments, code, message):
    (here / "bad.txt").write_text("1\nx y\n")
    refused = run("remove", *arguments, code=code)
    assert message in refused.stderr
    assert found() == set(range(80))


def test_compact_and_verify(here):
    run("remove", 5, 6)
    assert run("verify").stderr == "index.woh is sound\n"
    assert run("compact").stderr == "2 items erased; 78 items in all\n"
    assert run("compact").stderr == "0 items erased; 78 items in all\n"
    assert run("verify", "--json").stdout == ""
    codes = bytearray((here / "index.woh" / "codes.faiss").read_bytes())
    codes[-1] ^= 1
    (here / "index.woh" / "codes.faiss").write_bytes(codes)
    (here / "index.woh" / "stray").touch()
    told = run("verify", code=1).stdout
    assert len(told.splitlines()) == 2
    lines = [json.loads(line)["fault"] for line in run("verify", "--json", code=1).stdout.splitlines()]
    assert lines == told.splitlines()
    assert "no index at" in run("verify", "--index", "none", code=1).stdout


def test_a_catalogue_in_use_is_noted(here, monkeypatch):
    monkeypatch.setattr(WOHIndex, "compact", lambda self, timeout: (1, False))
    assert "may still hold traces; compact again" in run("compact").stderr


def test_rollback(here):
    run("remove", 5)
    done = run("rollback", 1)
    assert done.stderr == "back after round 1; 2 rounds undone; 40 items in all\n"
    assert found() == set(range(40))
    assert (
        "round is 1, expected 0 or more and an earlier one than the newest, 1"
        in run("rollback", 1, code=1).stderr
    )
    assert run("rollback", 0).stderr == "back after round 0; 1 rounds undone; 0 items in all\n"
    assert run("update", "chunk-1.npz").stderr.startswith("round 1: 40 items appended")


def test_on_duplicate(here):
    save_chunk("again.npz", 5, n=3, keys=["0/photo 1", "new", "0/photo 2"])
    assert "key '0/photo 1' is in the index already (2 of 3 are)" in run("add", "again.npz", code=1).stderr
    skipped = run("update", "again.npz", "--on-duplicate", "skip").stderr
    assert re.match(r"round 3: 1 items appended, 2 skipped, 1 learned from in .*; 81 items in all", skipped)
    replaced = run("add", "again.npz", "--on-duplicate", "replace").stderr
    assert replaced == "round 4: 3 items appended, 3 of them replace older ones; 81 items in all\n"
    assert "is not one of" in run("add", "again.npz", "--on-duplicate", "merge", code=2).stderr


def test_what_a_killed_writer_left_is_a_note(here):
    (here / "index.woh" / "model-9.npz.tmp").write_bytes(b"half")
    with (here / "index.woh" / "ids.i64").open("ab") as file:
        file.write(b"tail")
    done = run("verify", "--json")
    assert done.stdout == ""
    assert "note: " in done.stderr
    assert "model-9.npz.tmp: left by a writer that died; the next write puts it right" in done.stderr
    assert "ids.i64: has 4 bytes behind its end" in done.stderr
    assert done.stderr.endswith("is sound\n")
    (here / "index.woh" / "letter.txt").write_text("dear")
    assert "is not a file of an index" in run("verify", code=1).stdout
    run("remove", "1")
    assert not (here / "index.woh" / "model-9.npz.tmp").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["remove", "3"],
        ["compact"],
        ["rollback", "0"],
        ["build-ann", "ivf"],
        ["build-ann", "--drop"],
        ["update", "{chunk}"],
        ["add", "{chunk}"],
    ],
    ids=" ".join,
)
def test_how_long_a_command_waits_for_a_writer(here, command):
    command = [part.format(chunk="chunk-1.npz") for part in command]
    if command[0] in ("update", "add"):
        command.append("--no-skip")
    with WOHIndex.open("index.woh") as index, index.store.writing():
        for seconds in ("0", "0.05"):
            told = run(*command, "--timeout", seconds, code=1).stderr
            assert f"waited {seconds} s" in told
    assert "timeout is -1.0" in run(*command, "--timeout", -1, code=1).stderr
