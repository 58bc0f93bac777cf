"""Texts to be encoded: a line each, or a column of a table, with what else the table says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import damage
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

from . import arrow_values as values
from .arrow import is_arrow, open_table
from .columns import Columns, choose, choose_one

#: Names of tables that are text.
_DELIMITED, _JSON = {".csv": ",", ".tsv": "\t"}, (".jsonl", ".ndjson")


class Texts(NamedTuple):
    """n texts, and of each its key or id and its tags, where the file has them.

    `column` is what the texts are called in their table, None for lines.
    """

    texts: list[str]
    keys: list[str] | None
    ids: list[int] | None
    tags: list[list[str]] | None
    column: str | None


def read_texts(path: Path, wanted: Columns, text: str | None, split_as: TagTexts) -> Texts:
    """The texts in a file: a line each, or a column of Parquet, Arrow, CSV, TSV or JSON lines.

    Parameters
    ----------
    path : Path
    wanted : Columns
        Names of the columns of tags, ids and keys; those not named are guessed.
    text : str, optional
        Name of the column of texts; without it the usual names of captions.
    split_as : TagTexts
        How texts of a column of tags become tags.

    Raises
    ------
    InputError
        The file is missing or damaged, a text is missing, or the columns are not clear.
    """
    where = display_path(path)
    if not path.is_file():
        raise InputError(f"{where} is no file; give texts, a line each, or a table with a column of them")
    with budget.reading(where), damage(where):
        with path.open("rb") as stream:
            start = stream.read(8)
        table = _table(path, start)
        if table is None:
            if text:
                raise InputError(f"{where} has no columns: its lines are the texts; leave --text-column out")
            return Texts(_lines(path, where), None, None, None, None)
        return _of_table(table, where, wanted, text, split_as)


def _table(path: Path, start: bytes) -> Any:
    """The whole file as an Arrow table; None for lines of text."""
    if is_arrow(start):
        table = open_table(path)
        names = [
            name
            for name in table.schema.names
            if values.kind(table.schema.field(name).type) not in ("vectors", "other")
        ]
        return next(table.tables(names, None), table.schema.empty_table().select(names))
    suffix = path.suffix.lower()
    if suffix not in (*_DELIMITED, *_JSON):
        return None
    budget.take(4 * path.stat().st_size, "a table of texts")
    from pyarrow import csv, json

    if suffix in _JSON:
        return json.read_json(path)
    return csv.read_csv(
        path, parse_options=csv.ParseOptions(delimiter=_DELIMITED[suffix], newlines_in_values=True)
    )


def _lines(path: Path, where: str) -> list[str]:
    budget.take(2 * path.stat().st_size, "its lines")
    try:
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; save it as that") from None
    budget.take(validate.TEXT * len(lines), "its lines")
    return _full([line.removesuffix("\r") for line in lines if path.stat().st_size], where)


def _of_table(table: Any, where: str, wanted: Columns, text: str | None, split_as: TagTexts) -> Texts:
    offered = values.offers(table.schema)
    name = text or _caption(where, offered)
    choose_one(where, "tags", offered, name)  # that it is there, and text
    rest = [offer for offer in offered if offer.name != name]
    columns = choose(where, rest, wanted._replace(features=""))
    known = values_of(table, name, where)
    keys = None if columns.key is None else values.keys(table.column(columns.key))
    ids = None if columns.id is None else values.ids(table.column(columns.id)).tolist()
    tags: list[list[str]] | None = None
    if columns.tags is not None:
        lists: TagLists = values.tags(table.column(columns.tags), columns.tags, split_as)
        tags = [lists.of_row(row) for row in range(len(lists))]
    return Texts(_full(known, where), keys, ids, tags, name)


def values_of(table: Any, name: str, where: str) -> list[str]:
    """The texts of a column; InputError where one is missing, or the column holds lists."""
    found = table.column(name).to_pylist()
    for row, value in enumerate(found):
        if not isinstance(value, str):
            raise InputError(f"{where}: {name!r} of row {row} is {validate.short(value)}, expected text")
    return [str(value) for value in found]


def _caption(where: str, offered: Any) -> str:
    from .columns import USUAL, told

    usual = [
        offer.name for offer in offered if offer.kind == "text" and offer.name.casefold() in USUAL["tags"][1]
    ]
    if len(usual) != 1:
        why = "several columns that may be the texts" if usual else "no column of texts under a usual name"
        raise InputError(f"{where} has {why}; it has {told(offered)}; say which with --text-column")
    return str(usual[0])


def _full(texts: list[str], where: str) -> list[str]:
    for row, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"{where}: text {row} is empty; give every item one")
    if not texts:
        raise InputError(f"{where} has no texts; give at least one")
    return texts
