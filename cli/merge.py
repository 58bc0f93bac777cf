"""woh-index merge: copies of an index that went their own ways as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import one_line_errors
from .options import json_option, noted, on_duplicate_option, print_json, say

if TYPE_CHECKING:
    from woh_faiss.inputs.chunk import OnDuplicate


@click.command()
@click.argument(
    "sources", nargs=-1, required=True, metavar="INDEX...", type=click.Path(path_type=Path, readable=False)
)
@click.option(
    "-o",
    "--output",
    "destination",
    required=True,
    metavar="DEST",
    type=click.Path(path_type=Path),
    help="Folder of the new index.",
)
@on_duplicate_option
@click.option(
    "--new-ids",
    is_flag=True,
    help="Give appended items new ids; they are known by their keys, which all of them must have.",
)
@json_option
@one_line_errors
def merge(
    sources: Sequence[Path], destination: Path, on_duplicate: OnDuplicate, new_ids: bool, as_json: bool
) -> None:
    """Make one index DEST of copies of an index (backup) that appended items on their own.

    Only one of them may have learned since: DEST begins as its copy, and the rounds that only the others have
    are appended, with codes, ids, keys, tags, metadata and the hashes of their chunks. Indexes that learned
    apart, or are no copies of one, are refused: their codes do not compare. Every INDEX is verified first,
    and stays as it is.

    \b
    Example:
        woh-index merge january.woh february.woh -o photos.woh
    """
    from woh_faiss.index.merge import merge as merged

    found = merged(sources, destination, on_duplicate=on_duplicate, new_ids=new_ids)
    if found.still_there:
        noted(
            f"items of {found.base} that another INDEX removed or replaced: {found.still_there:,}; they stay"
        )
    if found.left_out:
        noted(f"items of another INDEX that {found.base} removed: {found.left_out:,}; they are left out")
    if found.skipped:
        noted(f"items whose id or key was there: {found.skipped:,}; they are left out")
    say(
        f"{destination} is {found.base} and what others appended, {found.items:,} items; "
        f"{found.ntotal:,} items in all"
    )
    if as_json:
        print_json({"path": str(destination), **found._asdict()})
