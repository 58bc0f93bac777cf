"""Reads the catalogue; the type and range of every value are checked here."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError
from woh_faiss.validate import short

from . import cell_types, item_metadata, row_checks, schema, table_checksums
from .database import moment, where_in
from .dead_rows import DeadRows
from .records import AnnIndex, Item, Round, Snapshot, State
from .row_checks import RoundSums

#: What a catalogue without rounds has of its newest one.
_NO_ROUND: dict[str, Any] = {
    **{"round": 0, "end_row": 0, "ntotal": 0},
    **{"model": None, "model_digest": None, "time": 0.0, "checksum": ""},
}
#: Letters at the end of a key by which others are alike.
_ALIKE = 6
#: Rounds among which one with rows is looked for.
_NEWEST = 64


def settings(connection: sqlite3.Connection) -> tuple[dict[str, Any], int]:
    """The config, and the bits of a stored code."""
    rows = connection.execute("SELECT name, value FROM meta")
    named = dict(cell_types.all_typed("meta", rows, {"name": str, "value": str}))
    d = named.get("d", "")
    if not re.fullmatch("[0-9]{1,9}", d) or int(d) % 8 or not int(d):
        raise sqlite3.DatabaseError(f"meta.d is {short(d)}, expected a multiple of 8")
    return cell_types.parsed("meta.config", named.get("config", ""), dict), int(d)


def _named(connection: sqlite3.Connection, name: str) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def read_state(connection: sqlite3.Connection) -> State:
    """What the files beside the catalogue are."""
    found = cell_types.parsed("meta.state", _named(connection, "state"), dict)
    counts = (
        "anchors_round",
        "generation",
        "next_id",
        "auto_end",
        "restorable",
        "recoded",
        "ann_builds",
        "newest",
    )
    if set(found) != {"models", "anchors", "ann", "identity", "line", "left", *counts}:
        raise sqlite3.DatabaseError(f"meta.state is {short(found)}, which holds what it should not")
    if not isinstance(found.get("models"), list):
        raise sqlite3.DatabaseError(f"meta.state is {short(found)}, expected a list of models")
    for name in found["models"]:
        cell_types.model_file("meta.state.models", name)
    if not isinstance(found.get("anchors"), str | None):
        raise sqlite3.DatabaseError("meta.state has anchors that are not a SHA-256")
    for name, digits in (("identity", 32), ("line", 16)):
        if not (isinstance(found[name], str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", found[name])):
            raise sqlite3.DatabaseError(f"meta.state.{name} is {short(found[name])}, expected hex digits")
    for entry in cell_types.listed("meta.state.left", found["left"]):
        if len(it := cell_types.listed("meta.state.left", entry)) != len(cell_types.LEFT):
            raise sqlite3.DatabaseError(f"meta.state.left holds {short(entry)}, which is not a generation")
        cell_types.typed("meta.state.left", tuple(it), cell_types.LEFT)
    for name in counts:
        # The largest id of all is followed by one that SQLite could not hold.
        last = name == "next_id" and found.get(name) == 2**63
        if not (cell_types.is_count(found[name]) or last):
            raise sqlite3.DatabaseError(
                f"meta.state.{name} is {short(found[name])}, expected {cell_types.COUNT}"
            )
    state = State(**{**found, "ann": _ann(found["ann"])})
    if state.auto_end > state.next_id:
        raise sqlite3.DatabaseError(f"meta.state.auto_end is {state.auto_end}, beyond {state.next_id}")
    return state


def _ann(found: Any) -> list[AnnIndex]:
    """What `meta.state` says of approximate indexes."""
    entries = [
        cell_types.ann_index("meta.state.ann", it) for it in cell_types.listed("meta.state.ann", found)
    ]
    made = [AnnIndex(**entry) for entry in entries]
    if len({it.kind for it in made}) != len(made):
        raise sqlite3.DatabaseError("meta.state.ann names a kind twice")
    return made


def write_state(connection: sqlite3.Connection, state: State) -> None:
    """Store `state`, with the newest round there is; its sum is the caller's."""
    (state.newest,) = connection.execute("SELECT ifnull(max(round), 0) FROM rounds").fetchone()
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (state.text(),))


