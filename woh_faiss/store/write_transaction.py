"""One update of an index, under the writer lock: check all, write behind the end, COMMIT, settle."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss.errors import InputError, StoreError
from woh_faiss.io.npz import write_npz

from . import catalog, cell_types, codefile, database, files, schema, table_checksums
from .catalog_writer import CatalogWriter, ItemRow, TagRow
from .lookups import Lookups, check_text
from .model import Model, check_arrays, write_npy
from .records import Snapshot, State
from .recovery import settle
from .writer_lock import WriterLock


class WriteTransaction(Lookups):
    """The right to write, from :meth:`Store.writing`; ends with one :meth:`commit` or with nothing.

    Attributes
    ----------
    snapshot : Snapshot
        The committed state, which no other writer can change now.
    state : State
        What the files of that state are.
    folder, connection, lock, d : Path, sqlite3.Connection, WriterLock, int
        For `compaction`.
    """

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, lock: WriterLock, d: int, keep_models: int
    ) -> None:
        self.folder, self.connection, self.lock = folder, connection, lock
        self.d, self._keep = d, keep_models
        self._open = True
        with database.failures(folder, 0):
            table_checksums.TableChecksums(connection).check("meta")  # by its state files are cut and removed
            self.state, self.snapshot = catalog.read_state(connection), catalog.snapshot(connection)
        with files.failures(folder, "repair"):
            settle(folder, d, self.state, self.snapshot)

    @property
    def next_id(self) -> int:
        """The largest id ever used, plus 1."""
        return self.snapshot.next_id

    @property
    def has_anchors(self) -> bool:
        """Whether the anchors were committed."""
        return self.state.anchors is not None

    def remove(self, ids: Sequence[int]) -> Snapshot:
        """The state without these live items; see `commit`, of which this is a round that adds nothing."""
        nothing = np.empty((0, self.d // 8), np.uint8)
        return self.commit(
            kind="removed", codes=nothing, ids=[], keys=[], tags=[], trained=0, seconds=0.0, remove=ids
        )

    def commit(
        self,
        *,
        kind: Literal["trained", "encoded", "removed"],
        codes: NDArray[np.uint8],
        ids: ArrayLike,
        keys: Sequence[str | None],
        tags: Sequence[Sequence[str]],
        trained: int,
        seconds: float,
        model: Mapping[str, NDArray[Any]] | None = None,
        anchors: NDArray[Any] | None = None,
        tag_rows: Iterable[TagRow] = (),
        chunk_hash: str = "",
        health: dict[str, Any] | None = None,
        remove: Sequence[int] = (),
        numbered: bool = False,
        tag_outliers: Sequence[tuple[int, int]] = (),
    ) -> Snapshot:
        """The state after this round is on the disk: all of it, or (on any error) none of it.

        Parameters
        ----------
        kind : "trained", "encoded" or "removed"
            Whether the round changed the model, or only took items away.
        codes : (n, d // 8) array of uint8
            Packed codes, padded to the store's d.
        ids : (n,) array of int64
            Not negative, no two equal; never used before, or among `remove`.
        keys, tags : n entries each
            A key of its own or None; a list of tags.
        trained, seconds : int, float
            Items learned from; what the round took so far.
        model : arrays by name, optional
            None: the previous model stays in force.
        anchors : array, optional
            Only in the first round that has them.
        tag_rows : (column, tag, count, vector) each
            New or changed rows of the tag table; each replaces the tag's row. A tag's column and vector come
            together and never change.
        chunk_hash, health : str, dict
            Kept in the round's row.
        remove : ids
            Live items that are not found any more; an id among `ids` too is replaced.
        numbered : bool
            Whether the new ids are the next free ones, all of them, and none was chosen by a user.
        tag_outliers : (id, bits) each
            New items to remember as those whose code and features agree least, and by how many bits not.

        Raises
        ------
        InputError
            Something does not fit; nothing was written and the lock is still held.
        StoreError
            The disk refused; nothing is changed and this object cannot be used again.
        """
        if not self._open:
            raise StoreError(f"this update of {self.folder} has ended; start another with Store.writing()")
        gone = self.live_rows(remove)
        codes, ids = self.check_codes(codes, ids, {id_ for _, id_, *_ in gone})
        self.check_keys(keys, len(ids), {key for _, _, key, *_ in gone})
        if len(tags) != len(ids):
            raise InputError(
                f"there are {len(tags)} tag lists for {len(ids)} items; give one an item, empty for none"
            )
        if kind not in ("trained", "encoded", "removed"):
            raise InputError(f"kind is {kind!r}, expected 'trained', 'encoded' or 'removed'")
        check_arrays({**(model or {}), **({} if anchors is None else {"anchors": anchors})})
        if anchors is not None and self.has_anchors:
            raise InputError(f"{self.folder} has its anchors already; they are written once")
        tag_values = [(tag, column, count, vector) for column, tag, count, vector in tag_rows]
        check_text([tag for tag, *_ in tag_values], "tag")
        old, number = self.snapshot, self.snapshot.round + 1
        items: list[ItemRow] = [
            (row, id_, None if key is None else str(key), cell_types.of_texts(entry), number)
            for row, (id_, key, entry) in enumerate(zip(ids.tolist(), keys, tags, strict=True), old.rows)
        ]
        health_text = None if health is None else json.dumps(health)
        with self.committing() as (ledger, state):
            checksum = self._append(codes, ids)
            name, fingerprint = old.model, old.fingerprint
            if model is not None:
                name = schema.model_name(number)
                files.replace(self.folder / name, lambda file: write_npz(file, model))
                fingerprint = Model(self.folder / name).fingerprint
                state.models = [*state.models, name]
            if anchors is not None:
                state.anchors = self.write_file(schema.ANCHORS, lambda file: write_npy(file, anchors))
                state.anchors_round = number
            if len(ids) or model is not None or anchors is not None:
                files.sync_folder(self.folder)
            if numbered and state.auto_end == state.next_id:
                state.auto_end = max(state.next_id, int(ids.max(initial=-1)) + 1)
            state.next_id = max(state.next_id, int(ids.max(initial=-1)) + 1)
            end_row, ntotal = old.rows + len(ids), old.ntotal + len(ids) - len(gone)
            ledger.add_round(
                (
                    *(number, time.time(), kind, len(ids), len(gone), ntotal, int(trained)),
                    *(old.rows, end_row, checksum),
                    *(name, fingerprint, chunk_hash, float(seconds), health_text),
                )
            )
            ledger.retire(gone, number)
            ledger.add_items(items)
            ledger.add_tag_outliers([(id_, number, bits) for id_, bits in tag_outliers])
            ledger.put_tags(tag_values, number)
            if len(state.models) > self._keep:
                state.models = state.models[-self._keep :]
                state.restorable = max(state.restorable, schema.model_round(state.models[0]))
                ledger.forget_undo(state.restorable)
        return self.snapshot

    @contextmanager
    def committing(self) -> Iterator[tuple[CatalogWriter, State]]:
        """What is done to the tables, and to the state given, inside is committed at the end: all or nothing.

        Raises
        ------
        StoreError
            The disk refused; nothing is changed and this object cannot be used again.
        """
        state = replace(self.state)
        try:
            with files.failures(self.folder, "write"), database.failures(self.folder, 0):
                ledger = CatalogWriter(self.connection)
                yield ledger, state
                catalog.write_state(self.connection, state)
                ledger.close()
                new = catalog.snapshot(self.connection)
                with self.lock.committing(), files.step("COMMIT"):
                    self.connection.execute("COMMIT")
        except BaseException:
            self.end()
            raise
        self._open = False
        self._tidy()
        self.snapshot = new

    def end(self) -> None:
        """Take back what was not committed; nothing to do after a commit."""
        self._open = False
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
        elif not self.lock.in_doubt:
            return
        self._tidy()

    def _tidy(self) -> None:
        """Settle the files after COMMIT or ROLLBACK: they are cut to a state that is certain, or not at all.

        The writers' lock is still held, so that no other writer can come in between. The next one settles
        them if the disk fails here; so nothing here is an error.
        """
        with suppress(OSError, StoreError, sqlite3.Error):
            if self.lock.in_doubt:
                database.resolve(self.connection, self.lock)
            with database.moment(self.connection):
                state, now = catalog.read_state(self.connection), catalog.snapshot(self.connection)
            settle(self.folder, self.d, state, now)

    def _append(self, codes: NDArray[np.uint8], ids: NDArray[np.int64]) -> str:
        """Codes and ids behind the committed end; SHA-256 of their bytes."""
        stored = np.ascontiguousarray(ids, dtype="<i8")
        if len(ids):
            files.append(self.folder / schema.CODES, codefile.end(self.d, self.snapshot.rows), codes)
            files.append(self.folder / schema.IDS, 8 * self.snapshot.rows, stored)
        return codefile.checksum(codes, stored)

    def write_file(self, name: str, write: Any) -> str:
        """A new file of the folder; SHA-256 of its bytes."""
        files.replace(self.folder / name, write)
        return files.sha256_of(self.folder / name)
