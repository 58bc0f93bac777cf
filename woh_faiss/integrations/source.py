"""One committed state of an index as the rows that an engine should have."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import StoreError
from woh_faiss.store import Round

from .candidates import Ids
from .engine import CodeRows, PushState, RoundStamp

#: Bits of `seq` for an item's place within its round.
_PLACE = 32


class CodeSource:
    """The state that an index is at; nothing of it changes while a writer goes on.

    Attributes
    ----------
    ids : (rows,) array of int64
        Of all rows, removed ones too.
    removed, removed_at : (m,) arrays of int64
        Rows of removed items, ascending, and the round that removed each.
    ends, numbers, stamps : (t,) arrays of int64
        Of each round: where its rows end, its number, and its stamp.
    marks : list of RoundStamp
        Of each round.
    """

    def __init__(self, index: WOHIndex) -> None:
        self._store, self._view = index.store, index.store.view
        self._halves = index.config.bits, index.instance_bits
        rounds, removed = self._store.history()
        recoded = self._view.snapshot.recoded
        self.ids = self._view.ids
        self.removed, self.removed_at = np.array(removed, np.int64).reshape(-1, 2).T
        self.ends = np.array([done.end_row for done in rounds], np.int64)
        self.numbers = np.array([done.round for done in rounds], np.int64)
        self.marks = [mark_of(done, recoded) for done in rounds]
        self.stamps = np.array([mark.stamp for mark in self.marks], np.int64)
        self._starts = np.array([done.first_row for done in rounds], np.int64)

    def alive_from(self, start: int) -> Ids:
        """Rows of live items from `start` on, ascending."""
        alive = np.ones(len(self.ids) - start, np.bool_)
        alive[self.removed[self.removed >= start] - start] = False
        return start + np.flatnonzero(alive)

    def state(self, tags: bool, approximate: bool) -> PushState:
        """What a table will say of itself that is equal to this."""
        newest = self.marks[-1] if self.marks else RoundStamp()
        return PushState(self._view.snapshot.identity, *self._halves, tags, approximate, newest, newest)

    def knows(self, mark: RoundStamp) -> bool:
        """Whether that round is one of these, and all that was removed from its items since is known.

        Else it was rolled back, or `compact` has erased some of them.
        """
        if mark == RoundStamp():
            return True
        if mark not in self.marks:
            return False
        end = int(self.ends[self.marks.index(mark)])
        gone = np.count_nonzero((self.removed < end) & (self.removed_at <= mark.round))
        return end - int(gone) == mark.ntotal

    def rounds_of(self, rows: Ids) -> Ids:
        """Where in `numbers` and `stamps` the rounds of these rows are."""
        return np.searchsorted(self.ends, rows, side="right")

    def seq(self, rows: Ids) -> Ids:
        """What rows are ordered by: their round, then their place in it."""
        at = self.rounds_of(rows)
        return (self.numbers[at] << _PLACE) + rows - self._starts[at]

    def rows(self, rows: Ids, tags: bool) -> CodeRows:
        """These rows with all that belongs to them."""
        ids = np.asarray(self.ids[rows], np.int64)
        items = self._view.find(ids)
        try:
            found = [items[id_] for id_ in ids.tolist()]
        except KeyError:
            raise self._rewritten() from None
        at = self.rounds_of(rows)
        packed = codes.unpad(self._view.mapped.codes[rows], sum(self._halves))
        middle = self._halves[0] // 8
        return CodeRows(
            ids,
            self.seq(rows),
            self.numbers[at],
            self.stamps[at],
            packed[:, :middle],
            packed[:, middle:],
            [item.key for item in found],
            [item.tags for item in found] if tags else None,
            [
                # Without the missing ones: a column that comes later does not change rows that are there.
                {name: value for name, value in item.metadata.items() if value is not None}
                for item in found
            ],
        )

    def live(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these ids a live item has."""
        found = self._view.find(ids)
        return np.array([id_ in found for id_ in ids.tolist()], np.bool_)

    def check(self) -> None:
        """StoreError if what was read by id may be another item's by now."""
        if self._store.newest().generation != self._view.snapshot.generation:
            raise self._rewritten()

    def _rewritten(self) -> StoreError:
        return StoreError(f"the codes of {self._store.path} were rewritten meanwhile; push again")


def mark_of(done: Round, recoded: int) -> RoundStamp:
    """What tells a round of this index, or of a copy of it, from every other, of the same number, too.

    `recoded` is the snapshot's: a round has another mark once its items have other codes.
    """
    again = f" {recoded}" if done.round < recoded else ""
    text = f"{done.round} {done.time!r} {done.chunk_hash}{again}"
    stamp = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return RoundStamp(done.round, stamp, done.ntotal)
