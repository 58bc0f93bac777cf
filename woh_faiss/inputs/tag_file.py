"""Tags in a file of their own, one item after the other: .npz, Parquet, Arrow, JSON, CSV, or plain lines."""

from __future__ import annotations

import csv
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
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

from .arrow import chunk_values, is_arrow, open_table
from .arrow_values import key_text, offers, tags_of
from .chunk import stored_tags
from .columns import Columns, Offer, choose, usual
from .source import at

#: Bytes of the longest line.
_LONGEST = 64 << 20
#: Names of files with a JSON value a line, or an array of them.
_JSON = (".jsonl", ".ndjson", ".json")
#: Names of files with a header and columns, and what is between them, the likeliest first.
_TABLES = {".csv": ",;\t", ".tsv": "\t"}


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


def open_side(path: Path, wanted: Columns, split_as: TagTexts) -> Side:
    """The tags in a file, by its first bytes; without known ones it is text, JSON or CSV by its name's end.

    A line of text has the tags of an item as `TagLists.from_strings` reads them, none if it is empty. A line
    of JSON, or an entry of its one array, is a list of text, a text, or an object with the columns that
    `USUAL` names. CSV has such columns in its first line, or one column of tags and no header.

    Raises
    ------
    InputError
        The file is missing or damaged, or has no tags under a name that is known.
    """
    where = display_path(path)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise InputError(
            f"{where} {what}; give tags as .npz, Parquet, JSON, CSV, or text with a line an item"
        )
    wanted = wanted._replace(features="")
    with damage(where):
        with path.open("rb") as stream:
            start = stream.read(8)
        if is_arrow(start):
            return _table(path, wanted, split_as)
        if start.startswith(b"PK"):
            return _npz(path, where, split_as)
        if b"\0" in start:
            raise InputError(f"{where} is not text; give tags as .npz, Parquet, JSON, CSV or text lines")
        if path.suffix.lower() in _JSON:
            return _json(path, where, wanted, split_as)
        if path.suffix.lower() in _TABLES:
            return _csv(path, where, wanted, split_as)
        n = sum(1 for _ in _lines(path, where))
    return Side(where, n, Columns(), lambda size: _plain(_lines(path, where), where, size, split_as))


def _table(path: Path, wanted: Columns, split_as: TagTexts) -> Side:
    table = open_table(path)
    columns = choose(table.where, offers(table.schema), wanted, ("tags",))

    def read(size: int) -> Iterator[dict[str, Any]]:
        start = 0
        for part in table.tables(columns.named, size):
            yield chunk_values(part, columns, table.where, start, split_as)
            start += part.num_rows

    return Side(table.where, table.n, columns, read)


def _npz(path: Path, where: str, split_as: TagTexts) -> Side:
    arrays = read_arrays(path, "tags", ("tag_names", "ids", "keys"))
    with at(where, 0):
        of_tags = {name: array for name, array in arrays.items() if name.startswith("tag")}
        tags = stored_tags(of_tags, split_as)
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


def _plain(lines: Iterator[str], where: str, size: int, split_as: TagTexts) -> Iterator[dict[str, Any]]:
    start = 0
    while part := list(map(_taken, islice(lines, size))):
        with at(where, start):
            tags = TagLists.from_strings(part, split_as)
        yield {"tags": tags}
        start += len(part)


def _taken(line: str) -> str:
    budget.take(len(line) + validate.TEXT, "a chunk of its lines")
    return line


def _csv(path: Path, where: str, wanted: Columns, split_as: TagTexts) -> Side:
    delimiters = _TABLES[path.suffix.lower()]
    for delimiter in delimiters:
        header = next(_records(path, where, delimiter), [])
        if wanted.tags in header if wanted.tags else usual("tags", header):
            break
    else:
        n = 0
        for record in _records(path, where, delimiters[0]):
            if len(record) > 1:
                raise InputError(
                    f"{where} has {len(record)} columns in row {n} and no header with one of tags; begin it "
                    "with a line of names, such as id,tags, or say with --tags-column which are the tags"
                )
            n += 1
        return Side(
            where, n, Columns(), lambda size: _plain(_first_cells(path, where), where, size, split_as)
        )
    if len(set(header)) < len(header):
        raise InputError(f"{where} has a name twice in its first line: {validate.listed(header)}; rename one")
    n = 0
    whole = dict.fromkeys(header, True)
    for record in _records(path, where, delimiter):
        if len(record) != len(header) and (record or len(header) > 1):
            raise InputError(
                f"{where}: row {n} has {len(record)} columns, the first line {len(header)}; quote what has a "
                f"{delimiter!r} in it"
            )
        if n:
            whole |= {name: False for name, cell in zip(header, record, strict=False) if not _is_whole(cell)}
        n += 1
    offered = [Offer(name, "ints" if whole[name] and n > 1 else "text", "text") for name in header]
    columns = choose(where, offered, wanted, ("tags",))

    def read(size: int) -> Iterator[dict[str, Any]]:
        records, start = islice(_records(path, where, delimiter), 1, None), 0
        while part := [dict(zip(header, record, strict=False)) for record in islice(records, size)]:
            with at(where, start):
                name = columns.tags or ""
                found: dict[str, Any] = {"tags": tags_of([row.get(name) for row in part], name, split_as)}
                if columns.id is not None:
                    found["ids"] = [int(row[columns.id]) for row in part]
                if columns.key is not None:
                    found["keys"] = [row[columns.key] for row in part]
            yield found
            start += len(part)

    return Side(where, n - 1, columns, read)


