"""Tags in a file of their own, one item after the other: .npz, Parquet, Arrow, JSON lines, or plain lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import damage, read_arrays
from woh_faiss.tags.tag_lists import TagLists

from .arrow import chunk_values, is_arrow, open_table
from .arrow_values import offers, tags_of
from .chunk import stored_tags
from .columns import Columns, Offer, choose
from .source import at

#: Bytes of the longest line.
_LONGEST = 64 << 20
#: Names of files with a JSON value a line.
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Side:
    """n items' tags, and ids and keys where the file has them.

    Attributes
    ----------
    read : callable
        Arguments of `Chunk.of` (tags, ids, keys) for so many items each.
    """

    where: str
    n: int
    columns: Columns
    read: Callable[[int], Iterator[dict[str, Any]]]


def open_side(path: Path, wanted: Columns) -> Side:
    """The tags in a file, by its first bytes; without known ones it is text, JSON by the end of its name.

    A line of text has the tags of an item as `TagLists.from_strings` reads them, none if it is empty. A line
    of JSON is a list of text, a text, or an object with the columns that `USUAL` names.

    Raises
    ------
    InputError
        The file is missing or damaged, or has no tags under a name that is known.
    """
    where = display_path(path)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise InputError(
            f"{where} {what}; give tags as .npz, Parquet, JSON lines, or text with a line an item"
        )
    wanted = wanted._replace(features="")
    with damage(where):
        with path.open("rb") as stream:
            start = stream.read(8)
        if is_arrow(start):
            return _table(path, wanted)
        if start.startswith(b"PK"):
            return _npz(path, where)
        if b"\0" in start:
            raise InputError(f"{where} is not text; give tags as .npz, Parquet, JSON lines or text lines")
        n = sum(1 for _ in _lines(path, where))
        if path.suffix.lower() in _JSON:
            return _json(path, where, n, wanted)
    return Side(where, n, Columns(), lambda size: _plain(path, where, size))


def _table(path: Path, wanted: Columns) -> Side:
    table = open_table(path)
    columns = choose(table.where, offers(table.schema), wanted, ("tags",))

    def read(size: int) -> Iterator[dict[str, Any]]:
        start = 0
        for part in table.tables(columns.named, size):
            yield chunk_values(part, columns, table.where, start)
            start += part.num_rows

    return Side(table.where, table.n, columns, read)


def _npz(path: Path, where: str) -> Side:
    arrays = read_arrays(path, "tags", ("tag_names", "ids", "keys"))
    with at(where, 0):
        tags = stored_tags({name: array for name, array in arrays.items() if name.startswith("tag")})
        assert tags is not None  # noqa: S101 - they were required; this tells mypy
        more = {name: arrays[name] for name in ("ids", "keys") if name in arrays}
        for name, array in more.items():
            if len(array) != len(tags):
                raise InputError(f"there are {len(array)} {name} for {len(tags)} items; give one each")

    def read(size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, len(tags), size):
            rows = slice(start, start + size)
            yield {"tags": tags.rows(rows).own()} | {name: array[rows] for name, array in more.items()}

    return Side(where, len(tags), Columns(), read)


def _plain(path: Path, where: str, size: int) -> Iterator[dict[str, Any]]:
    lines, start = _lines(path, where), 0
    while part := list(map(_taken, islice(lines, size))):
        with at(where, start):
            tags = TagLists.from_strings(part)
        yield {"tags": tags}
        start += len(part)


def _taken(line: str) -> str:
    budget.take(len(line) + validate.TEXT, "a chunk of its lines")
    return line


def _json(path: Path, where: str, n: int, wanted: Columns) -> Side:
    first = next(_values(path, where), None)
    columns = Columns()
    if isinstance(first, dict):
        columns = choose(where, [_offer(name, value) for name, value in first.items()], wanted, ("tags",))
    elif any(wanted):
        raise InputError(f"{where} has no columns: its lines are not objects; leave the --...-column out")

    def read(size: int) -> Iterator[dict[str, Any]]:
        values, start = _values(path, where), 0
        while part := list(islice(values, size)):
            with at(where, start):
                found = _of_values(part, columns)
            yield found
            start += len(part)

    return Side(where, n, columns, read)


def _offer(name: str, value: Any) -> Offer:
    kind = "other"
    if isinstance(value, str) or value is None:
        kind = "text"
    elif isinstance(value, list):
        kind = "words"
    elif isinstance(value, int) and not isinstance(value, bool):
        kind = "ints"
    return Offer(name, kind, {"text": "text", "words": "list", "ints": "number"}.get(kind, "other"))


def _of_values(part: list[Any], columns: Columns) -> dict[str, Any]:
    if columns.tags is None:
        for row, value in enumerate(part):
            if not isinstance(value, str | list | None):
                raise InputError(f"row {row} is {validate.short(value)}, expected a list of text, or a text")
        return {"tags": _tags(part, "tags")}
    for row, value in enumerate(part):
        if not isinstance(value, dict):
            raise InputError(f"row {row} is {validate.short(value)}, expected an object as in the first line")
    found: dict[str, Any] = {"tags": _tags([value.get(columns.tags) for value in part], columns.tags)}
    for parameter, name in (("ids", columns.id), ("keys", columns.key)):
        if name is not None:
            found[parameter] = [value.get(name) for value in part]
            kind = int if parameter == "ids" else (str, int)
            for row, value in enumerate(found[parameter]):
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise InputError(
                        f"row {row} has {validate.short(value)} for {name!r}; give every item one"
                    )
    if "keys" in found:
        found["keys"] = [str(key) for key in found["keys"]]
    return found


def _tags(rows: list[Any], name: str) -> TagLists:
    for row, value in enumerate(rows):
        if not isinstance(value, str | list | None) or not all(isinstance(tag, str) for tag in value or ""):
            raise InputError(
                f"tags of row {row} are {validate.short(value)}, expected text or a list of text"
            )
    if any(isinstance(row, list) for row in rows):  # a text among lists is split as if all were text
        rows = [TagLists.from_strings([row]).of_row(0) if isinstance(row, str) else row for row in rows]
    return tags_of(rows, name)


def _values(path: Path, where: str) -> Iterator[Any]:
    for number, line in enumerate(_lines(path, where), start=1):
        budget.take(20 * len(line), "a chunk of its lines")  # of brackets, each of which is a list
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: line {number} is {validate.short(line)}, not JSON") from error


def _lines(path: Path, where: str) -> Iterator[str]:
    """The lines of a file, without their ends."""
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST), b""), start=1):
            if len(line) == _LONGEST:
                raise InputError(
                    f"{where}: line {number} is longer than {_LONGEST >> 20} MiB; give a line an item"
                )
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InputError(f"{where}: line {number} is not UTF-8 text; save it as that") from None
            yield text.removesuffix("\n").removesuffix("\r")
