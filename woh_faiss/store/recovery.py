"""Makes the files agree with the catalogue: finishes or undoes the work of a dead writer."""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import codefile, files, schema
from .records import Snapshot, State

#: Files that writers make, under all their names; everything else in the folder is not ours.
_MADE = re.compile(
    rf"({schema.MODEL_FILE}|{re.escape(schema.ANCHORS)})({re.escape(files.TEMPORARY)})?"
    rf"|({re.escape(schema.CODES)}|{re.escape(schema.IDS)})\.\d+"
    rf"|{schema.ANN_FILE}({re.escape(files.TEMPORARY)})?"
)


def settle(
    folder: Path, d: int, state: State, committed: Snapshot, newest: tuple[int, int, int, str] | None
) -> None:
    """Needs the writer lock. What is committed and still pending takes its place; the rest of it goes.

    `newest` is the newest round, see `catalog.newest_rows`. StoreError if there are remains and its rows are
    not what was written: then they may be rows of another index.
    """
    renamed = False
    for name in (schema.CODES, schema.IDS):
        waiting = folder / schema.pending(name, state.generation)
        if state.generation and files.plain(waiting):
            with files.step(f"rename {name}"):
                waiting.replace(folder / name)
            renamed = True
    if renamed:
        files.sync_folder(folder)
    codes, ids = folder / schema.CODES, folder / schema.IDS
    codefile.check_counted(codes, d, committed.rows)
    remains = strays(folder, state)
    ends = (codes, codefile.end(d, committed.rows)), (ids, 8 * committed.rows)
    if newest is not None and (remains or any(files.file_size(path) > end for path, end in ends)):
        number, start, end, checksum = newest
        C, names = codefile.map_codes(codes, d, committed.rows), codefile.map_ids(ids, committed.rows)
        codefile.check_round(folder, number, C[start:end], names[start:end], checksum)
    files.truncate(ids, 8 * committed.rows)
    codefile.settle(codes, d, committed.rows)
    for path in remains:
        with files.step(f"remove {path.name}"):
            path.unlink()


def strays(folder: Path, state: State) -> list[Path]:
    """Plain files of ours that the committed state does not have, by name; nobody made a folder or a link."""
    keep = {*state.models, *([schema.ANCHORS] if state.anchors else []), *(it.name for it in state.ann)}
    with os.scandir(folder) as entries:
        found = [it.name for it in entries if is_made(it)]
    return [folder / name for name in sorted(found) if name not in keep]


def is_made(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is a plain file with a name that writers give, whatever the catalogue says of it."""
    return bool(_MADE.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
