"""Filters of documents: SQL that decides where SQLite can, and a function that decides the rest.

The SQL of a filter is 1 for a document that it lets through, 0 for one that it does not, and NULL where the
function is to be asked: about lists and dicts as a whole, floats that are almost what they are compared with,
whole numbers beyond 64 bits, text with a NUL, and values that the function raises an error for. Every value
and path is bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import NoneType
from typing import Any, NamedTuple

from .document import Entry


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """Which documents may be answers.

    Attributes
    ----------
    matches : callable
        Whether an entry may.
    sql : str
        Over a row of the documents' table: 1, 0, or NULL where `matches` is to be asked.
    values : dict
        What `sql` binds, by name.
    """

    matches: Callable[[Entry], bool]
    sql: str = "NULL"
    values: Mapping[str, Any] = field(default_factory=dict)


class Truth(NamedTuple):
    """An expression of SQL: 1, 0, or NULL where the function is to be asked.

    Attributes
    ----------
    sql : str
    raises : bool
        Whether the function may raise an error where it is NULL: nothing behind it may be looked at first.
    depth : int
        Levels of nesting.
    """

    sql: str
    raises: bool = False
    depth: int = 0


YES, NO, UNDECIDED = Truth("1"), Truth("0"), Truth("NULL", raises=True)

#: What is said of a value of each JSON type, an expression with {} for the value; of other types "0". It is
#: 1, 0, or 2 for a NULL, which max() would skip.
Cases = Mapping[str, str]
ASK = "2"
TYPES = ("null", "true", "false", "integer", "real", "text", "array", "object")

#: Levels of nesting and values in one filter; what is beyond is undecided. SQLite's parser ends at 100
#: open symbols.
_DEEPEST, _MOST_VALUES = 5, 1000
#: Some SQLite read decimals less exactly than Python: closer than this, relative and absolute, is undecided.
_CLOSE, _TINY = 1e-9, 1e-300


class Truths:
    """Makes the expressions of one filter and holds what they bind, in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def document_filter(self, truth: Truth, matches: Callable[[Entry], bool]) -> DocumentFilter:
        """The filter that lets through what `matches` does, of which `truth` says as much as it can.

        Text of JSON that is damaged is for `matches`, and so are NULs: some SQLite end a text there.
        """
        readable = "json_valid(metadata) AND NOT instr(metadata, '\\u0000')"
        return DocumentFilter(matches, f"CASE WHEN {readable} THEN {truth.sql} END", self.values)

    # ---- joining ------------------------------------------------------------------------------------

    def negated(self, truth: Truth) -> Truth:
        """1 for 0, 0 for 1."""
        return _limited(f"(NOT {truth.sql})", truth)

    def all_of(self, truths: Sequence[Truth]) -> Truth:
        """`all` of them, each looked at only if those before it are true."""
        return self._in_turn(truths, "AND", 1)

    def any_of(self, truths: Sequence[Truth]) -> Truth:
        """`any` of them, each looked at only if those before it are false."""
        return self._in_turn(truths, "OR", 0)

    def _in_turn(self, truths: Sequence[Truth], word: str, going_on: int) -> Truth:
        if len(truths) < 2:
            return truths[0] if truths else (YES if going_on else NO)
        if not any(truth.raises for truth in truths[:-1]):
            return _limited(f"({f' {word} '.join(truth.sql for truth in truths)})", *truths)
        half = len(truths) // 2
        first = self._in_turn(truths[:half], word, going_on)
        rest = self._in_turn(truths[half:], word, going_on)
        if not first.raises:
            return _limited(f"({first.sql} {word} {rest.sql})", first, rest)
        # NULL AND 0 is 0 in SQL: the error that comes first would be lost.
        end = 1 - going_on
        return _limited(
            f"(CASE {first.sql} WHEN {going_on} THEN {rest.sql} WHEN {end} THEN {end} END)", first, rest
        )

    # ---- values in metadata ---------------------------------------------------------------------------

    def place(self, *keys: str) -> str | None:
        """Where dicts in metadata have these keys, one in the other; None for keys that paths cannot have."""
        if not all(keys) or any('"' in key or "\0" in key for key in keys):
            return None
        # Old SQLite compare keys as they are written, new ones what they mean: json.dumps wrote both.
        return f"metadata, {self.bound(''.join(['$', *(f'.{json.dumps(key)}' for key in keys)]))}"

    def exists(self, place: str | None) -> Truth:
        """Whether anything is there."""
        return UNDECIDED if place is None else self._leaf(f"(json_type({place}) IS NOT NULL)", False)

    def value(self, place: str | None, cases: Cases, *, raises: bool = False) -> Truth:
        """What the cases say of the value there; a missing one is null."""
        if place is None:
            return UNDECIDED
        said = _said(f"coalesce(json_type({place}), 'null')", f"json_extract({place})", cases)
        return self._leaf(f"nullif({said}, 2)", raises)

    def any_value(self, place: str | None, cases: Cases, *, raises: bool = False) -> Truth:
        """What the cases say of the value there, or of any element if it is a list; 0 of a missing one."""
        if place is None:
            return UNDECIDED
        elements = f"coalesce((SELECT max({_said('type', 'atom', cases)}) FROM json_each({place})), 0)"  # noqa: S608
        whole = {**cases, "array": cases.get("array", elements)}
        said = _said(f"json_type({place})", f"json_extract({place})", whole)
        return self._leaf(f"nullif({said}, 2)", raises)

    def column(self, name: str, cases: Cases, *, raises: bool = False) -> Truth:
        """What the cases say of a column of text."""
        said = _said(f"CASE WHEN {name} IS NULL THEN 'null' ELSE 'text' END", name, cases)
        return self._leaf(f"CASE WHEN instr({name}, char(0)) THEN NULL ELSE nullif({said}, 2) END", raises)

    def among(self, operands: Sequence[Any], *, true_is_1: bool) -> dict[str, str]:
        """The cases of a value that is equal to one of the operands, as Python has it.

        Parameters
        ----------
        operands : sequence
            JSON values; with anything else among them, nothing is decided.
        true_is_1 : bool
            Whether true is equal to 1, and false to 0.
        """
        if not all(map(_plain, operands)):
            return dict.fromkeys(TYPES, ASK)
        cases = {}
        bools = {value for value in operands if isinstance(value, bool)}
        numbers = [value for value in operands if isinstance(value, int | float)]
        if true_is_1:
            bools = {value for value in (True, False) if value in numbers}
        else:
            numbers = [value for value in numbers if not isinstance(value, bool)]
        if None in operands:
            cases["null"] = "1"
        for value in bools:
            cases[json.dumps(value)] = "1"
        if numbers:
            cases["integer"] = _exact(self._listed(filter(_is_int64, numbers), int))
            # Equal floats are written alike, and then read alike.
            cases["real"] = f"{ASK} * ({self._listed(filter(_is_float, numbers), float)})"
        if texts := [value for value in operands if isinstance(value, str)]:
            cases["text"] = self._listed(texts, str)
        if any(isinstance(value, list) for value in operands):
            cases["array"] = ASK
        if any(isinstance(value, dict) for value in operands):
            cases["object"] = ASK
        return cases

    def ordered(self, sign: str, operand: Any) -> dict[str, str]:
        """The cases of numbers, or text, before or after an operand: `sign` is <, <=, > or >=."""
        if isinstance(operand, str):
            return {"text": f"({{}} {sign} {self.bound(operand)})" if _plain(operand) else ASK}
        if not (_plain(operand) and (isinstance(operand, float) or _is_int64(operand))):
            return {"integer": ASK, "real": ASK}
        close = abs(operand) * _CLOSE + _TINY
        return {
            "integer": _exact(f"({{}} {sign} {self.bound(operand)})"),
            "real": outside(sign, self.bound(operand - close), self.bound(operand + close), "{}"),
        }

    def _listed(self, values: Iterable[Any], kind: type) -> str:
        listed = self.bound(json.dumps([*map(kind, values)]))
        return f"({{}} IN (SELECT value FROM json_each({listed})))"  # noqa: S608

    def bound(self, value: Any) -> str:
        """The name of a place for a value."""
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"

    def _leaf(self, sql: str, raises: bool) -> Truth:
        return UNDECIDED if len(self.values) > _MOST_VALUES else Truth(sql, raises)


