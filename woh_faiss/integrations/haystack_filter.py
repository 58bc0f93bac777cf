"""Haystack's filters as SQL, as far as SQLite can tell; the rest is Haystack's own code's to say."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from .document import Entry
from .document_filter import ASK, UNDECIDED, Cases, DocumentFilter, Truth, Truths, outside

_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
#: Columns of what a field of a document has.
_COLUMNS = {"id": "id", "content": "text"}
#: Text that may be a date; text that is one to SQLite and Python alike: a day, and perhaps a time and a zone.
_MAYBE_DATE = "atom GLOB '????-??-??*'"
_DAY = "substr(atom, 1, 10)"
_DATE = (
    "atom GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' AND atom >= '0001'"
    " AND date(substr(atom, 1, 10), '+0 days') = substr(atom, 1, 10)"
    " AND (length(atom) = 10 OR (substr(atom, 11, 1) IN ('T', ' ') AND substr(atom, 12, 2) < '24'"
    " AND substr(atom, 12) NOT GLOB '*[^0-9:.Z+-]*' AND datetime(atom) IS NOT NULL))"
)
#: A case in which the value is computed once, as atom: with the LIMIT it is not put in each place.
_ONCE = "(SELECT {} FROM (SELECT {{}} AS atom LIMIT 1))"
#: Dates further apart have the same order in any zones, and where one of them has none.
_CLOSE = timedelta(days=2)


def document_filter(
    filters: Any, fields: Collection[str], matches: Callable[[Entry], bool]
) -> DocumentFilter:
    """What Haystack's filters say, for entries.

    Parameters
    ----------
    filters : dict
        Whatever is wrong with it, `matches` raises the error.
    fields : collection of str
        Names of the fields of a Document; other names in filters are keys of `meta`.
    matches : callable
        Whether they match an entry: Haystack's own code.
    """
    truths = Truths()
    return truths.document_filter(_truth(truths, filters, fields), matches)


def _truth(truths: Truths, condition: Any, fields: Collection[str]) -> Truth:
    if type(condition) is not dict or "operator" not in condition:
        return UNDECIDED
    if "field" in condition:
        return _compared(truths, condition, fields) if "value" in condition else UNDECIDED
    if type(condition.get("conditions")) is not list or condition["operator"] not in ("AND", "OR", "NOT"):
        return UNDECIDED
    parts = [_truth(truths, part, fields) for part in condition["conditions"]]
    if condition["operator"] == "OR":
        return truths.any_of(parts)
    every = truths.all_of(parts)
    return truths.negated(every) if condition["operator"] == "NOT" else every


def _compared(truths: Truths, condition: dict[str, Any], fields: Collection[str]) -> Truth:
    name, sign, value = condition["field"], condition["operator"], condition["value"]
    if type(name) is not str or type(sign) is not str:
        return UNDECIDED
    cases: Cases
    if sign in _ORDERS:
        cases, raises = ({}, False) if value is None else (_ordered(truths, sign, value), True)
    elif sign in ("==", "!="):
        cases, raises = _among(truths, [value]), False
    elif sign in ("in", "not in") and type(value) is list:
        cases, raises = _among(truths, value), False
    else:
        return UNDECIDED
    if name in _COLUMNS:
        found = truths.column(_COLUMNS[name], cases, raises=raises)
    elif name in fields:
        return UNDECIDED
    elif "." not in name:
        found = truths.value(truths.place(name), cases, raises=raises)
    elif name.startswith("meta."):
        found = truths.value(truths.place(*name.split(".")[1:]), cases, raises=raises)
    else:
        return UNDECIDED
    return truths.negated(found) if sign in ("!=", "not in") else found


def _among(truths: Truths, operands: list[Any]) -> dict[str, str]:
    """The cases of a value that is equal to an operand, or is text of the same time."""
    dates = [value for value in operands if isinstance(value, datetime) or _maybe_date(value)]
    cases = truths.among([value for value in operands if type(value) is not datetime], true_is_1=True)
    if dates and cases.get("text") != ASK:
        return {
            **cases,
            "text": f"CASE WHEN {cases.get('text', 0)} THEN 1 ELSE {_same_time(truths, dates)} END",
        }
    return cases


def _same_time(truths: Truths, dates: list[Any]) -> str:
    """The case of text that may be the same time as one of the dates."""
    window = _window(truths, dates)
    if window is None:
        return _ONCE.format(f"CASE WHEN {_MAYBE_DATE} THEN {ASK} ELSE 0 END")
    low, high = window
    far = f"{_DATE} AND ({_DAY} < {low} OR {_DAY} > {high})"
    return _ONCE.format(f"CASE WHEN NOT ({_MAYBE_DATE}) THEN 0 WHEN {far} THEN 0 ELSE {ASK} END")


def _ordered(truths: Truths, sign: str, value: Any) -> dict[str, str]:
    """The cases of numbers and dates before or after a value; what is neither may be an error."""
    cases = dict.fromkeys(("true", "false", "integer", "real", "text", "array", "object"), ASK)
    if type(value) in (bool, int) or (type(value) is float and isfinite(value)):
        bools = {"true": int(_ORDERS[sign](True, value)), "false": int(_ORDERS[sign](False, value))}
        return cases | {name: str(holds) for name, holds in bools.items()} | truths.ordered(sign, value)
    if type(value) in (str, datetime) and (window := _window(truths, [value])):
        cases["text"] = _ONCE.format(f"CASE WHEN {_DATE} THEN {outside(sign, *window, _DAY)} ELSE {ASK} END")
    return cases


def _window(truths: Truths, dates: list[Any]) -> tuple[str, str] | None:
    """The days, bound, before and after which no time is one of the dates in any zone; None if unknown."""
    try:
        days = [_parsed(value).date() for value in dates]
        return truths.bound(str(min(days) - _CLOSE)), truths.bound(str(max(days) + _CLOSE))
    except (ValueError, OverflowError):
        return None


def _parsed(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def _maybe_date(value: Any) -> bool:
    return isinstance(value, str) and len(value) >= 10 and value[4] == value[7] == "-"