def spent_key(connection: sqlite3.Connection) -> bytes:
    """The key of the digests in table `spent`."""
    found = _named(connection, schema.SPENT_KEY)
    if not isinstance(found, str) or not re.fullmatch("[0-9a-f]{32}", found):
        raise sqlite3.DatabaseError(f"meta.{schema.SPENT_KEY} is {short(found)}, expected 32 hex digits")
    return bytes.fromhex(found)


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    """The newest committed state."""
    with moment(connection):
        state = read_state(connection)
        found = _rounds(connection, "ORDER BY round DESC LIMIT 1", ())
    named = dict(zip(cell_types.ROUND_ROW, found[0], strict=True)) if found else _NO_ROUND
    number, rows, ntotal = named["round"], named["end_row"], named["ntotal"]
    model, model_digest = named["model"], named["model_digest"]
    if number != state.newest:
        raise sqlite3.DatabaseError(f"the newest round is {number}, expected {state.newest}")
    if ntotal > rows or (model is None) != (model_digest is None):
        raise sqlite3.DatabaseError(
            f"round {number} has {ntotal} items in {rows} rows and the model {short(model)}"
        )
    if model is not None:
        cell_types.model_file("rounds.model", model)
    if any(it.rows > rows for it in state.ann):
        raise sqlite3.DatabaseError(f"meta.state.ann has more rows than the {rows} there are")
    now = state.next_id, state.generation, state.anchors, tuple(state.ann)
    line, recoded = state.line, state.recoded
    return Snapshot(
        *(number, rows, ntotal, model, model_digest, *now, state.identity, line),
        *(named["time"], named["checksum"], recoded),
    )


def rewritten(connection: sqlite3.Connection, folder: Path, seen: Snapshot) -> bool:
    """Whether codes and ids were written again since the state `seen`, within the transaction that is open.

    Raises
    ------
    StoreError
        The catalogue is that of another index, or of a copy that went another way.
    """
    now = read_state(connection)
    kinds = cell_types.some(cell_types.ROUND, "time", "checksum")
    row = connection.execute("SELECT time, checksum FROM rounds WHERE round = ?", (seen.round,)).fetchone()
    record = cell_types.typed("rounds", row or (0.0, ""), kinds)
    since = [entry[0] for entry in now.left]
    if now.identity != seen.identity or now.generation < seen.generation:
        ours = False
    elif now.generation == seen.generation:
        ours = now.line == seen.line and record == (seen.time, seen.checksum)
    elif seen.line in since:
        ours = _left(now.left[since.index(seen.line) :], seen, record[0] if row else None)
    else:  # of older generations nothing is known
        ours = now.generation - seen.generation > len(since)
    if not ours:
        raise StoreError(f"{folder} was replaced by another index; open it again")
    return now.generation != seen.generation


def check_meta(connection: sqlite3.Connection) -> None:
    """DatabaseError unless config and state are as they were written."""
    table_checksums.TableChecksums(connection).check("meta")


def newest_rows(connection: sqlite3.Connection, seen: Snapshot) -> tuple[int, int, int, str] | None:
    """Number, first row, end and checksum of the newest round with rows, if it is among the newest ones."""
    where = "WHERE round BETWEEN ? AND ? AND first_row < end_row ORDER BY round DESC LIMIT 1"
    for known in _round_sums(connection, where, (seen.round - _NEWEST, seen.round), seen):
        return known.round, known.first_row, known.end_row, known.checksum
    return None


def round_sums(connection: sqlite3.Connection, after: int, seen: Snapshot) -> list[RoundSums]:
    """Checksums of the codes and ids of the rounds after `after`, up to that of the state `seen`."""
    where = "WHERE round BETWEEN ? AND ? AND first_row < end_row ORDER BY round"
    return _round_sums(connection, where, (after + 1, seen.round), seen)


