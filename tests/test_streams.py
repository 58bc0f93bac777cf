"""Standard streams that are closed, full or read by nobody: an answer, one line, or silence."""

import subprocess
import sys

import pytest
from conftest import LENGTH, full_length_only
from test_cli import built_in

#: Every command, with arguments that let it end well.
COMMANDS = {
    "build": "build chunk-0.npz --index new.woh --bits 16 --anchors 10",
    "update": "update chunk-1.npz",
    "add": "add rest.npz",
    "import": "import flat.faiss --help",
    "remove": "remove 1",
    "query": "query queries.npz",
    "query --json": "query queries.npz --json",
    "query --html": "query queries.npz --html page.html",
    "info": "info",
    "info --json": "info --json",
    "verify": "verify",
    "compact": "compact",
    "rollback": "rollback 0",
    "build-ann": "build-ann ivf",
    "export": "export out.faiss",
    "evaluate": "evaluate --help",
    "benchmark": "benchmark --help",
    "push": "push --help",
    "help": "--help",
    "version": "--version",
    "an error": "query nothing.npz",
    "a usage error": "query --nonsense",
}
#: What the shell does, and the exit codes a command that would give 0 may have: with stdout closed or full a
#: command whose results are lost fails.
STREAMS = {
    "out closed": (">&-", {0, 1}),
    "err closed": ("2>&-", {0}),
    "both closed": (">&- 2>&-", {0, 1}),
    "in closed": ("<&-", {0}),
    "all closed": ("<&- >&- 2>&-", {0, 1}),
    "out full": (">/dev/full", {0, 1}),
    "err full": ("2>/dev/full", {0}),
    "both full": (">/dev/full 2>/dev/full", {0, 1}),
    "nobody reads": ("| true", {0}),
    "one line is read": ("| head -1", {0}),
    "nobody reads errors": ("2>&1 >/dev/null | true", {0}),
}
FAILS = {"an error": 1, "a usage error": 2}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return built_in(tmp_path_factory.mktemp("streams"))


#: These meet every stream, the others those that differ most: at full length each of them, else one in turn.
_ALL = ("query", *full_length_only("help", "an error", "a usage error"))
_FEW = ("all closed", "both full", "nobody reads")
#: Commands that print as another one does.
_ALIKE = ("import", "add", "compact", "rollback", "build-ann", "evaluate", "benchmark", "push", "version")
_PAIRS = [
    (command, stream)
    for number, command in enumerate(name for name in COMMANDS if LENGTH >= 1 or name not in _ALIKE)
    for stream in (
        *(STREAMS if command in _ALL else _FEW if LENGTH >= 1 else (_FEW[number % len(_FEW)],)),
        *(("out full", "nobody reads") if command == "help" and LENGTH < 1 else ()),
    )
]


@pytest.mark.parametrize(("command", "stream"), _PAIRS)
def test_streams(template, tmp_path, command, stream):
    redirected, codes = STREAMS[stream]
    line = f"{sys.executable} -m woh_faiss_cli {COMMANDS[command]} {redirected}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; cp -r {template}/. . && {{ {line}; }}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = done.stdout + done.stderr
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    assert len(done.stderr.splitlines()) < 20
    if command in FAILS:
        assert done.returncode == FAILS[command], told
    else:
        assert done.returncode in codes, told
    if command == "query" and stream in ("err closed", "err full", "in closed"):
        assert len(done.stdout.splitlines()) == 31
    if "out full" in stream and command in ("query", "info", "help"):
        assert done.returncode == 1
        assert "cannot write the results" in done.stderr
