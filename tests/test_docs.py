"""Documentation that cannot drift from the code."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from woh_faiss.config import PRESETS, WOHConfig
from woh_faiss.kernel import Kernel
from woh_faiss.statistics import Statistics
from woh_faiss.store import schema
from woh_faiss_cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def page(name):
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_pictures_are_there(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("name", main.commands)
def test_every_command_and_option_is_on_the_page(name):
    section = page("cli.md").split(f"## woh-index {name}\n")[1].split("\n## ")[0]
    for parameter in main.commands[name].params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert option in section


def test_every_module_is_in_the_design():
    for module in (ROOT / "woh_faiss").glob("[!_]*.py"):
        assert f"| `{module.name}` |" in page("design.md"), module.name


def test_every_matrix_is_in_the_notation():
    for owner in (Statistics, Kernel):
        for field in fields(owner):
            assert f"`{owner.__name__}.{field.name}`" in page("notation.md")


def test_every_table_is_in_the_format():
    script = Path(schema.__file__).read_text()
    tables = re.findall(r"CREATE TABLE (\w+)", script)
    assert {"rounds", "items", "tags"} <= set(tables)
    for table in tables:
        assert f"| `{table}` |" in page("format.md")


def test_presets_are_named_where_a_reader_looks():
    for preset in PRESETS:
        assert preset in README
    assert WOHConfig().preset in PRESETS


@pytest.fixture
def copy(tmp_path):
    """A folder with the shipped data where the README's examples expect it."""
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    return tmp_path


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_s_python_runs(copy):
    (script,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Neighbour(id=")
    assert done.stdout.rstrip().endswith("(200, 16) (200, 16)")


def test_the_readme_s_commands_run(copy):
    (script,) = blocks("bash")
    commands = [shlex.split(line) for line in script.splitlines()]
    assert {command[1] for command in commands} == {"build", "update", "query", "info", "evaluate"}
    for command in commands:
        arguments = [sys.executable, "-m", "woh_faiss_cli", *command[1:]]
        done = subprocess.run(arguments, cwd=copy, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
