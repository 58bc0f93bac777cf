"""Types and ranges of the catalogue's cells: SQLite puts any type into any column, and bytes get damaged."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, TypeVar, get_args

from woh_faiss.validate import short

from . import schema

T = TypeVar("T")
#: A whole number that counts something.
COUNT = "a whole number of at least 0"
#: What a column may hold: a type, a union of types, or COUNT.
Kinds = Mapping[str, Any]

ITEM: Kinds = {
    "row": COUNT,
    "id": COUNT,
    "key": str | None,
    "tags": str | None,
    "round": COUNT,
    "trust": float | None,
    "crc": COUNT,
}
REMOVED: Kinds = {**ITEM, "removed": COUNT}
DEAD: Kinds = {"block": COUNT, "count": COUNT, "bits": bytes, "crc": COUNT}
TAG: Kinds = {"tag": str, "column": int | None, "count": COUNT}
VECTOR: Kinds = {"vector": bytes | None}
EARLY: Kinds = {"row": COUNT, "x": bytes}
METADATA_COLUMN: Kinds = {"slot": COUNT, "name": str, "type": str, "round": COUNT}
UNDO: Kinds = {"round": COUNT, "tags": str}
WERE: Kinds = {"tag": str, "column": int | None, "count": int | None}
ROUND: Kinds = {
    **{"round": COUNT, "time": float, "kind": str, "n": COUNT, "removed": COUNT, "ntotal": COUNT},
    **{"trained": COUNT, "first_row": COUNT, "end_row": COUNT, "checksum": str, "model": str | None},
    **{"model_digest": str | None, "chunk_hash": str, "seconds": float, "health": str | None},
}
#: A whole row of `rounds`.
ROUND_ROW: Kinds = {**ROUND, "id_sums": bytes, "crc": COUNT}
LEFT: Kinds = {"line": str, "round": COUNT, "time": float, "kept": COUNT}
ANN_FILE: Kinds = {
    **{"kind": str, "name": str, "sha256": str, "round": COUNT, "rows": COUNT},
    **{"parameters": dict, "recall": float},
}


def typed(table: str, row: tuple[Any, ...], kinds: Kinds) -> tuple[Any, ...]:
    """`row`, if its cells are of these kinds."""
    for (column, kind), value in zip(kinds.items(), row, strict=True):
        fits = is_count(value) if kind is COUNT else isinstance(value, kind)
        if not fits:
            wanted = kind if kind is COUNT else getattr(kind, "__name__", kind)
            raise sqlite3.DatabaseError(f"{table}.{column} is {short(value)}, expected {wanted}")
    return row


def all_typed(table: str, rows: Iterable[tuple[Any, ...]], kinds: Kinds) -> list[Any]:
    """Every row, if its cells are of these kinds."""
    found = list(rows)
    # Column by column, which is quick; what does not fit is then looked for row by row.
    if not all(map(_all_of, kinds.values(), zip(*found, strict=True))):
        found = [typed(table, row, kinds) for row in found]
    return found


def _all_of(kind: Any, column: tuple[Any, ...]) -> bool:
    """Whether every value is of just this kind, no subclass of it."""
    types = set(map(type, column))
    if kind is COUNT:
        return types == {int} and min(column) >= 0 and max(column) < 2**63
    return types <= set(get_args(kind) or (kind,))


def some(kinds: Kinds, *columns: str) -> Kinds:
    """The kinds of some columns of a table."""
    return {column: kinds[column] for column in columns}


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 on that SQLite could hold; True and False are none."""
    return type(value) is int and 0 <= value < 2**63


def parsed(where: str, text: Any, kind: type[T]) -> T:
    """The value of a cell that is JSON."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, not JSON") from error
    if not isinstance(value, kind):
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, expected a {kind.__name__}")
    return value


def texts(where: str, text: str | None) -> list[str]:
    """The tags of an item: a JSON array of text, None for none."""
    found = [] if text is None else parsed(where, text, list)
    if not all(isinstance(tag, str) for tag in found):
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, expected a list of text")
    return found


def were(text: str) -> list[tuple[str, int | None, int | None]]:
    """What a round found of the tags it touched: (tag, column, count) each, count None for a new tag."""
    entries = [listed("undo.tags", it) for it in parsed("undo.tags", text, list)]
    if not all(len(it) == len(WERE) for it in entries):
        raise sqlite3.DatabaseError(f"undo.tags is {short(text)}, expected [tag, column, count] each")
    return all_typed("undo", map(tuple, entries), WERE)


def of_texts(tags: Sequence[str]) -> str | None:
    """What `texts` reads; json.dumps would make an encoder for each item."""
    return f"[{', '.join(map(encode_basestring_ascii, tags))}]" if len(tags) else None


def numbers(where: str, text: str | None) -> dict[str, Any] | None:
    """The figures of a round: a JSON object of numbers, None for none."""
    if text is None:
        return None
    found = parsed(where, text, dict)
    if not all(
        isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
        for value in found.values()
    ):
        raise sqlite3.DatabaseError(f"{where} is {short(text)}, expected numbers")
    return found


def listed(where: str, value: Any) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        raise sqlite3.DatabaseError(f"{where} is {short(value)}, expected a list")
    return value


def ann_index(where: str, value: Any) -> dict[str, Any]:
    """What is known of an approximate index: the fields of `records.AnnIndex`; its name is no path."""
    if not isinstance(value, dict) or set(value) != set(ANN_FILE):
        raise sqlite3.DatabaseError(f"{where} holds {short(value)}, which is not an approximate index")
    typed(where, tuple(value[name] for name in ANN_FILE), ANN_FILE)
    named = re.fullmatch(schema.ANN_FILE, value["name"])
    if named is None or named[1] != value["kind"]:
        raise sqlite3.DatabaseError(f"{where} has the file {short(value['name'])} of {short(value['kind'])}")
    if not all(is_count(number) for number in value["parameters"].values()):
        raise sqlite3.DatabaseError(f"{where} has the parameters {short(value['parameters'])}")
    return value


def model_file(where: str, value: Any) -> str:
    """The name of a model file: never a path out of the folder."""
    if not isinstance(value, str) or not re.fullmatch(schema.MODEL_FILE, value):
        raise sqlite3.DatabaseError(f"{where} is {short(value)}, expected model-NUMBER.npz")
    return value