def _round_sums(
    connection: sqlite3.Connection, where: str, given: tuple[int, ...], seen: Snapshot
) -> list[RoundSums]:
    found = []
    for row in _rounds(connection, where, given):
        named = dict(zip(cell_types.ROUND_ROW, row, strict=True))
        known = RoundSums(*(named[name] for name in RoundSums.__slots__))
        n = known.end_row - known.first_row
        if n < 0 or known.end_row > seen.rows or len(known.id_sums) != row_checks.n_sums(n):
            raise sqlite3.DatabaseError(f"round {known.round} has rows that are not there")
        found.append(known)
    return found


def dead(connection: sqlite3.Connection, seen: Snapshot, newest: int) -> DeadRows:
    """Rows of items removed by the state `seen`; `newest` is the newest round."""
    if seen.rows == seen.ntotal:
        return DeadRows()
    if newest == seen.round:
        dead = DeadRows.read(connection)
    else:  # another process has gone on since
        select = "SELECT row FROM removed WHERE row < ? AND removed <= ? ORDER BY row"
        found = connection.execute(select, (seen.rows, seen.round))
        rows = cell_types.all_typed("removed", found, {"row": cell_types.COUNT})
        dead = DeadRows.of(row for (row,) in rows)
    if len(dead) != seen.rows - seen.ntotal:
        raise sqlite3.DatabaseError(
            f"{len(dead)} rows are removed, and {seen.ntotal} of {seen.rows} are left"
        )
    return dead


def removals(connection: sqlite3.Connection, seen: Snapshot) -> list[tuple[int, int]]:
    """(row, round that removed it) of items removed by then, ascending by row."""
    table_checksums.TableChecksums(connection).check("removed")
    select = "SELECT row, removed FROM removed WHERE row < ? AND removed <= ? ORDER BY row"
    found = connection.execute(select, (seen.rows, seen.round))
    return cell_types.all_typed("removed", found, cell_types.some(cell_types.REMOVED, "row", "removed"))


