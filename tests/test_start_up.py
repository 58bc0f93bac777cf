"""What starting a command imports: a query must cost little more than faiss and click."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import tagged

from woh_faiss_cli.main import COMMANDS

HEAVY = ("gensim", "scipy", "matplotlib", "pandas", "pyarrow", "PIL", "psycopg", "pymilvus", "grpc")

SCRIPT = """
import sys
from woh_faiss_cli.main import COMMANDS, main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
tops = {name.split(".")[0] for name in sys.modules}
ours = {name for name in sys.modules if name.startswith("woh_faiss.")}
print(*sorted(tops | ours), file=sys.stderr)
"""


def imported(*arguments):
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("extra", [[], ["--json"], ["--by", "hamming"]])
def test_a_query_imports_nothing_heavy(index, tmp_path, extra):
    np.savez(tmp_path / "q.npz", features=tagged(1, n=2)[0])
    modules = imported("query", tmp_path / "q.npz", "--index", index.path, *extra)
    assert "faiss" in modules
    assert "woh_faiss.integrations" not in modules
    assert not modules & set(HEAVY)


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["query", "--id", "3"]])
def test_nor_does_a_look_at_the_index(index, arguments):
    assert not imported(*arguments, "--index", index.path) & set(HEAVY)


def test_a_page_needs_pillow_only_where_there_are_pictures(index, tmp_path):
    arguments = ["query", "--id", "3", "--index", index.path, "--html", tmp_path / "page.html"]
    assert not imported(*arguments) & {"PIL", "rich", "gensim", "matplotlib"}


def test_an_add_imports_nothing_that_learning_needs(index, tmp_path):
    np.savez(tmp_path / "q.npz", features=tagged(1, n=2)[0], tags=["sea;", "hill;"])
    modules = imported("add", tmp_path / "q.npz", "--index", index.path)
    assert not modules & {*HEAVY, "h5py", "rich", "woh_faiss.learner.estimator"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS]])
def test_help_and_version_import_no_arrays(arguments):
    assert not imported(*arguments) & {"numpy", "faiss", "rich", *HEAVY}
