"""woh-index items: the items of an index, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import one_line_errors
from .options import index_option, json_option, print_json, print_line, say, where_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from woh_faiss import WOHIndex
    from woh_faiss.store import Item

#: Items that are looked up at once.
BATCH = 1000
#: Fields of an item that JSON has.
SHOWN = ("id", "key", "tags", "round", "trust")


@click.command()
@index_option
@click.option("--id", "ids", type=int, multiple=True, help="The item of this id; may be given many times.")
@click.option("--key", "keys", multiple=True, help="The item of this key; may be given many times.")
@click.option("--match", metavar="TEXT", help="Only items whose key has this in it, in any case.")
@where_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N only.")
@click.option("--count", is_flag=True, help="Print how many there are, and nothing of them.")
@json_option
@one_line_errors
def items(
    index_path: Path,
    ids: Sequence[int],
    keys: Sequence[str],
    match: str | None,
    where: str | None,
    limit: int | None,
    count: bool,
    as_json: bool,
) -> None:
    """List items in the order they were appended: id, key, tags and metadata, separated by tabs.

    With --id and --key those items, in the order given, ids first. A JSON line is one item: id, key, tags,
    round, trust, how far its tags are trusted (0 to 1), and metadata, where the index has any.

    \b
    Example:
        woh-index items --match clock
        woh-index items --where "price < 20 and 'beach' in tags"
        woh-index items --json | head
        woh-index items --count --where "year is null"
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        if count and match is None and not (ids or keys):
            _print_count(min(len(index.ids(where)), limit or len(index)), as_json)
            return
        named = [*ids, *(item.id for item in index.items(keys=keys))] if ids or keys else None
        found = islice(_items(index, named, match, where), limit)
        if count:
            _print_count(sum(1 for _ in found), as_json)
            return
        n = 0
        for item in found:
            n += 1
            if as_json:
                more = {"metadata": item.metadata} if item.metadata else {}
                print_json({name: getattr(item, name) for name in SHOWN} | more)
            else:
                _print_cells(item)
        if not n:
            filtered = match or where or named
            say(f"note: no item of {index_path} matches" if filtered else f"note: {index_path} is empty")


def _print_count(n: int, as_json: bool) -> None:
    if as_json:
        print_json({"count": n})
    else:
        print_line(str(n))


def _print_cells(item: Item) -> None:
    """Cells separated by tabs; a tab in one is escaped."""
    from woh_faiss.display import display_text

    cells: list[object] = [item.id, item.key or "", ", ".join(item.tags)]
    if item.metadata:
        held = {name: value for name, value in item.metadata.items() if value is not None}
        cells.append(", ".join(f"{name}={value}" for name, value in held.items()))
    click.echo("\t".join(map(display_text, cells)))


def _items(
    index: WOHIndex, named: Sequence[int] | None, match: str | None, where: str | None
) -> Iterator[Item]:
    wanted = (match or "").casefold()
    ids = index.ids(where) if named is None else named
    for start in range(0, len(ids), BATCH):
        for item in index.items(ids[start : start + BATCH], where=None if named is None else where):
            if wanted in (item.key or "").casefold():
                yield item
