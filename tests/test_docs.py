"""Documentation that cannot drift from the code."""

import ast
import contextlib
import csv
import importlib
import inspect
import io
import json
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LENGTH

import woh_faiss
from woh_faiss import WOHIndex
from woh_faiss.errors import LockedError, StoreError
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


def test_the_site_has_every_page_once():
    listed = re.findall(r": (\S+\.md)$", (ROOT / ".ci" / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in PAGES[1:])
    linked = re.findall(r"\]\((\S+\.md)\)", page("index.md"))
    assert sorted(linked) == sorted(set(listed) - {"index.md"})


def documented():
    """The name and the object of every entry of the API reference."""
    for name in re.findall(r"^::: (\S+)$", page("api.md"), flags=re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
            parent = importlib.import_module(module)
            yield name, getattr(parent, attribute, None) or importlib.import_module(name)


def test_every_exported_name_is_in_the_api_reference():
    names = {name for name, _ in documented()}
    for name in woh_faiss.__all__:
        if name not in ("__version__", "WOHError"):  # which is with the other errors
            assert f"woh_faiss.{name}" in names


def functions(thing):
    """Public functions of an object of the reference, by name; inherited ones only of this package."""
    if not inspect.isclass(thing):
        return {thing.__name__: thing} if inspect.isfunction(thing) else {}
    found = {}
    for class_ in thing.__mro__:
        if class_.__module__.split(".")[0] == "woh_faiss":
            for name, member in vars(class_).items():
                function = getattr(member, "__func__", member)
                if not name.startswith("_") and inspect.isfunction(function):
                    found.setdefault(f"{class_.__name__}.{name}", function)
    return found


def test_public_functions_of_three_parameters_describe_them():
    seen = 0
    for _, thing in documented():
        for name, function in functions(thing).items():
            names = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
            if len(names) < 3:
                continue
            text = inspect.getdoc(function) or ""
            assert "Parameters\n----------\n" in text, name
            section = text.split("Parameters\n----------\n")[1].split("\n---")[0]
            for parameter in names:
                assert re.search(rf"^[\w*, ]*\b{parameter}\b[\w*, ]*( :|$)", section, re.MULTILINE), (
                    name,
                    parameter,
                )
            seen += 1
    assert seen > 20


def scripts():
    for path in PAGES:
        yield from (
            (path.name, text) for text in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        )


def test_python_on_every_page_imports_what_is_there():
    imported = 0
    for name, text in scripts():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or not node.module.startswith("woh_faiss"):
                continue
            for each in node.names:
                try:
                    if not hasattr(importlib.import_module(node.module), each.name):  # a module, then
                        importlib.import_module(f"{node.module}.{each.name}")
                except ModuleNotFoundError as error:  # of an extra that is not installed
                    missing = error.name
                    assert not missing.startswith("woh_faiss"), (name, node.module, each.name)
                imported += 1
    assert imported > 15


def timeless(line):
    """A line without its seconds and its columns' widths."""
    return " ".join(re.sub(r"[\d.]+ s;", "_ s;", line).split())


def invoke(arguments):
    return CliRunner().invoke(main, arguments)


class Answers:
    """What `query` prints into a pipe, to compare with the tables that pages show.

    Codes of another processor may differ in a bit: a neighbour that is shown may have another rank, and a
    score that differs by a tenth.
    """

    def __init__(self, arguments):
        many = invoke([*arguments, "-k", "100"])  # the last -k counts
        header, *lines = (line.split("\t") for line in many.stdout.splitlines())
        self.header, self.query = header[1:], None
        self.found = {(line[0], line[2], line[3]): (float(line[4]), line[5]) for line in lines}

    def show(self, line):
        if line.startswith("query "):
            self.query = line.removeprefix("query ")
            return any(query == self.query for query, _, _ in self.found)
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == "rank":
            return cells == self.header
        if set(line.strip()) == {"─"}:
            return True
        _, id_, key, score, tags = cells
        if (self.query, id_, key) not in self.found:
            return False
        found, all_tags = self.found[self.query, id_, key]
        return abs(found - float(score)) <= 0.1 and all_tags.startswith(tags.removesuffix(", ..."))


def follow(name, notes=False):
    """Run the blocks of a page in order, in the present folder, and compare every line that it shows.

    A line ``...`` stands for others; without one, `notes` means that each note that is printed must be shown.
    Returns how many lines were compared.
    """
    names, compared = {}, 0
    for language, text in re.findall(r"```(console|python)\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
        if language == "python":  # later blocks use the names of earlier ones
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(text, names)  # noqa: S102
            shown = re.findall(r"print\(.*\)  # (.*)", text)
            assert said.getvalue().splitlines() == shown
            compared += len(shown)
            continue
        for step in re.split(r"^\$ woh-index ", text, flags=re.MULTILINE)[1:]:
            command, *shown = step.splitlines()
            arguments = shlex.split(command)
            others = any(line.strip() == "..." for line in shown)
            shown = [line for line in shown if line.strip() not in ("", "...")]
            done = invoke(arguments)
            assert done.exit_code == any(line.startswith("Error: ") for line in shown), (command, done.output)
            printed = [timeless(line) for line in done.output.splitlines()]
            answers = (
                Answers(arguments)
                if arguments[0] == "query" and shown and "--json" not in arguments
                else None
            )
            for line in shown:
                compared += 1
                if LENGTH < 1 and line.startswith("note: about"):
                    continue  # with few anchors features foretell less
                if answers is not None:
                    assert answers.show(line), (command, line)
                elif line.endswith("..."):
                    assert any(each.startswith(timeless(line[:-3])) for each in printed), (
                        command,
                        line,
                        printed,
                    )
                else:
                    assert timeless(line) in printed, (command, line, printed)
            if notes and shown and not others:
                missing = {line for line in printed if line.startswith("note: ")} - set(map(timeless, shown))
                assert not missing, (command, missing)
    return compared


@pytest.fixture
def anchors(request):
    """As many as the pages have, or few where time is short: what they show is the same."""
    if LENGTH < 1:
        request.getfixturevalue("few_anchors")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The shipped data where the commands of a page expect it."""
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("data", "anchors")
def test_the_readme_runs_and_says_what_it_shows():
    assert follow("README.md", notes=True) == 11


@pytest.mark.slow
@pytest.mark.usefixtures("data", "anchors")
def test_the_tutorial_runs_and_says_what_it_shows():
    assert follow("docs/tutorial.md", notes=True) == 34


@pytest.mark.usefixtures("anchors")
def test_the_inputs_page_runs_and_says_what_it_shows(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    assert follow("docs/inputs.md") == 6


@pytest.mark.usefixtures("anchors")
def test_the_filters_page_runs_and_says_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert follow("docs/filters.md") == 20


@pytest.mark.usefixtures("anchors")
def test_the_page_of_pictures_runs_and_says_what_it_shows(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    assert follow("docs/pictures.md") == 7


@pytest.mark.usefixtures("data")
def test_the_measured_map_is_that_of_the_readme_and_of_the_evaluation_page():
    """One split of the README's table, measured again."""
    files = [f"examples/data/{name}.npz" for name in ("chunk-000", "chunk-001", "chunk-002", "queries")]
    options = "--chunks 3 --queries 400 --bits 16 --by hamming --json"
    vectors = ["--word-vectors", "examples/data/glove-100d-tags.w2v.txt"]
    done = invoke(["evaluate", *files, *options.split(), *vectors])
    measured = {(r["method"], r["round"]): r for r in map(json.loads, done.stdout.splitlines())}
    shown = json.loads(re.search(r'^ *(\{"method".*\})$', page("evaluation.md"), re.MULTILINE)[1])
    printed = measured["woh", 3]
    measures = dict.fromkeys(("map", "p10", "self1", "self10", "float_recall10", "seconds"), 0)
    assert shown | measures == printed | measures
    assert shown["map"] == pytest.approx(printed["map"], abs=0.01)
    with (ROOT / "docs" / "results" / "map-vs-bytes.csv").open(newline="") as file:
        kept = {
            (row["method"], row["bits"]): row["map"] for row in csv.DictReader(file) if row["seed"] == "0"
        }
    assert float(kept["adaptive", "16"]) == pytest.approx(printed["map"], abs=0.01)
    for method in ("float-l2", "float-cosine"):
        assert float(kept[method, ""]) == pytest.approx(measured[method, 3]["map"], abs=0.001)


def json_fields(command):
    """The names that docs/serving.md promises of a command's JSON."""
    line = re.search(rf"^- `{command} --json`: (.*(?:\n  .*)*)$", page("serving.md"), re.MULTILINE)[1]
    return set(re.findall(r"`(\w+)`", line))


def test_json_has_the_fields_that_are_promised(index, tmp_path, monkeypatch):
    index.close()
    monkeypatch.chdir(tmp_path)
    named = set()
    for line in re.findall(r"^\| (`.*?) \|", page("serving.md").split("| `info --json` |")[1], re.MULTILINE):
        named |= set(re.findall(r"`(\w+)`", line))
    assert named == set(json.loads(invoke(["info", "--json"]).stdout))
    printed = json.loads(invoke(["query", "--id", "7", "-k", "1", "--json"]).stdout)
    assert set(printed) <= json_fields("query")
    assert json_fields("query") - set(printed) == {
        *("distance", "cosine", "predicted", "kind", "instance", "trust", "metadata")
    }
    made = json.loads(invoke(["export", "out.faiss", "--json"]).stdout)
    assert json_fields("export") == set(made)
    Path("index.woh/codes.faiss").write_bytes(b"")
    assert set(json.loads(invoke(["verify", "--json"]).stdout.splitlines()[0])) == json_fields("verify")


def test_messages_on_the_serving_page_are_those_that_are_raised(index, tmp_path):
    text = " ".join(page("serving.md").split())
    with index.store.writing(), pytest.raises(LockedError) as locked, WOHIndex.open(index.path) as other:
        other.remove([7], timeout=0.01)
    index.path.rename(tmp_path / "away.woh")
    WOHIndex.create(index.path).close()
    with pytest.raises(StoreError) as replaced:
        index.items([7])
    varying = r"(this )?process \d+ since [\d-]+ [\d:]+; waited [\d.]+ s"
    for error in (locked, replaced):
        message = str(error.value).replace(f"{tmp_path}/", "")
        assert re.sub(varying, "", message) in re.sub(varying, "", text)


def test_rules_of_map_on_the_evaluation_page_have_the_golden_values():
    shown = re.findall(r"^\| .* \| (\.\d{4}) \|$", page("evaluation.md"), re.MULTILINE)
    with np.load(ROOT / "tests" / "golden" / "map.npz") as golden:
        assert shown == [f"{float(golden[rule]):.4f}"[1:] for rule in ("kept", "dropped", "at_20")]


def test_a_demo_installs_what_it_needs_and_no_extra():
    """`make demo` depends on the core alone: 1.4 GB of databases are for tests."""
    text = (ROOT / "Makefile").read_text()
    found = re.findall(r"^(\S+): ([^\n]*)\n((?:\t[^\n]*\n)*)", text, re.M)
    rules = {name: (needed, commands) for name, needed, commands in found}
    assert rules["demo"][0].split("#")[0].split() == ["$(DEMO)"]
    needed, commands = rules["$(DEMO)"]
    assert needed == "pyproject.toml"
    assert "--editable .\n" in commands
    assert "[" not in commands
