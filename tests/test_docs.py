"""Documentation that cannot drift from the code."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from woh_faiss.learner.config import PRESETS, WOHConfig
from woh_faiss.learner.kernel import Kernel
from woh_faiss.learner.statistics import Statistics
from woh_faiss.store import schema
from woh_faiss_cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def page(name):
    return (ROOT / "docs" / name).read_text()


def anchor(heading):
    """The id that a heading gets on GitHub and in the site."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_pictures_are_there(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, part = target.partition("#")
        page_ = path.parent / name if name else path
        assert page_.exists(), target
        if part:
            headings = re.findall(r"^#+ (.*)$", page_.read_text(), flags=re.MULTILINE)
            assert part in map(anchor, headings), target


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name):
    assert re.search(rf"Example:\n +woh-index {name} ", main.get_command(None, name).help)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_on_the_page(name):
    section = page("cli.md").split(f"## woh-index {name}\n")[1].split("\n## ")[0]
    for parameter in main.get_command(None, name).params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert option in section


def test_every_test_that_a_case_names_is_there():
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", page("cases.md"))
    assert named
    for file, name in named:
        assert f"def {name or 'test_'}" in (ROOT / "tests" / file).read_text(), (file, name)


def test_every_module_is_in_the_design():
    package = ROOT / "woh_faiss"
    modules = [module.relative_to(package).as_posix() for module in package.rglob("[!_]*.py")]
    assert {"learner/solver.py", "store/schema.py"} <= set(modules)
    for module in modules:
        assert f"| `{module}` |" in page("design.md"), module


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


def woh_index(arguments, folder):
    command = [sys.executable, "-m", "woh_faiss_cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_readme_s_python_runs(copy):
    (script,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Neighbour(id=")
    assert done.stdout.rstrip().endswith("(200, 16)")


@pytest.mark.slow
def test_the_readme_s_commands_run(copy):
    (script,) = blocks("bash")
    commands = [shlex.split(line) for line in script.splitlines()]
    assert {command[1] for command in commands} == {
        *("build", "update", "query", "remove", "compact", "verify", "info", "evaluate")
    }
    for command in commands:
        done = woh_index(command[1:], copy)
        assert done.returncode == 0, (command, done.stderr)


def test_the_inputs_page_runs_and_says_what_it_shows(tmp_path, monkeypatch):
    """Blocks in order, in one folder; every line shown is among those printed."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    names, commands, compared = {}, set(), 0
    for language, text in re.findall(r"```(console|python)\n(.*?)```", page("inputs.md"), flags=re.DOTALL):
        if language == "python":
            exec(text, names)  # noqa: S102
            continue
        for step in re.split(r"^\$ woh-index ", text, flags=re.MULTILINE)[1:]:
            command, *shown = step.splitlines()
            done = CliRunner().invoke(main, shlex.split(command))
            assert done.exit_code == 0, (command, done.output)
            assert set(filter(None, shown)) <= set(done.stderr.splitlines()), (command, done.stderr)
            commands.add(command.split()[0])
            compared += len(shown)
    assert commands == {"build", "update", "import"}
    assert compared == 7


#: How lines begin that hold on every machine.
STEADY = (
    *("round ", "chunk ", "note: ", "Error: ", "  ntotal", "  rounds", "  tags  "),
    *("2 items removed", "2 items erased", "index.woh is sound", "back after round"),
)


def timeless(line):
    return re.sub(r"[\d.]+ s;", "_ s;", line).strip()


@pytest.mark.slow
def test_the_tutorial_runs_and_says_what_it_shows(copy):
    """Blocks in order; of what is shown, the lines that hold on every machine are compared."""
    scripts, compared = [], 0
    for language, text in re.findall(r"```(console|python)\n(.*?)```", page("tutorial.md"), flags=re.DOTALL):
        if language == "python":  # later blocks use the names of earlier ones
            scripts.append(text)
            script = "\n".join(scripts)
            done = subprocess.run(
                [sys.executable, "-c", script], cwd=copy, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            for said in re.findall(r"print\(.*\)  # (.*)", text):
                assert done.stdout.strip() == said
            continue
        for step in re.split(r"^\$ woh-index ", text, flags=re.MULTILINE)[1:]:
            command, *shown = step.splitlines()
            done = woh_index(shlex.split(command), copy)
            lines = {timeless(line) for line in (done.stdout + done.stderr).splitlines()}
            refused = [line for line in shown if line.startswith("Error: ")]
            assert done.returncode == bool(refused), (command, done.stderr)
            for line in shown:
                if line.startswith(STEADY):
                    assert timeless(line) in lines, (command, line, lines)
                    compared += 1
    assert compared == 18
