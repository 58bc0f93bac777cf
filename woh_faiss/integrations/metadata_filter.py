"""Filters of metadata as vector stores have them: values, and operators such as $gt and $in, in nested dicts.

A filter is checked whole before the first document is looked at. `compiled` says what it means;
`document_filter` says as much of that in SQL as SQLite can tell.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

from woh_faiss.errors import InputError
from woh_faiss.validate import short

from .document import check_json
from .document_filter import ASK, DocumentFilter, Truth, Truths

#: Whether metadata are an answer.
Match = Callable[[Mapping[str, Any]], bool]

_ORDERS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
#: Operators on a value, and those that join filters.
OPERATORS = ("$eq", "$ne", *_ORDERS, "$in", "$nin", "$exists", "$not")
JOINS = ("$and", "$or", "$not")
_MISSING = object()


def compiled(wanted: Any) -> Match:
    """A function of metadata, true where `wanted` is met.

    Parameters
    ----------
    wanted : dict
        ``{key: value}``, all of which must hold; a value may be ``{operator: operand}`` with `OPERATORS`, and
        ``{"$and": [...]}``, ``{"$or": [...]}``, ``{"$not": {...}}`` join filters. A list in the metadata
        meets a condition if it or one of its elements does; what is missing meets $ne, $nin and $not only.

    Raises
    ------
    InputError
        An operator or operand is not one of these. The function raises it where metadata cannot be compared
        with an operand: text and numbers have no order.
    """
    if not isinstance(wanted, Mapping):
        raise InputError(f"filter is a {type(wanted).__name__}, expected a function of a Document or a dict")
    check_json(dict(wanted), "filter")
    parts = [_part(key, value) for key, value in wanted.items()]
    return lambda metadata: all(part(metadata) for part in parts)


def _part(key: str, value: Any) -> Match:
    if key in ("$and", "$or"):
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"filter: {key} has {short(value)}, expected a list of filters")
        parts = [compiled(part) for part in value]
        every = all if key == "$and" else any
        return lambda metadata: every(part(metadata) for part in parts)
    if key == "$not":
        inner = compiled(value)
        return lambda metadata: not inner(metadata)
    if key.startswith("$"):
        raise InputError(f"filter: operator {short(key)} is not known, expected one of {', '.join(JOINS)}")
    condition = _condition(key, value)
    return lambda metadata: condition(metadata.get(key, _MISSING))


def _condition(key: str, value: Any) -> Callable[[Any], bool]:
    """A function of the value under `key`."""
    if isinstance(value, list | tuple):
        raise InputError(
            f'filter: {short(key)} is the list {short(value)}; write {{"$in": [...]}} for any of them, or '
            '{"$eq": [...]} for that very list'
        )
    if not _has_operators(value):
        return _compared("$eq", key, value)
    conditions = [_compared(name, key, operand) for name, operand in value.items()]
    return lambda held: all(condition(held) for condition in conditions)


def _compared(name: str, key: str, operand: Any) -> Callable[[Any], bool]:
    if name not in OPERATORS:
        raise InputError(
            f"filter: operator {short(name)} of {short(key)} is not known, expected one of "
            f"{', '.join(OPERATORS)}"
        )

    def refused(expected: str) -> InputError:
        return InputError(f"filter: {name} of {short(key)} has {short(operand)}, expected {expected}")

    if name == "$exists":
        if not isinstance(operand, bool):
            raise refused("true or false")
        return lambda held: (held is not _MISSING) == operand
    if name == "$not":
        if not isinstance(operand, Mapping):
            raise refused("a dict of operators")
        inner = _condition(key, operand)
        return lambda held: not inner(held)
    if name in _ORDERS:
        if isinstance(operand, bool) or not isinstance(operand, int | float | str):
            raise refused("a number or text")
        return _any_of(lambda held: _ordered(name, key, held, operand))
    if name in ("$in", "$nin"):
        if not isinstance(operand, list | tuple):
            raise refused("a list of values")
        among = [_stored(value) for value in operand]
        found = _any_of(lambda held: any(_equal(held, value) for value in among))
    else:
        value = _stored(operand)
        found = _any_of(lambda held: _equal(held, value))
    return found if name in ("$eq", "$in") else lambda held: not found(held)


def _has_operators(value: Any) -> bool:
    return isinstance(value, Mapping) and any(name.startswith("$") for name in value)


def _any_of(condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The same of a value, or of any element of a list; false of what is missing."""

    def holds(held: Any) -> bool:
        if held is _MISSING:
            return False
        return (isinstance(held, list) and any(map(condition, held))) or condition(held)

    return holds


def _stored(value: Any) -> Any:
    """A value as metadata hold it."""
    return json.loads(json.dumps(value))


def _equal(held: Any, value: Any) -> bool:
    return bool(held == value) and isinstance(held, bool) == isinstance(value, bool)  # True is not 1


def _ordered(name: str, key: str, held: Any, operand: Any) -> bool:
    if held is None or isinstance(held, list):
        return False
    if isinstance(held, bool | dict) or isinstance(held, str) != isinstance(operand, str):
        raise InputError(
            f"filter: {name} of {short(key)} compares {short(operand)} with {short(held)} of a document; "
            "give a value of that type, or store one type"
        )
    return bool(_ORDERS[name](held, operand))


# ---- as SQL ------------------------------------------------------------------------------------------------


def document_filter(wanted: Any) -> DocumentFilter:
    """What `compiled` means, for entries, and InputError as there."""
    matches, truths = compiled(wanted), Truths()
    return truths.document_filter(_truth(truths, wanted), lambda entry: matches(entry.metadata))


def _truth(truths: Truths, wanted: Mapping[str, Any]) -> Truth:
    parts = []
    for key, value in wanted.items():
        if key in ("$and", "$or"):
            joined = truths.all_of if key == "$and" else truths.any_of
            parts.append(joined([_truth(truths, part) for part in value]))
        elif key == "$not":
            parts.append(truths.negated(_truth(truths, value)))
        else:
            parts.append(_truth_at(truths, truths.place(key), value))
    return truths.all_of(parts)


def _truth_at(truths: Truths, place: str | None, value: Any) -> Truth:
    """Of a condition on the value at a place."""
    if not _has_operators(value):
        return _truth_of(truths, place, "$eq", value)
    return truths.all_of([_truth_of(truths, place, name, operand) for name, operand in value.items()])


def _truth_of(truths: Truths, place: str | None, name: str, operand: Any) -> Truth:
    if name == "$exists":
        there = truths.exists(place)
        return there if operand else truths.negated(there)
    if name == "$not":
        return truths.negated(_truth_at(truths, place, operand))
    if name in _SIGNS:
        # What is of another type is an error, but null and lists, which have no order.
        cases = dict.fromkeys(("true", "false", "integer", "real", "text", "object"), ASK)
        return truths.any_value(place, cases | truths.ordered(_SIGNS[name], _stored(operand)), raises=True)
    operands = [_stored(value) for value in (operand if name in ("$in", "$nin") else [operand])]
    found = truths.any_value(place, truths.among(operands, true_is_1=False))
    return found if name in ("$eq", "$in") else truths.negated(found)
