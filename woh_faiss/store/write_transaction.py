"""One update of an index, under the writer lock: check all, write behind the end, COMMIT, settle."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError
from woh_faiss.io.npz import write_npz

from . import catalog, cell_types, codefile, database, files, schema, table_checksums
from .catalog_writer import CatalogWriter, ItemRow
from .lookups import Lookups
from .model import Model, check_arrays, write_npy
from .records import NewRound, Round, Snapshot, State
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
        return self.commit(NewRound("removed", np.empty((0, self.d // 8), np.uint8), remove=ids))

    def commit(self, new: NewRound) -> Snapshot:
        """The state after this round is on the disk: all of it, or (on any error) none of it.

        Raises
        ------
        InputError
            Something does not fit; nothing was written and the lock is still held.
        StoreError
            The disk refused; nothing is changed and this object cannot be used again.
        """
        if not self._open:
            raise StoreError(f"this update of {self.folder} has ended; start another with Store.writing()")
        gone = self.live_rows(new.remove)
        codes, ids = self.check_codes(new.codes, new.ids, {id_ for _, id_, *_ in gone})
        self.check_keys(new.keys, len(ids), {key for _, _, key, *_ in gone})
        if len(new.tags) != len(ids):
            raise InputError(
                f"there are {len(new.tags)} tag lists for {len(ids)} items; give one an item, empty for none"
            )
        if new.kind not in ("trained", "encoded", "removed"):
            raise InputError(f"kind is {new.kind!r}, expected 'trained', 'encoded' or 'removed'")
        anchors = {} if new.anchors is None else {"anchors": new.anchors}
        check_arrays({**(new.model or {}), **anchors})
        if anchors and self.has_anchors:
            raise InputError(f"{self.folder} has its anchors already; they are written once")
        tag_values = [(tag, column, count, vector) for column, tag, count, vector in new.tag_rows]
        validate.texts([tag for tag, *_ in tag_values], "tags")
        old, number = self.snapshot, self.snapshot.round + 1
        entries = zip(ids.tolist(), new.keys, new.tags, strict=True)
        items: list[ItemRow] = [
            (row, id_, None if key is None else str(key), cell_types.of_texts(entry), number)
            for row, (id_, key, entry) in enumerate(entries, old.rows)
        ]
        with self.committing() as (catalog_writer, state):
            checksum = self._append(codes, ids)
            model, model_digest = self._write_model(new, number, state)
            if len(ids) or new.model is not None or anchors:
                files.sync_folder(self.folder)
            self._count_ids(ids, new.numbered, state)
            catalog_writer.add_round(
                Round(
                    round=number,
                    time=time.time(),
                    kind=new.kind,
                    n=len(ids),
                    removed=len(gone),
                    ntotal=old.ntotal + len(ids) - len(gone),
                    trained=int(new.trained),
                    first_row=old.rows,
                    end_row=old.rows + len(ids),
                    checksum=checksum,
                    model=model,
                    model_digest=model_digest,
                    chunk_hash=new.chunk_hash,
                    seconds=float(new.seconds),
                    health=new.health,
                )
            )
            catalog_writer.retire(gone, number)
            catalog_writer.add_items(items)
            catalog_writer.add_tag_outliers([(id_, number, bits) for id_, bits in new.tag_outliers])
            catalog_writer.put_tags(tag_values, number)
            if len(state.models) > self._keep:
                state.models = state.models[-self._keep :]
                state.restorable = max(state.restorable, schema.model_round(state.models[0]))
                catalog_writer.forget_undo(state.restorable)
        return self.snapshot

    def _write_model(self, new: NewRound, number: int, state: State) -> tuple[str | None, str | None]:
        """Model and anchors of the round, where it has any; name and model_digest of the model in force."""
        model, model_digest = self.snapshot.model, self.snapshot.model_digest
        arrays, anchors = new.model, new.anchors
        if arrays is not None:
            model = schema.model_name(number)
            files.replace(self.folder / model, lambda file: write_npz(file, arrays))
            model_digest = Model(self.folder / model).digest
            state.models = [*state.models, model]
        if anchors is not None:
            state.anchors = self.write_file(schema.ANCHORS, lambda file: write_npy(file, anchors))
            state.anchors_round = number
        return model, model_digest

    @staticmethod
    def _count_ids(ids: NDArray[np.int64], numbered: bool, state: State) -> None:
        """The largest id ever used, and up to where the store gave all of them."""
        end = max(state.next_id, int(ids.max(initial=-1)) + 1)
        if numbered and state.auto_end == state.next_id:
            state.auto_end = end
        state.next_id = end

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
                catalog_writer = CatalogWriter(self.connection)
                yield catalog_writer, state
                catalog.write_state(self.connection, state)
                catalog_writer.close()
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
