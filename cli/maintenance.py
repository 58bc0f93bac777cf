"""woh-index remove, compact, verify, backup and rollback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from . import id_files
from .errors import one_line_errors
from .options import (
    committed_state,
    index_option,
    json_option,
    max_memory_option,
    print_json,
    print_line,
    say,
    timeout_option,
    where_option,
)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", type=int)
@click.option("--key", "keys", multiple=True, help="Key of an item; may be given many times.")
@click.option(
    "--ids-file",
    type=click.File(encoding="utf-8"),
    help="File with one id a line, - for stdin; empty lines are skipped.",
)
@click.option("--keys-file", type=click.File(encoding="utf-8"), help="The same with one key a line.")
@where_option
@click.option("--ignore-missing", is_flag=True, help="Leave out what is not in the index.")
@index_option
@timeout_option
@json_option
@max_memory_option
@one_line_errors
def remove(
    ids: Sequence[int],
    keys: Sequence[str],
    ids_file: TextIO | None,
    keys_file: TextIO | None,
    where: str | None,
    ignore_missing: bool,
    index_path: Path,
    timeout: float,
    as_json: bool,
) -> None:
    """Remove items from every answer, by ID, key, a file of either, or a filter: all in one commit, or none.

    Their codes stay in the file, marked, until compact. A removed id is not used again; a key is free at
    once.

    \b
    Example:
        woh-index remove 17 42 --key photos/old.jpg
        woh-index remove --keys-file gone.txt --ignore-missing
        woh-index remove --where "year < 2000"
    """
    named_some = bool(ids or keys or ids_file or keys_file)
    if named_some == (where is not None):
        raise click.UsageError("give an ID, --key, --ids-file or --keys-file, or --where alone")
    from woh_faiss import WOHIndex

    committed_state(index_path, "there is no index", "all or nothing of this command is in that")
    wanted, named = list(ids), list(keys)
    if keys_file is not None:
        named += [line for _, line in id_files.lines(keys_file)]
    if ids_file is not None:
        wanted += id_files.ids(ids_file, "; keys go into --keys-file")
    with WOHIndex.open(index_path) as index:
        if where is not None:
            removed = index.remove(where=where, timeout=timeout)
        else:
            removed = index.remove(wanted, keys=named, ignore_missing=ignore_missing, timeout=timeout)
        say(f"{_items(removed)} removed; {index.ntotal:,} items in all")
        if as_json:
            print_json({"removed": removed, "ntotal": index.ntotal})


@click.command()
@index_option
@timeout_option
@json_option
@one_line_errors
def compact(index_path: Path, timeout: float, as_json: bool) -> None:
    """Rewrite the files without removed items: no code, id, key or tags of them are left.

    Searches continue meanwhile. Takes the time, and for a moment the space, of a copy of the index.

    \b
    Example:
        woh-index compact --index photos.woh
    """
    from woh_faiss import WOHIndex

    committed_state(index_path, "there is no index", "the same command starts again")
    with WOHIndex.open(index_path) as index:
        items, clean = index.compact(timeout=timeout)
        say(f"{_items(items)} erased; {index.ntotal:,} items in all")
        if as_json:
            print_json({"erased": items, "ntotal": index.ntotal, "clean": clean})
    if not clean:
        say(
            f"note: {index_path} was in use or its disk full, so catalog.db may still hold traces; "
            "compact again"
        )


@click.command()
@index_option
@json_option
@one_line_errors
def verify(index_path: Path, as_json: bool) -> None:
    """Compare every byte of the index with what was written; name each fault and exit 1 if there is one.

    Works on an index that cannot be opened. A JSON line is one fault. Remains of a killed writer, which the
    next one removes, are a note, not a fault.

    \b
    Example:
        woh-index verify --json
    """
    from woh_faiss import WOHIndex
    from woh_faiss.store.verify import Note

    found = WOHIndex.verify(index_path)
    for note in found:
        if isinstance(note, Note):
            say(f"note: {note}")
    faults = [line for line in found if not isinstance(line, Note)]
    for fault in faults:
        if as_json:
            print_json({"fault": fault})
        else:
            print_line(fault)
    if faults:
        sys.exit(1)
    say(f"{index_path} is sound")


@click.command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@index_option
@json_option
@one_line_errors
def backup(destination: Path, index_path: Path, as_json: bool) -> None:
    """Copy the index to DEST, a new folder, while others write: one committed state, on the disk.

    cp -r of a folder that is being written may mix states.

    \b
    Example:
        woh-index backup /backups/photos-2026-11-28.woh --index photos.woh
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        number = index.backup(destination)
    say(f"{destination} is a copy of {index_path} after round {number}")
    if as_json:
        print_json({"path": str(destination), "round": number})


@click.command()
@click.argument("number", metavar="ROUND", type=int)
@index_option
@timeout_option
@json_option
@one_line_errors
def rollback(number: int, index_path: Path, timeout: float, as_json: bool) -> None:
    """Go back permanently to the state after ROUND; 0 is the empty index.

    Its model must still be kept (see build --keep-models). All that the state needs is verified first; a
    damaged or missing newer model does not matter. Items removed or replaced since are back, unless compact
    has erased them.

    \b
    Example:
        woh-index rollback 3
    """
    from woh_faiss import WOHIndex

    committed_state(index_path, "there is no index", "all or nothing of this command is in that")
    undone = WOHIndex.restore(index_path, number, timeout=timeout)
    with WOHIndex.open(index_path) as index:
        say(f"back after round {number}; {undone:,} rounds undone; {index.ntotal:,} items in all")
        if as_json:
            print_json({"round": number, "undone": undone, "ntotal": index.ntotal})


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"
