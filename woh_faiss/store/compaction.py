"""Codes and ids rewritten: without removed rows, or as an earlier round had them.

Both begin another generation: see `generations`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, StoreError, short

from . import (
    catalog,
    cell_types,
    codefile,
    database,
    erased_ids,
    files,
    generations,
    row_checks,
    schema,
    table_checksums,
)
from .model import Model, Npy
from .records import State
from .write_transaction import WriteTransaction

#: Rows read or written at a time.
_BLOCK = 1 << 18
#: What is changed as a whole.
_TABLES = (
    *("rounds", "items", "removed", "tags", "vectors", "undo", "early_features", "dead"),
    *("metadata_columns", "metadata"),
)
#: Of these, what compact leaves as it is but for what is erased, and may be large.
_KEPT = ("items", "vectors", "metadata")
_COMPACTED = tuple(table for table in _TABLES if table not in _KEPT)


def check_kept(connection: sqlite3.Connection) -> None:
    """DatabaseError where what compact keeps is not as it was written: takes long, and needs no lock."""
    catalog.check_meta(connection)
    table_checksums.TableChecksums(connection).check(*_KEPT)


#: Given the arrays of a model and `WriteTransaction.live_names`: those without rows of other items, or None.
Forget = Callable[
    [Mapping[str, NDArray[Any]], Callable[[NDArray[np.int64]], NDArray[np.bool_]]],
    dict[str, NDArray[Any]] | None,
]


def compact(writing: WriteTransaction, forget: Forget | None = None, form: Callable[[str], str] = str) -> int:
    """Forget what was removed: code, id, key, tags, and tags no one else has and nothing was learned from.

    Tags are the same where their `form` is.

    Rounds that learned nothing and of which no item is left are forgotten, too, but for the newest.
    Returns how many rows went; `scrub` must follow.
    """
    run, rows = writing.connection, writing.snapshot.rows
    with database.failures(writing.folder, 0):
        dead = catalog.dead(run, writing.snapshot, writing.snapshot.round).rows().tolist()
    if not dead:
        return 0
    alive = np.ones(rows, np.bool_)
    alive[dead] = False
    first = dead[0]  # rows before it stay where they are
    with writing.committing() as (catalog_writer, state):
        catalog_writer.check(*_COMPACTED)
        rounds = _places(writing, alive, first)
        state.leave(writing.snapshot, writing.snapshot.round)
        codes, ids = _rewritten(writing, alive, state.generation)
        _forget_tags(run, form)
        select = "SELECT DISTINCT id FROM removed WHERE id >= ? AND id NOT IN (SELECT id FROM items)"
        erased = cell_types.all_typed(
            "removed", run.execute(select, (state.auto_end,)), {"id": cell_types.COUNT}
        )
        catalog_writer.spend(erased_ids.digests(run, (id_ for (id_,) in erased)))
        run.execute("DELETE FROM removed")
        catalog_writer.renew_dead()
        if forget is not None:
            _forget_in_models(writing, state, forget)
        for start in range(first, len(ids), _BLOCK):
            names = ids[start : start + _BLOCK].tolist()
            run.executemany(
                "UPDATE items SET row = ? WHERE id = ?", zip(range(start, rows), names, strict=False)
            )
        catalog_writer.forget_metadata(dead)
        for table in ("early_features", "metadata"):
            _move_rows(run, table, alive)
        for number, a, b, lost in rounds:
            run.execute("UPDATE rounds SET first_row = ?, end_row = ? WHERE round = ?", (a, b, number))
            if lost:
                new = codefile.checksum(codes[a:b], ids[a:b]), row_checks.id_sums(ids[a:b])
                run.execute("UPDATE rounds SET checksum = ?, id_sums = ? WHERE round = ?", (*new, number))
        # Else an index whose items come and go would grow by their records forever.
        run.execute(
            "DELETE FROM rounds WHERE kind != 'trained' AND first_row = end_row AND round < ?",
            (writing.snapshot.round,),
        )
        catalog_writer.renew(*_COMPACTED)
    return len(dead)


def _forget_in_models(writing: WriteTransaction, state: State, forget: Forget) -> None:
    """Models that have rows of removed items are written again without them, under other names."""
    run, names = writing.connection, []
    for name in state.models:
        model = Model(writing.folder / name)
        (known,) = run.execute("SELECT model_digest FROM rounds WHERE model = ?", (name,)).fetchone() or ("",)
        model.check_identity(known)
        with model.damage():
            arrays = forget(model, writing.live_names)
        if arrays is not None:
            new = schema.model_name(schema.model_round(name), state.generation)
            writing.write_model(new, arrays)
            digest = Model(writing.folder / new).digest
            run.execute("UPDATE rounds SET model = ?, model_digest = ? WHERE model = ?", (new, digest, name))
            name = new
        names.append(name)
    state.models = names
    files.sync_folder(writing.folder)


def _move_rows(run: sqlite3.Connection, table: str, alive: NDArray[np.bool_]) -> None:
    """What a table keeps by row goes with its row, or gets its new number."""
    found = run.execute(f"SELECT row FROM {table} ORDER BY row")  # noqa: S608
    rows = [row for (row,) in cell_types.all_typed(table, found, {"row": cell_types.COUNT})]
    if rows and rows[-1] >= len(alive):
        raise sqlite3.DatabaseError(f"{table} has row {rows[-1]}, which is not there")
    gone = ((row,) for row in rows if not alive[row])
    run.executemany(f"DELETE FROM {table} WHERE row = ?", gone)  # noqa: S608
    places = (np.cumsum(alive) - 1).tolist()
    moved = ((places[row], row) for row in rows if alive[row] and places[row] != row)
    # Ascending: each place is free by then.
    run.executemany(f"UPDATE {table} SET row = ? WHERE row = ?", moved)  # noqa: S608


def _places(
    writing: WriteTransaction, alive: NDArray[np.bool_], first: int
) -> list[tuple[int, int, int, bool]]:
    """Round, its new first row and end, and whether it loses rows, of the rounds with rows after `first`.

    StoreError where one that loses rows is not what was written: its new checksum would hide that.
    """
    folder = writing.folder
    codes, ids = generations.mapped(folder / schema.CODES, folder / schema.IDS, writing.d, len(alive))
    ends, found = np.concatenate([[0], np.cumsum(alive)]), []
    select = "SELECT round, first_row, end_row, checksum FROM rounds WHERE end_row > ?"
    kinds = cell_types.some(cell_types.ROUND, "round", "first_row", "end_row", "checksum")
    for row in writing.connection.execute(select, (first,)):
        number, start, end, known = cell_types.typed("rounds", row, kinds)
        if not start <= end <= len(alive):
            raise sqlite3.DatabaseError(f"round {number} has rows that are not there")
        a, b = int(ends[start]), int(ends[end])
        lost = b - a < end - start
        if lost:
            codefile.check_round(folder, number, codes[start:end], ids[start:end], known)
        found.append((number, a, b, lost))
    return found


def scrub(writing: WriteTransaction, timeout: float) -> bool:
    """Leave nothing in the catalogue's pages and log of what is not there any more; needs no transaction.

    False where others were busy with the catalogue, or the disk was full: then only the traces remain.
    """
    connection = writing.connection
    try:
        connection.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        with writing.lock.committing(), files.step("VACUUM"):
            connection.execute("VACUUM")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except (sqlite3.Error, OSError):
        return False
    return not busy


def rollback(writing: WriteTransaction, number: int) -> int:
    """The state after round `number`, but that no id is free again and what `compact` erased stays so.

    Returns how many rounds are undone. All that the state needs is read before anything is changed: later
    models are removed permanently. What it does not need may be damaged.

    Raises
    ------
    InputError
        There is no such round, it is the newest, or what it needs was not kept.
    StoreError
        What it needs is not what was written.
    """
    run, old, earliest = writing.connection, writing.snapshot, writing.state.restorable
    if not 0 <= number < old.round:
        raise InputError(
            f"round is {short(number)}, expected 0 or more and an earlier one than the newest, {old.round}"
        )
    with database.failures(writing.folder, 0):
        found = catalog.rounds(run, number, number)
    end, model = (found[0].end_row, found[0].model) if found else (0, None)
    if number and not found:
        raise InputError(f"round {number} is forgotten: compact erased its last items; give another one")
    if number < old.recoded:
        raise InputError(
            f"round {number} cannot be restored, round {old.recoded} gave the items before it other codes; "
            f"the earliest that can is {earliest}"
        )
    if number < earliest or not (model is None or model in writing.state.models):
        raise InputError(
            f"round {number} cannot be restored, its model is not kept any more; "
            f"the earliest that can is {earliest} ('woh-index build --keep-models' keeps more)"
        )
    alive = np.zeros(old.rows, np.bool_)
    alive[:end] = True
    with writing.committing() as (catalog_writer, state):
        catalog_writer.check(*_TABLES)
        _check_target(writing, number)
        state.leave(old, number)
        _rewritten(writing, alive, state.generation)
        run.execute("DELETE FROM items WHERE row >= ?", (end,))
        run.execute("DELETE FROM removed WHERE row >= ?", (end,))
        run.execute(
            "INSERT INTO items (id, row, key, tags, round, trust, crc) "
            "SELECT id, row, key, tags, round, trust, crc FROM removed WHERE removed > ?",
            (number,),
        )
        run.execute("DELETE FROM removed WHERE removed > ?", (number,))
        catalog_writer.renew_dead()
        for table in ("early_features", "metadata"):
            run.execute(f"DELETE FROM {table} WHERE row >= ?", (end,))  # noqa: S608
        run.execute("DELETE FROM metadata_columns WHERE round > ?", (number,))
        _restore_tags(run, number)
        run.execute("DELETE FROM rounds WHERE round > ?", (number,))
        run.execute("UPDATE rounds SET ntotal = (SELECT count(*) FROM items) WHERE round = ?", (number,))
        state.models = [name for name in state.models if schema.model_round(name) <= number]
        if state.anchors_round > number:
            state.anchors, state.anchors_round = None, 0
        catalog_writer.renew(*_TABLES)
    return old.round - number


def _check_target(writing: WriteTransaction, number: int) -> None:
    """StoreError unless the files of the state after round `number` are what was written, to the byte."""
    folder, state = writing.folder, writing.state
    codes, ids = generations.mapped(
        folder / schema.CODES, folder / schema.IDS, writing.d, writing.snapshot.rows
    )
    kept = catalog.rounds(writing.connection, 1, number)
    codefile.check_rounds(folder, kept, codes, ids)
    if not kept or kept[-1].model is None:
        return
    name, model_digest = kept[-1].model, kept[-1].model_digest
    needed: list[tuple[Path, type[Model | Npy], str | None]] = [(folder / name, Model, model_digest)]
    if 0 < state.anchors_round <= number:
        needed.append((folder / schema.ANCHORS, Npy, state.anchors))
    for path, kind, known in needed:
        try:
            kind(path).check(known)
        except FileNotFoundError:
            raise StoreError(
                f"{path} is missing, without which round {number} is nothing to go back to; nothing is "
                "changed; restore it from a backup, or give another round"
            ) from None
        except StoreError as error:
            raise StoreError(
                f"{str(error).split(';')[0]}; round {number} needs it, and nothing is changed; restore it "
                "from a backup, or give another round"
            ) from error


def _rewritten(
    writing: WriteTransaction, alive: NDArray[np.bool_], generation: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Codes and ids of the rows that are alive, in pending files that are on the disk."""
    folder, d = writing.folder, writing.d
    codes, ids = generations.mapped(folder / schema.CODES, folder / schema.IDS, d, len(alive))

    def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        for start in range(0, len(array), _BLOCK):
            rows = slice(start, start + _BLOCK)
            yield array[rows][alive[rows]]

    return generations.write(folder, d, generation, int(alive.sum()), blocks(codes), blocks(ids))


