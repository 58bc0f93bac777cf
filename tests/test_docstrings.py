"""Docstrings and comments name what is in the code: a name that was changed is changed in them, too."""

import ast
import builtins
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(file for folder in ("woh_faiss", "cli") for file in (ROOT / folder).rglob("*.py"))
#: Names in other programs.
OTHERS = {"clone", "load_dataset", "python", "whos"}
REFERENCE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
#: A line of a Parameters or Attributes section, and the classes in its type.
TYPED = re.compile(r"^ *\*{0,2}\w[\w, *]* : (.*)$", re.MULTILINE)
CLASS = re.compile(r"\b[A-Z][a-z]\w+")
pytestmark = pytest.mark.xdist_group("docstrings")  # the code is read once
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def read(source):
    """(line, text) of docstrings and comments, and all other names and words of strings."""
    tree, told, names = ast.parse(source), [], set()
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            told.append((getattr(node, "lineno", 1), text))
            docstrings.add(node.body[0].value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings:
            names.update(re.findall(r"\w+", str(node.value)))
        for of in ("id", "name", "attr", "arg", "asname"):
            names.update(re.findall(r"\w+", getattr(node, of, None) or ""))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            told.append((token.start[0], token.string))
    return told, names


def stale(told, names):
    """(line, name) of what is named and is nowhere."""
    for line, text in told:
        words = [word for found in REFERENCE.findall(text) for word in re.findall(r"[A-Za-z_]\w{2,}", found)]
        words += [word for found in TYPED.findall(text) for word in CLASS.findall(found)]
        yield from ((line, word) for word in words if word not in names)


@pytest.fixture(scope="module")
def sources():
    return {file: read(file.read_text()) for file in FILES}


@pytest.fixture(scope="module")
def names(sources):
    paths = {part for file in FILES for part in file.relative_to(ROOT).with_suffix("").parts}
    return set(dir(builtins)) | OTHERS | paths | set().union(*(names for _, names in sources.values()))


def test_all_that_is_named_is_in_the_code(sources, names):
    assert not [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file, (told, _) in sources.items()
        for line, word in stale(told, names)
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("chunks : list of Chunq", ["Chunq"]),
        ("a, b : Chunk or Chunq", ["Chunq"]),
        ("See `Chunq.tags`, `chunk.tags`.", ["Chunq"]),
        ("# As `no_such_function` does.", ["no_such_function"]),
        ("chunks : list of Chunk", []),
    ],
)
def test_a_name_that_is_nowhere_is_found(names, line, expected):
    assert [word for _, word in stale([(1, line)], names)] == expected