def early_features(
    connection: sqlite3.Connection, seen: Snapshot
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows (m,), ascending, of which features are kept in the state `seen`, and these, (m, d) float32.

    (0, 0) if there are none. DatabaseError unless they are finite and of one width.
    """
    select = "SELECT row, x FROM early_features WHERE row < ? ORDER BY row"
    found = cell_types.all_typed("early_features", connection.execute(select, (seen.rows,)), cell_types.EARLY)
    size = len(found[0][1]) if found else 0
    X = np.empty((len(found), size // 4), np.float32)
    for place, (row, x) in enumerate(found):
        if len(x) != size or size % 4 or not size:
            raise sqlite3.DatabaseError(
                f"early_features.x of row {row} has {len(x)} bytes, row {found[0][0]}'s "
                f"{size}, expected float32 numbers, as many in each row"
            )
        X[place] = np.frombuffer(x, "<f4")
    if not np.isfinite(X).all():
        raise sqlite3.DatabaseError("early_features.x holds numbers that are not finite")
    return np.array([row for row, _ in found], np.int64), X


def early_width(connection: sqlite3.Connection) -> int | None:
    """Numbers in each row of features that are kept, None if there are none."""
    rows = connection.execute("SELECT x FROM early_features LIMIT 1")
    found = cell_types.all_typed("early_features", rows, cell_types.some(cell_types.EARLY, "x"))
    return len(found[0][0]) // 4 if found else None


def rounds(connection: sqlite3.Connection, first: int, last: int) -> list[Round]:
    """Rounds `first` to `last`."""
    rows = _rounds(connection, "WHERE round BETWEEN ? AND ? ORDER BY round", (first, last))
    return [
        Round(*(*row[:-3], cell_types.numbers("rounds.health", row[-3])))  # all but the two checksums
        for row in rows
    ]


def _rounds(connection: sqlite3.Connection, where: str, given: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Whole rows of `rounds`, each as it was written."""
    select = f"SELECT {', '.join(cell_types.ROUND_ROW)} FROM rounds {where}"  # noqa: S608
    rows = cell_types.all_typed("rounds", connection.execute(select, given), cell_types.ROUND_ROW)
    table_checksums.check_crcs("rounds", ((row[:-1], row[-1]) for row in rows))
    return rows


def tags(connection: sqlite3.Connection) -> list[tuple[int | None, str, int, bytes | None]]:
    """(column, tag, count, vector) of every tag, by column; those without one last.

    DatabaseError where they are not as they were written.
    """
    table_checksums.TableChecksums(connection).check("tags", "vectors")
    kinds = {**cell_types.some(cell_types.TAG, "column", "tag", "count"), **cell_types.VECTOR}
    select = (
        'SELECT "column", tag, count, vector FROM tags LEFT JOIN vectors USING (tag) '
        'ORDER BY "column" IS NULL, "column", tag'
    )
    return cell_types.all_typed("tags", connection.execute(select), kinds)


def _left(left: list[list[Any]], seen: Snapshot, time: float | None) -> bool:
    """Whether `seen` is of the generation that ended as the first of `left` says.

    `time` is that of the round of its number now, None for none.
    """
    _, last, ended, _ = left[0]
    if seen.round >= last:
        return (seen.round, seen.time) == (last, ended)
    undone = any(kept < seen.round for *_, kept in left)  # another round may have its number
    return undone or time is None or time == seen.time


def items(
    connection: sqlite3.Connection, folder: Path, column: str, values: Iterable[Any], seen: Snapshot
) -> tuple[list[Item], bool]:
    """The items of the state `seen` whose `column` ("id" or "key") is among the values; and if it is stale.

    Stale: codes and ids were written again since. Then these are all items of that id or key that came
    before, removed ones too, and their rows are not those that `seen` has.
    """
    wanted = list(values)
    with moment(connection):
        stale = rewritten(connection, folder, seen)
        known = item_metadata.columns(connection)
        where = column, wanted, item_metadata.n_slots(known)
        pairs = item_metadata.read_items(connection, "items", cell_types.ITEM, *where)
        gone = item_metadata.read_items(connection, "removed", cell_types.REMOVED, *where)
        pairs += [(row[:7], cells) for row, cells in gone if stale or row[7] > seen.round]
        if stale:  # after a rollback an id or key of a user's own may have come again
            numbers = {row[4] for row, _ in pairs}
            found = where_in(connection, "SELECT round, time FROM rounds WHERE round IN", numbers)
            times = dict(
                cell_types.all_typed("rounds", found, cell_types.some(cell_types.ROUND, "round", "time"))
            )
            pairs = [it for it in pairs if times.get(it[0][4], inf) <= seen.time]
    for (row, id_, _, _, number, *_), _ in pairs:
        if not stale and (row < seen.rows) != (number <= seen.round):
            raise sqlite3.DatabaseError(f"item {id_} of round {number} has row {row}")
    return [
        Item(
            id_,
            row,
            key,
            cell_types.texts("items.tags", tags_),
            number,
            1.0 if trust is None else trust,
            item_metadata.values(known, cells),
        )
        for (row, id_, key, tags_, number, trust, _), cells in pairs
        if stale or row < seen.rows
    ], stale


def near_keys(connection: sqlite3.Connection, key: str) -> list[str]:
    """Keys that may be meant by one that no item has: its neighbours in order, and those that end like it."""
    end = key[-_ALIKE:].replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    found: list[str] = []
    for select, value in (
        ("SELECT key FROM items WHERE key >= ? ORDER BY key LIMIT 50", key),
        ("SELECT key FROM items WHERE key < ? ORDER BY key DESC LIMIT 50", key),
        ("SELECT key FROM items WHERE key LIKE ? ESCAPE '\\' LIMIT 200", f"%{end}"),
    ):
        rows = connection.execute(select, (value,))
        found += [name for (name,) in cell_types.all_typed("items", rows, {"key": str})]
    return list(dict.fromkeys(found))


def doubted(connection: sqlite3.Connection, last: int, most: int) -> list[int]:
    """Ids of the items up to round `last` whose tags are trusted least, the least first."""
    select = "SELECT id FROM items WHERE trust IS NOT NULL AND round <= ? ORDER BY trust, id LIMIT ?"
    found = connection.execute(select, (last, most))
    return [id_ for (id_,) in cell_types.all_typed("items", found, {"id": cell_types.COUNT})]