def _forget_tags(run: sqlite3.Connection, form: Callable[[str], str]) -> None:
    """Drop tags that nothing was learned from and that only removed items carry; before those go."""
    carried = {form(tag) for tag in _tags_of(run, "removed")}
    unlearned = run.execute('SELECT tag FROM tags WHERE "column" IS NULL')
    private = {tag for (tag,) in unlearned if form(tag) in carried}
    if private:
        kept_forms = {form(tag) for tag in _tags_of(run, "items")}
        private = {tag for tag in private if form(tag) not in kept_forms}
    if not private:
        return
    run.executemany("DELETE FROM tags WHERE tag = ?", ((tag,) for tag in private))
    for number, text in cell_types.all_typed(
        "undo", run.execute("SELECT round, tags FROM undo"), cell_types.UNDO
    ):
        kept = [entry for entry in cell_types.were(text) if entry[0] not in private]
        run.execute("UPDATE undo SET tags = ? WHERE round = ?", (json.dumps(kept), number))


def _tags_of(run: sqlite3.Connection, table: str) -> set[str]:
    rows = run.execute(f"SELECT tags FROM {table} WHERE tags IS NOT NULL")  # noqa: S608
    return {tag for (text,) in rows for tag in cell_types.texts(f"{table}.tags", text)}


def _restore_tags(run: sqlite3.Connection, number: int) -> None:
    """Columns and counts as they were before the first round after `number` that touched each tag."""
    select = "SELECT round, tags FROM undo WHERE round > ? ORDER BY round DESC"
    before: dict[str, tuple[int | None, int | None]] = {}
    for _, text in cell_types.all_typed("undo", run.execute(select, (number,)), cell_types.UNDO):
        before |= {tag: (column, count) for tag, column, count in cell_types.were(text)}
    for tag, (column, count) in before.items():
        if count is None:
            run.execute("DELETE FROM tags WHERE tag = ?", (tag,))
        else:
            run.execute('UPDATE tags SET "column" = ?, count = ? WHERE tag = ?', (column, count, tag))
        if column is None:
            run.execute("DELETE FROM vectors WHERE tag = ?", (tag,))
    run.execute("DELETE FROM undo WHERE round > ?", (number,))
