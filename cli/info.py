"""woh-index info: what an index holds."""

from __future__ import annotations

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
@one_line_errors
def info(index_path: Path, as_json: bool, n_tags: int) -> None:
    """Show rounds, items, bits, tags, sizes and model of the index.

    \b
    Example:
        woh-index info --json
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        facts = index.info(n_tags)
    if as_json:
        print_json(facts)
        return
    from .render import print_info

    print_info(facts)
