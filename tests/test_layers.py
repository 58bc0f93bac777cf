"""The layer contracts in pyproject.toml: lint fails on a forbidden import and on a module without a place."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def copy(tmp_path):
    """The code and its contracts, to be spoiled."""
    shutil.copytree(ROOT / "woh_faiss", tmp_path / "woh_faiss")
    shutil.copytree(ROOT / "cli", tmp_path / "woh_faiss_cli")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder):
    script = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("woh_faiss/store/files.py", "from woh_faiss.learner import solver", "woh_faiss.store"),
        ("woh_faiss/store/files.py", "from . import catalog", "woh_faiss.store.catalog"),
        ("woh_faiss/learner/solver.py", "import faiss", "faiss"),
        ("woh_faiss/errors.py", "import woh_faiss_cli", "woh_faiss_cli"),
        ("woh_faiss/store/extra.py", "", "extra"),
    ],
)
def test_lint_finds_it(copy, module, line, broken):
    spoiled = copy / module
    before = spoiled.read_text() if spoiled.exists() else ""
    spoiled.write_text(f"{before}\n{line}\n")
    code, told = lint(copy)
    assert code == 1
    assert broken in told


def test_lint_finds_nothing_as_it_is(copy):
    assert lint(copy)[0] == 0
