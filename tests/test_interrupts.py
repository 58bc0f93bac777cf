"""Ctrl-C and SIGTERM say what is committed, and the same command continues."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import save_chunk, tagged
from test_cli import BUILD, run

from woh_faiss import WOHIndex

#: The command, at whose second commit (or encoding, of a build) a signal comes.
STOPPED = """
import os, signal, sys
from woh_faiss.index.writer import IndexWriter
from woh_faiss_cli.main import main
number, after = int(sys.argv[1]), []
learned = IndexWriter.learned
def stopped(*args, **kwargs):
    if after:
        os.kill(os.getpid(), number)
    after.append(1)
    return learned(*args, **kwargs)
IndexWriter.learned = stopped
main(sys.argv[2:])
"""


def stopped(signal_, *arguments):
    return subprocess.run(
        [sys.executable, "-c", STOPPED, str(int(signal_)), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_update_says_what_is_committed_and_is_continued(tmp_path, monkeypatch, signal_, code):
    monkeypatch.chdir(tmp_path)
    for seed in range(4):
        save_chunk(f"{seed}.npz", seed)
    run("build", "0.npz", *BUILD)
    names = ["1.npz", "2.npz", "3.npz"]
    done = stopped(signal_, "update", *names)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "stopped; index.woh is at round 2, 80 items in all are committed; the same command continues"
    )
    assert "Traceback" not in done.stderr
    assert WOHIndex.verify("index.woh") == []
    again = run("update", *names)
    assert again.stderr.startswith("chunk 1 of 3: already learned (round 2), skipped: 1.npz\n")
    assert "round 4: 40 items appended" in again.stderr


def test_a_build_that_is_stopped_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        X, tags = tagged(seed, n=2000)
        np.savez(f"{seed}.npz", features=X, tags=[";".join([*own, ""]) for own in tags])
    done = stopped(signal.SIGTERM, "build", "0.npz", "1.npz", *BUILD)
    assert done.returncode == 143, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "stopped; nothing is kept; build --max-chunks 1, then update, can be continued"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npz", "1.npz"]


def test_a_reader_that_is_stopped_says_no_more(tmp_path, monkeypatch):
    save_chunk(tmp_path / "0.npz", 0)
    monkeypatch.chdir(tmp_path)
    run("build", "0.npz", *BUILD)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(WOHIndex, "health", interrupted)
    assert run("info", code=130).stderr == "stopped\n"
    monkeypatch.setattr(WOHIndex, "compact", interrupted)
    assert run("compact", code=130).stderr == (
        "stopped; index.woh is at round 1, 40 items in all are committed; the same command starts again\n"
    )
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---- what is said --------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        save_chunk(f"{seed}.npz", seed)


def test_every_command_that_changes_an_index_has_json(here):
    (built,) = map(json.loads, run("build", "0.npz", *BUILD, "--json").stdout.splitlines())
    assert (built["round"], built["kind"], built["n"], built["ntotal"]) == (1, "trained", 40, 40)
    assert built == WOHIndex.open("index.woh").info()["history"][0]
    updated = run("update", "1.npz", "2.npz", "--json").stdout.splitlines()
    assert [json.loads(line)["ntotal"] for line in updated] == [80, 120]
    assert run("update", "1.npz", "--json").stdout == ""  # known
    (added,) = map(json.loads, run("add", "2.npz", "--no-skip", "--json").stdout.splitlines())
    assert (added["kind"], added["ntotal"]) == ("encoded", 160)
    assert json.loads(run("remove", 3, 4, "--json").stdout) == {"removed": 2, "ntotal": 158}
    erased = {"erased": 2, "ntotal": 158, "clean": True}
    assert json.loads(run("compact", "--json").stdout) == erased
    assert json.loads(run("backup", "copy.woh", "--json").stdout) == {"path": "copy.woh", "round": 5}
    rolled = json.loads(run("rollback", 3, "--json").stdout)
    assert rolled == {"round": 3, "undone": 2, "ntotal": 118}


def test_quiet_says_errors_only_and_verbose_says_more(here):
    assert run("build", "0.npz", *BUILD, "--quiet").output == ""
    assert run("update", "1.npz", "-q").output == ""
    assert run("verify", "--quiet").output == ""
    assert run("update", "missing.npz", "-q", code=1).stderr.startswith("Error: missing.npz")
    names = ["1.npz", "0.npz"]
    one_line = "2 chunks are in the index already, skipped (--verbose names each)\n"
    assert run("update", *names).stderr == one_line
    assert run("update", *names, "-v").stderr.splitlines() == [
        "chunk 1 of 2: already learned (round 2), skipped: 1.npz",
        "chunk 2 of 2: already learned (round 1), skipped: 0.npz",
    ]


def test_tags_without_word_vectors_are_told_of_once_with_what_to_do(here):
    run("build", "0.npz", *BUILD)
    for seed in (1, 2):
        X, tags = tagged(seed)
        np.savez(f"new-{seed}.npz", features=X, tags=[f"new{seed};{own[0]}" for own in tags])
    lines = run("update", "new-1.npz", "new-2.npz").stderr.splitlines()
    assert "1 of them new, without a word vector" in lines[0]
    assert [line for line in lines if line.startswith("note: new tags")] == [
        "note: new tags take the mean vector of the tags they occur with; "
        "--word-vectors FILE gives them their own"
    ]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals")
def test_a_bar_shows_n_of_all_and_a_rate(here):
    run("build", "0.npz", *BUILD)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "woh_faiss_cli", "update", "0.npz", "1.npz", "2.npz"]
    subprocess.run(command, stderr=theirs, check=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "/3" in shown
    assert "/s" in shown
    assert "round 3: 40 items appended" in shown


def test_python_m_is_the_command(here):
    done = subprocess.run(
        [sys.executable, "-m", "woh_faiss_cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("woh-index ")


def test_shells_complete_commands_and_options(here):
    """As the line in docs/cli.md sets it up; the library is not imported for it."""
    for words, expected in {"woh-index ver": "verify", "woh-index query --lim": "--limit"}.items():
        env = {**os.environ, "_WOH_INDEX_COMPLETE": "bash_complete", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run(
            [sys.executable, "-c", "from woh_faiss_cli.main import main; main(prog_name='woh-index')"],
            capture_output=True, text=True, check=False, env=env,
        )  # fmt: skip
        assert done.stdout == f"plain,{expected}\n", done.stderr