def _first_cells(path: Path, where: str) -> Iterator[str]:
    delimiter = _TABLES[path.suffix.lower()][0]
    return (record[0] if record else "" for record in _records(path, where, delimiter))


def _is_whole(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) < 20


def _records(path: Path, where: str, delimiter: str) -> Iterator[list[str]]:
    lines = (f"{_taken(line)}\n" for line in _lines(path, where))
    try:
        yield from csv.reader(lines, delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise InputError(f"{where} is not CSV ({error}); write it again, commas in quotes") from None


def _json(path: Path, where: str, wanted: Columns, split_as: TagTexts) -> Side:
    values = _document(path, where)
    n = sum(1 for _ in _lines(path, where)) if values is None else len(values)
    first = next(_values(path, where) if values is None else iter(values), None)
    columns = Columns()
    if isinstance(first, dict):
        columns = choose(where, [_offer(name, value) for name, value in first.items()], wanted, ("tags",))
    elif any(wanted):
        raise InputError(f"{where} has no columns: its items are not objects; leave the --...-column out")

    def read(size: int) -> Iterator[dict[str, Any]]:
        rest, start = _values(path, where) if values is None else iter(values), 0
        while part := list(islice(rest, size)):
            with at(where, start):
                found = _of_values(part, columns, split_as)
            yield found
            start += len(part)

    return Side(where, n, columns, read)


def _document(path: Path, where: str) -> list[Any] | None:
    """The items of a file that is one JSON array, on one line or many; None for a value a line."""
    first = next(_lines(path, where), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        value = None
        if first.strip()[:1] not in ("[", "{") and first.strip():
            return None  # says which line is wrong
    else:
        several = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
        array = several or (isinstance(value, list) and path.suffix.lower() == ".json")
        if not array or next(islice(_lines(path, where), 1, None), "").strip():
            return None
    budget.take(20 * path.stat().st_size, "the whole of it")
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; save it as that") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is neither a JSON array nor JSON lines ({error}); give an array of items, or one a line"
        ) from None
    if not isinstance(value, list):
        raise InputError(f"{where} is one JSON object; give an array of items, or an item a line")
    return value


def _offer(name: str, value: Any) -> Offer:
    kind = "other"
    if isinstance(value, str) or value is None:
        kind = "text"
    elif isinstance(value, list):
        kind = "words"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        kind = "ints" if isinstance(value, int) else "floats"
    told = {"text": "text", "words": "list", "ints": "number", "floats": "number"}
    return Offer(name, kind, told.get(kind, "other"))


def _of_values(part: list[Any], columns: Columns, split_as: TagTexts) -> dict[str, Any]:
    if columns.tags is None:
        for row, value in enumerate(part):
            if not isinstance(value, str | list | None):
                raise InputError(f"row {row} is {validate.short(value)}, expected a list of text, or a text")
        return {"tags": _tags(part, "tags", split_as)}
    for row, value in enumerate(part):
        if not isinstance(value, dict):
            raise InputError(f"row {row} is {validate.short(value)}, expected an object as in the first line")
    found: dict[str, Any] = {
        "tags": _tags([value.get(columns.tags) for value in part], columns.tags, split_as)
    }
    for parameter, name in (("ids", columns.id), ("keys", columns.key)):
        if name is not None:
            found[parameter] = [value.get(name) for value in part]
            kind = (int, float) if parameter == "ids" else (str, int, float)
            for row, value in enumerate(found[parameter]):
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise InputError(
                        f"row {row} has {validate.short(value)} for {name!r}; give every item one"
                    )
    if "ids" in found:
        whole = (isinstance(id_, float) and id_.is_integer() and abs(id_) <= 2**53 for id_ in found["ids"])
        found["ids"] = [int(id_) if is_ else id_ for id_, is_ in zip(found["ids"], whole, strict=True)]
    if "keys" in found:
        found["keys"] = [key_text(key) for key in found["keys"]]
    return found


def _tags(rows: list[Any], name: str, split_as: TagTexts) -> TagLists:
    for row, value in enumerate(rows):
        if not isinstance(value, str | list | None) or not all(isinstance(tag, str) for tag in value or ""):
            raise InputError(
                f"tags of row {row} are {validate.short(value)}, expected text or a list of text"
            )
    if any(isinstance(row, list) for row in rows):  # a text among lists is split as if all were text
        texts = TagLists.from_strings([row if isinstance(row, str) else "" for row in rows], split_as)
        rows = [texts.of_row(at) if isinstance(row, str) else row for at, row in enumerate(rows)]
    return tags_of(rows, name, split_as)


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
