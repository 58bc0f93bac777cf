"""What happens to an index after its items came: removals, compaction, going back, being checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from numpy.typing import ArrayLike

from woh_faiss import validate
from woh_faiss.store import Store

from .ann import IndexDeriving
from .reader import Ids

if TYPE_CHECKING:
    from .writer import IndexWriter


class Compacted(NamedTuple):
    """What `WOHIndex.compact` did: items erased, and whether no trace of them is left in the catalogue.

    Where another process had the catalogue open, a trace may be; compact again.
    """

    items: int
    clean: bool


class IndexLife(IndexDeriving):
    """What an index folder lives through; `WOHIndex` adds how items come to it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._grower: IndexWriter | None = None

    def remove(
        self,
        ids: ArrayLike | None = None,
        *,
        keys: Sequence[str] | None = None,
        ignore_missing: bool = False,
        timeout: float = 10.0,
    ) -> int:
        """Take the items with these ids or keys out of every answer, in one commit; returns how many.

        Their codes stay in the file, marked, until `compact`; readers see them until they `refresh`. A
        removed id is never used again; a key is free at once, for a new item with a new id. What was learned
        from them stays learned.

        Raises
        ------
        InputError
            Something is not in the index, and `ignore_missing` is false; nothing was removed.
        LockedError, StoreError
            As `update`.
        """
        return self._grow.remove(ids, keys, ignore_missing, timeout)

    def remove_ids(self, ids: Ids, *, timeout: float = 10.0) -> int:
        """`remove` under Faiss's name: an array_like of ids or a faiss.IDSelector; returns how many went.

        Ids that no item has are no fault. A selector is asked for each item of the newest state. A removed
        id is never used again, where Faiss would take it. Errors as `remove`.
        """
        self.refresh()
        found = self._store.view.named(ids)
        return self.remove(found, ignore_missing=True, timeout=timeout) if len(found) else 0

    def compact(self, *, timeout: float = 10.0) -> Compacted:
        """Write the files anew without removed items, and leave no trace of them: code, id, key and tags.

        Readers go on with what they have mapped. Tags that only removed items carry go too, unless something
        was learned from them: what was learned stays, as do the counts of tags. Of an erased id that was your
        own a digest is kept, so that it is refused if it comes again. The time is that of copying the index.
        Call it again where it was killed or `clean` is false.

        Raises
        ------
        LockedError
            As `update`.
        StoreError
            As `update`, and where codes, ids or catalogue are not what was written: new checksums would
            hide that.
        """
        return Compacted(*self._store.compact(timeout))

    def rollback(self, round: int, *, timeout: float = 10.0) -> int:  # noqa: A002 - what it is called everywhere
        """Go back to the state after a round, as if later ones had never been; 0 is the empty index.

        Returns how many rounds are undone. All that the state needs is verified before anything is changed.

        Items that were removed or replaced since are back, unless `compact` has erased them. What later
        updates learn is what they would have learned then. No id that the index gave is given again; ids of
        your own that came with later rounds may come again, unless `compact` has erased them.

        Raises
        ------
        InputError
            There is no such round, or its model is not among the `keep_models` newest any more.
        LockedError
            As `update`.
        StoreError
            As `update`, and where something that the state needs is damaged.
        """
        return self._store.rollback(validate.whole_number(round, "round", 0), timeout)

    @staticmethod
    def restore(path: str | os.PathLike[str], round: int, *, timeout: float = 10.0) -> int:  # noqa: A002
        """`rollback` of the index at `path`, which works where `open` does not for want of a model."""
        return Store.restore(path, validate.whole_number(round, "round", 0), timeout)

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the newest committed state to a new folder, while a writer goes on; returns its round.

        The copy is an index of its own: what happens to either from then on does not touch the other. It is
        on the disk when this returns. `cp -r` of a folder that is being written may mix states.

        Parameters
        ----------
        path : path
            Of the copy; its parent must exist, and nothing may have its name.

        Raises
        ------
        InputError
            Something is at `path`, it is in the index folder, or its parent is missing.
        StoreError
            A file of the index is missing or damaged, or the copy cannot be written; nothing is left of it.
        """
        return self._store.backup(path).round

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """All faults of the index at `path`, a line each: which file, what, what to do; none if it is sound.

        A line of type `store.verify.Note` is no fault: a writer died, and the next one puts it right.
        Every byte is read: codes, ids, models, anchors, catalogue. Opening and searching check lengths and
        layouts only. It works where `open` does not.
        """
        return Store.verify(path)

    @property
    def _grow(self) -> IndexWriter:
        """The writing half, made when first needed: it imports scipy, which a reader never needs."""
        if self._grower is None:
            from .writer import IndexWriter

            self._grower = IndexWriter(self._store, self.config, lambda: self.hasher)
        return self._grower
