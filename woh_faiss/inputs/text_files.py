"""Texts to be encoded: a line each, or a column of a table, with what else the table says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import damage
from woh_faiss.io.path_kind import path_kind
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

from . import arrow_values as values
from .columns import Columns, check_metadata, choose, choose_one
from .text_table import read_table


class Texts(NamedTuple):
    """n texts, and of each its key or id and its tags, where the file has them; Arrow arrays of metadata.

    `told` is a line about the columns that were taken, None for lines.
    """

    texts: list[str]
    keys: list[str] | None
    ids: list[int] | None
    tags: list[list[str]] | None
    metadata: dict[str, Any]
    told: str | None


def read_texts(
    path: Path, wanted: Columns, text: str | None, split_as: TagTexts, metadata: Sequence[str] = ()
) -> Texts:
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
    metadata : sequence of str
        Names of columns that go along.

    Raises
    ------
    InputError
        The file is missing or damaged, a text is missing, or the columns are not clear.
    """
    where = display_path(path)
    if path_kind(path) != "file":
        raise InputError(f"{where} is no file; give texts, a line each, or a table with a column of them")
    with budget.reading(where), damage(where):
        table = read_table(path, where)
        if table is None:
            if text:
                raise InputError(f"{where} has no columns: its lines are the texts; leave --text-column out")
            if metadata:
                raise InputError(f"{where} has no columns for --metadata: its lines are the texts")
            return Texts(_lines(path, where), None, None, None, {}, None)
        return _of_table(table, where, wanted, text, split_as, metadata)


def _lines(path: Path, where: str) -> list[str]:
    budget.take(2 * path.stat().st_size, "its lines")
    try:
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; save it as that") from None
    budget.take(validate.TEXT * len(lines), "its lines")
    return _full([line.removesuffix("\r") for line in lines if path.stat().st_size], where)


def _of_table(
    table: Any,
    where: str,
    wanted: Columns,
    text: str | None,
    split_as: TagTexts,
    metadata: Sequence[str],
) -> Texts:
    offered = values.offers(table.schema)
    name = text or _caption(where, offered)
    choose_one(where, "tags", offered, name)  # that it is there, and text
    check_metadata(where, offered, metadata)
    rest = [offer for offer in offered if offer.name != name]
    columns = choose(where, rest, wanted._replace(features=""))
    known = values_of(table, name, where)
    keys = None if columns.key is None else values.keys(table.column(columns.key))
    ids = None if columns.id is None else values.ids(table.column(columns.id)).tolist()
    tags: list[list[str]] | None = None
    if columns.tags is not None:
        lists: TagLists = values.tags(table.column(columns.tags), columns.tags, split_as)
        tags = [lists.of_row(row) for row in range(len(lists))]
    found = {"texts": name, "tags": columns.tags, "id": columns.id, "key": columns.key}
    told = ", ".join(f"{role} from {column!r}" for role, column in found.items() if column is not None)
    more = {column: table.column(column).combine_chunks() for column in metadata}
    return Texts(_full(known, where), keys, ids, tags, more, f"{where}: {told}")


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