def outside(sign: str, low: str, high: str, of: str) -> str:
    """The case of what is less than `low` or greater than `high`; between them, ask."""
    less, greater = ("1", "0") if sign in ("<", "<=") else ("0", "1")
    return f"CASE WHEN {of} < {low} THEN {less} WHEN {of} > {high} THEN {greater} ELSE {ASK} END"


def _said(kind: str, value: str, cases: Cases) -> str:
    """What cases say of a value of a JSON type, both given as SQL."""
    whens = " ".join(f"WHEN '{name}' THEN {case.replace('{}', value)}" for name, case in cases.items())
    return f"(CASE {kind} {whens} ELSE 0 END)" if whens else "0"


def _limited(sql: str, *parts: Truth) -> Truth:
    depth = 1 + max(part.depth for part in parts)
    return UNDECIDED if depth > _DEEPEST else Truth(sql, any(part.raises for part in parts), depth)


def _exact(case: str) -> str:
    """A case of whole numbers: those beyond 64 bits are floats to SQLite."""
    return f"CASE typeof({{}}) WHEN 'integer' THEN {case} ELSE {ASK} END"


def _plain(value: Any) -> bool:
    """Whether it is a JSON value that means to SQLite what it means to Python."""
    if type(value) is str:
        return "\0" not in value and value == value.encode(errors="ignore").decode()
    return type(value) in (bool, int, list, dict, NoneType) or (type(value) is float and isfinite(value))


def _is_int64(value: float) -> bool:
    return (isinstance(value, int) or value.is_integer()) and -(2**63) <= value < 2**63


def _is_float(value: float) -> bool:
    """Whether a number is a float's, exactly."""
    try:
        return float(value) == value
    except OverflowError:
        return False
