"""woh-index info: the contents of an index."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .errors import one_line_errors
from .options import index_option, json_option, print_json


@click.command()
@index_option
@json_option
@click.option(
    "--tags", "n_tags", type=click.IntRange(min=0), default=10, show_default=True, help="Tags to list."
)
@click.option(
    "--doubted",
    "n_doubted",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Items to list whose tags are trusted least.",
)
@one_line_errors
def info(index_path: Path, as_json: bool, n_tags: int, n_doubted: int) -> None:
    """Show rounds, items, bits, tags, sizes, model and health of the index.

    For the codes of each round: balance (0.5 at best) and entropy (1 at best) of a bit, the largest
    correlation of two, and the share of distinct codes. For what it learned from: the share of items with a
    tag, how many tags were new, how far tags are trusted, the share of them that the items before did not
    let expect, whether the round adapted to that, and the share of items near an anchor. For the hash
    function: the share of bits that differ from an earlier one that is kept (see build --keep-models). For
    the items: those whose tags are trusted least, as features foretell others.

    \b
    Example:
        woh-index info --json
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        health = index.health(n_doubted)
        facts = index.info(n_tags) | {name: health[name] for name in ("warnings", "drift", "doubted")}
    if as_json:
        print_json(facts)
        return
    if sys.stdout.isatty():
        from .tables import print_info
    else:
        from .tsv import print_info
    print_info(facts)
