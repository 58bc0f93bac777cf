"""Several tags in one text: lists that were written as text, and separators, which the first rows tell.

Separators are characters in the order in which they are looked for: a text is split at the first that it
has; a blank stands for any white space, and is always had. One alone was asked for: lists are text then.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from woh_faiss import budget
from woh_faiss.errors import InputError, short
from woh_faiss.io.python_literals import evaluated
from woh_faiss.validate import TEXT

#: Where nothing else is told.
USUAL = "; "
#: Rows that tell.
FIRST = 100
#: What else people put between tags, if all rows that have several of them have it.
_OTHERS = {"|": "pipes", ",": "commas"}
_STRING = r"""[uU]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
#: A Python list, tuple or set of texts; NumPy's have blanks between them, which Python would join.
_LIST = re.compile(rf"[\[({{]\s*(?:{_STRING}(?:(?:\s*,\s*|\s+){_STRING})*\s*(?:,\s*)?)?[\])}}]", re.DOTALL)
#: In quotes, up to the next blank.
_QUOTED = re.compile(r'(?<!\S)"([^"]*)"(?=[\s,]|$)|(\S+)')


class Told(NamedTuple):
    """Separators, what a user should know of them, and whether any text told."""

    separators: str
    notes: tuple[str, ...]
    sure: bool


class TagTexts:
    """How the texts of an input are split into tags: as asked for, or as its first ones tell, in all of it.

    Parameters
    ----------
    separator : str, optional
        The one character that was asked for.
    note : callable, optional
        What takes a line about what the first texts told.
    """

    def __init__(self, separator: str | None = None, note: Callable[[str], object] | None = None) -> None:
        if separator is not None and len(separator) != 1:
            raise InputError(
                f"the separator of tags is {short(separator)}, expected one character, such as ','"
            )
        self._separators, self._note = separator, note
        self._said: set[str] = set()

    def separators(self, texts: Iterable[str]) -> str:
        """What `split` takes: told by these texts if nothing was asked for or told before."""
        if self._separators is not None:
            return self._separators
        found = told(texts)
        for line in found.notes:
            if self._note is not None and line not in self._said:
                self._note(line)
            self._said.add(line)
        if found.sure:
            self._separators = found.separators
        return found.separators


def told(texts: Iterable[str]) -> Told:
    """What stands between tags, by the first texts that can be split."""
    rows: list[str] = []
    lists = 0
    for row in filter(None, map(str.strip, texts)):
        if _is_list(row):
            lists += 1
        elif len(row.split(maxsplit=1)) > 1 or any(mark in row for mark in (";", *_OTHERS)):
            rows.append(row)
        if len(rows) == FIRST or lists == FIRST:
            break
    notes = ["lists that are written as text are read as lists"] if lists else []
    if not any(";" in row for row in rows):
        for separator, name in _OTHERS.items():
            having = sum(separator in row for row in rows)
            if having and having == len(rows):
                return Told(f"{separator};", (*notes, f"tags are split at {name}, not at blanks"), True)
            if having:
                many = f"{having:,} of the first {len(rows):,} texts"
                notes.append(f"tags are split at blanks, though {many} have {name}")
    return Told(USUAL, tuple(notes), bool(rows))


def split(text: str, separators: str = USUAL) -> list[str]:
    """The tags of a text; quotes around one keep it whole. Blanks stay around tags.

    Raises
    ------
    InputError
        It looks like a list, and is not one of texts.
    """
    alone = len(separators) == 1
    if len(text) > 1 << 20:  # one item's alone
        parts = next((n for mark in separators.strip() if (n := text.count(mark))), len(text) // 2)
        budget.take(TEXT * parts, "tags of an item")
    if not alone and (found := _as_list(text.strip())) is not None:
        return found
    mark = next((mark for mark in separators if mark == " " or mark in text), "")
    if not mark:
        return [text]
    if '"' not in text:
        return [part.strip(",") for part in text.split()] if mark == " " else text.split(mark)
    if mark == " ":
        return [found[1] if found[2] is None else found[2].strip(",") for found in _QUOTED.finditer(text)]
    bare = text.strip()
    if bare[0] == bare[-1] == '"' and bare.count('"') == 2:  # the whole of it, as files of tables have it
        return bare[1:-1].split(mark)
    # A mark in quotes does not count; quotes within a tag are text.
    quoted = re.compile(
        rf'\s*"([^"]*)"\s*(?:{re.escape(mark)}|$)|([^{re.escape(mark)}]*)(?:{re.escape(mark)}|$)'
    )
    return [found[2] if found[1] is None else found[1] for found in quoted.finditer(text)]


def _is_list(text: str) -> bool:
    try:
        return _as_list(text) is not None
    except InputError:  # said where it is split, which knows the row
        return False


def _as_list(text: str) -> list[str] | None:
    """The texts of a list that is written as text, in JSON or Python; None for other text."""
    if not text or text[0] not in "[({" or text[-1] not in "])}":
        return None
    budget.take(20 * len(text) if len(text) > 1 << 16 else 0, "tags of an item")
    if _LIST.fullmatch(text):
        with suppress(ValueError, SyntaxError):
            return [_unquoted(found[0]) for found in re.finditer(_STRING, text, re.DOTALL)]
    if text[0] == "(" or not any(mark in text for mark in ",\"'"):
        return None  # [wip]
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str | None) for value in values):
        raise InputError(
            f"tags are {short(text)}, which looks like a list and is not one of texts in quotes; write it as "
            "JSON, or say what stands between tags: --tag-separator ','"
        )
    return [value for value in values if value is not None]


def _unquoted(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted.lstrip("uU")[1:-1]
    try:
        return str(json.loads(quoted))  # what Python reads otherwise: \/ and halves of characters
    except ValueError:
        return str(evaluated(partial(ast.literal_eval, quoted)))
