"""Push an index into a database: what changed since the last push, in steps that are whole rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from woh_faiss import WOHIndex
from woh_faiss.errors import EngineError

from .candidates import Ids
from .engine import Engine, PushState, RoundStamp
from .open_engine import open_engine
from .source import CodeSource

#: Rows from which a step is committed; a round is never cut.
STEP = 100_000
#: Rows that are sent at once.
BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: rows it sent and took out, and the round that the table at `place` is at."""

    sent: int
    deleted: int
    round: int
    place: str


@dataclass(frozen=True, slots=True)
class _Step:
    """What brings a table to a state: ids to take out, rows to put in, and which of them replace a row."""

    deleted: Ids
    rows: Ids
    there: NDArray[np.bool_]
    state: PushState


def push(
    index: WOHIndex,
    url: str,
    *,
    with_tags: bool = False,
    approximate: bool = False,
    force: bool = False,
    report: Callable[[int, int], object] = lambda done, of: None,
) -> Pushed:
    """Make the table that `url` names equal to the index's items, sending only what changed since last time.

    Parameters
    ----------
    index : WOHIndex
        Its state when it was opened or last refreshed is pushed.
    url : str
        ``postgresql://user@host:5432/db?table=items`` or ``milvus://host:19530/collection``: docs/engines.md.
    with_tags : bool
        Send the items' tags and metadata, too, where the table is new.
    approximate : bool
        Where the table is new, have it searched through an index that is faster and may miss neighbours: HNSW
        in PostgreSQL, IVF in Milvus.
    force : bool
        Replace a table that belongs to another index, that was made otherwise, or by somebody else.
    report : callable
        Called with the rows sent so far and those to send.

    Raises
    ------
    InputError
        The URL names no table of a known database.
    EngineError
        The database refuses, or the table is not this index's, and `force` is not given.
    StoreError
        The index's codes were rewritten meanwhile (`compact`, `rollback`), or it is damaged.
    """
    source = CodeSource(index)
    goal = source.state(with_tags, approximate)
    with closing(open_engine(url)) as engine:
        found = engine.state()
        problem = _problem(engine, found, goal)
        if problem and not force:
            raise EngineError(f"{engine.shown} {problem}")
        if found is None or problem:
            found = replace(goal, at=RoundStamp())
            engine.create(found)
            none = np.empty(0, np.int64)
            steps = list(_since(source, found, goal)) or [_Step(none, none, none.astype(np.bool_), goal)]
        else:
            goal = replace(goal, tags=found.tags, approximate=found.approximate)
            steps = list(_steps(source, engine, found, goal))
        sent, of = 0, sum(len(step.rows) for step in steps)
        for step in steps:
            engine.begin(found)
            for some in _batches(len(step.deleted)):
                engine.delete(step.deleted[some])
            for some in _batches(len(step.rows)):
                rows = source.rows(step.rows[some], goal.tags)
                engine.put(rows, rows.ids[step.there[some]])
                sent += len(rows.ids)
                report(sent, of)
            source.check()
            found = step.state
            engine.commit(found)
        engine.finish(goal)
        return Pushed(sent, sum(len(step.deleted) for step in steps), goal.at.round, engine.shown)


def _problem(engine: Engine, found: PushState | None, goal: PushState) -> str:
    """Why the table is not to be touched, and what to do; empty if it is the index's, or not there."""
    other = "choose another table, or --force to have it replaced"
    if found is None:
        return f"was not made by woh-index push; {other}" if engine.exists() else ""
    if found.format != goal.format:
        return f"has the layout of an earlier woh-faiss; {other}"
    if (found.learned, found.instance) != (goal.learned, goal.instance):
        ours, theirs = (f"{state.learned} + {state.instance}" for state in (goal, found))
        return f"holds codes of {theirs} bits, the index has {ours}; {other}"
    if found.identity != goal.identity:
        return f"holds the codes of another index; {other}"
    for name in ("tags", "approximate"):
        if getattr(goal, name) and not getattr(found, name):
            return f"was made without --{'with-tags' if name == 'tags' else name}; {other}"
    return ""


def _batches(n: int) -> Iterator[slice]:
    return (slice(start, start + BATCH) for start in range(0, n, BATCH))


def _steps(source: CodeSource, engine: Engine, found: PushState, goal: PushState) -> Iterator[_Step]:
    """From `found` to `goal`: by rounds where that is enough, else by comparing all ids."""
    if found.busy or not (source.knows(found.at) and source.knows(found.goal)):
        return iter([_difference(source, engine, goal)])
    # A push that was cut short left out what its goal had not; the way to an earlier round is another.
    return _since(source, found, goal)


def _since(source: CodeSource, found: PushState, goal: PushState) -> Iterator[_Step]:
    """What rounds after the table's did, some rounds a step; the cost is theirs."""
    first = source.marks.index(found.at) + 1 if found.at.round else 0
    start, after = (int(source.ends[first - 1]) if first else 0), found.at.round
    since = (source.removed_at > after) & (source.removed < start)  # what came since was never sent
    removed_at, removed = source.removed_at[since], np.asarray(source.ids[source.removed[since]], np.int64)
    live = source.live(removed)
    rows = source.alive_from(start)
    for mark, end in zip(source.marks[first:], source.ends[first:].tolist(), strict=True):
        if end - start >= STEP or mark == goal.at:
            gone = removed[~live & (removed_at > after) & (removed_at <= mark.round)]
            some = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
            yield _Step(gone, some, np.isin(source.ids[some], removed), replace(goal, at=mark))
            start, after = end, mark.round


def _difference(source: CodeSource, engine: Engine, goal: PushState) -> _Step:
    """All ids of the table against the index's: after compact, rollback, or a push that was cut short."""
    alive = source.alive_from(0)
    order = np.argsort(source.ids[alive], kind="stable")
    rows = alive[order]
    ids = np.asarray(source.ids[rows], np.int64)
    at = source.rounds_of(rows)
    stamps, seq = source.stamps[at], source.seq(rows)
    there, same, moved = (np.zeros(len(rows), np.bool_) for _ in range(3))
    gone = [np.empty(0, np.int64)]
    for found, found_stamps, found_seq in engine.stored():
        place = np.minimum(np.searchsorted(ids, found), max(len(ids) - 1, 0))
        known = ids[place] == found if len(ids) else np.zeros(len(found), np.bool_)
        gone.append(found[~known])
        place = place[known]
        there[place] = True
        same[place] = stamps[place] == found_stamps[known]
        moved[place] = same[place] & (seq[place] != found_seq[known])
    # Rows keep the order they have, whatever their numbers, unless others of their round come between.
    mixed = np.zeros(len(source.numbers), np.bool_)
    mixed[at[~same]] = True
    same &= ~(moved & mixed[at])
    back = np.argsort(order)  # in the order of rows again: neighbours on the disk, and of their round
    rows, there, same = rows[back], there[back], same[back]
    return _Step(np.concatenate(gone), rows[~same], there[~same], goal)
