"""woh-index items: the items of an index, a line each."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import one_line_errors
from .options import index_option, json_option, print_json, say

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
@click.option("--match", metavar="TEXT", help="Only items whose key has this in it, in any case.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N only.")
@json_option
@one_line_errors
def items(index_path: Path, match: str | None, limit: int | None, as_json: bool) -> None:
    """List items in the order they were appended: id, key and tags, separated by tabs.

    A JSON line is one item: id, key, tags, round, and trust, how far its tags are trusted (0 to 1).

    \b
    Example:
        woh-index items --match clock
        woh-index items --json | head
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        found = 0
        for item in islice(_items(index, match), limit):
            found += 1
            if as_json:
                more = {"metadata": item.metadata} if item.metadata else {}
                print_json({name: getattr(item, name) for name in SHOWN} | more)
            else:
                held = [f"{name}={value}" for name, value in item.metadata.items() if value is not None]
                _print_cells(
                    item.id, item.key or "", ", ".join(item.tags), *([", ".join(held)] if held else [])
                )
        if not found:
            say(f"note: no item of {index_path} matches" if match else f"note: {index_path} is empty")


def _print_cells(*cells: object) -> None:
    """Cells separated by tabs; a tab in one is escaped."""
    from woh_faiss.display import display_text

    click.echo("\t".join(map(display_text, cells)))


def _items(index: WOHIndex, match: str | None) -> Iterator[Item]:
    ids, wanted = index.ids(), (match or "").casefold()
    for start in range(0, len(ids), BATCH):
        for item in index.items(ids[start : start + BATCH]):
            if wanted in (item.key or "").casefold():
                yield item
