"""One update of an index, under the writer lock: check all, write behind the end, COMMIT, settle."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError
from woh_faiss.io.npz import write_npz
from woh_faiss.metadata import Metadata, new_types

from . import (
    catalog,
    cell_types,
    codefile,
    database,
    erased_ids,
    files,
    generations,
    item_metadata,
    row_checks,
    schema,
)
from .catalog_writer import CatalogWriter, ItemRow, item_row
from .item_metadata import ColumnSlot
from .model import Model, check_arrays, write_npy
from .records import NewRound, Round, State
from .recovery import settle
from .writer_lock import WriterLock


class WriteTransaction:
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
            catalog.check_meta(connection)  # by its state files are cut and removed
            self.state, self.snapshot = catalog.read_state(connection), catalog.snapshot(connection)
            newest = catalog.newest_rows(connection, self.snapshot)
        with files.failures(folder, "repair"):
            settle(folder, d, self.state, self.snapshot, newest)

    @property
    def next_id(self) -> int:
        """The largest id ever used, plus 1."""
        return self.snapshot.next_id

    @property
    def has_anchors(self) -> bool:
        """Whether the anchors were committed."""
        return self.state.anchors is not None

    # ---- questions about ids and keys --------------------------------------------------------------------

    def known_ids(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Those of `ids` that were ever used, removed ones included, in the order given."""
        given = np.asarray(ids, dtype=np.int64)
        # Most chunks bring ids beyond the largest one, or without a gap: nothing to look up.
        candidates = given[given < self.snapshot.next_id].tolist()
        end = self.state.auto_end
        unsure = [id_ for id_ in candidates if id_ >= end]
        used = {id_ for table in ("items", "removed") for id_ in self._column(table, "id", unsure)}
        with database.failures(self.folder, 0):
            used |= erased_ids.among(self.connection, [id_ for id_ in unsure if id_ not in used])
        return np.array([id_ for id_ in candidates if id_ < end or id_ in used], dtype=np.int64)

    def known_keys(self, keys: Iterable[str | None]) -> list[str]:
        """Those of `keys` that a live item has, in the order given."""
        given = [key for key in keys if key is not None]
        used = set(self._column("items", "key", given))
        return [key for key in given if key in used]

    def live(self, ids: Iterable[int] = (), keys: Iterable[str] = ()) -> dict[int, str | None]:
        """Ids and keys of the live items that have one of these ids or keys."""
        with database.failures(self.folder, 0):
            found: dict[int, str | None] = {}
            for column, values in (("id", ids), ("key", keys)):
                select = f"SELECT id, key FROM items WHERE {column} IN"  # noqa: S608
                rows = database.where_in(self.connection, select, values)
                found |= dict(
                    cell_types.all_typed("items", rows, cell_types.some(cell_types.ITEM, "id", "key"))
                )
            return found

    def _column(self, table: str, column: str, values: Iterable[Any]) -> list[Any]:
        """Which values a column of a table has."""
        select = f"SELECT {column} FROM {table} WHERE {column} IN"  # noqa: S608
        with database.failures(self.folder, 0):
            rows = database.where_in(self.connection, select, values)
            return [
                value
                for (value,) in cell_types.all_typed(table, rows, cell_types.some(cell_types.ITEM, column))
            ]

    def live_rows(self, ids: Sequence[int]) -> list[ItemRow]:
        """The rows of `items` that have these ids; InputError if one has none."""
        wanted = sorted(set(ids))
        with database.failures(self.folder, 0):
            slots = item_metadata.n_slots(self.metadata_columns())
            pairs = item_metadata.read_items(self.connection, "items", cell_types.ITEM, "id", wanted, slots)
            found: list[Any] = [row for row, _ in pairs]
        if len(found) != len(wanted):
            unknown = sorted(set(wanted) - {id_ for _, id_, *_ in found})
            raise InputError(f"id {unknown[0]} is not in {self.folder}; only what is there can be removed")
        return found

    def metadata_columns(self) -> list[ColumnSlot]:
        """The columns of metadata there are."""
        with database.failures(self.folder, 0):
            return item_metadata.columns(self.connection)

    def check_metadata(self, given: Metadata | None) -> None:
        """InputError unless these columns fit those there are."""
        if given:
            new_types({it.name: it.type for it in self.metadata_columns()}, given)

    def live_names(self, names: NDArray[np.int64], replaced: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Which of the items called (id, round), (n, 2), are live, and not among those to be `replaced`."""
        wanted = sorted({*names[:, 0].tolist()} - {*replaced, -1})
        with database.failures(self.folder, 0):
            rows = database.where_in(self.connection, "SELECT id, round FROM items WHERE id IN", wanted)
            there = set(cell_types.all_typed("items", rows, cell_types.some(cell_types.ITEM, "id", "round")))
        return np.array([(id_, number) in there for id_, number in names.tolist()], np.bool_)

    def check_codes(
        self, codes: Any, ids: ArrayLike, replaced: set[int]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """`codes` and `ids` as arrays that fit; ids are new, or among the `replaced`."""
        codes = np.asarray(codes)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self.d // 8:
            raise InputError(
                f"codes have shape {codes.shape} and dtype {codes.dtype}, "
                f"expected (n, {self.d // 8}) bytes of uint8 for {self.d} bits"
            )
        checked = validate.item_ids(np.asarray(ids, np.int64) if len(codes) == 0 else ids, len(codes))
        known = [id_ for id_ in self.known_ids(checked).tolist() if id_ not in replaced]
        if known:
            raise InputError(
                f"id {known[0]} is already in {self.folder}, or was removed from it "
                f"({len(known)} of this chunk's {len(codes)} ids); leave them out, or give new ids"
            )
        return np.ascontiguousarray(codes), checked

    def check_keys(self, keys: Sequence[str | None], n: int, freed: set[str | None]) -> None:
        """InputError unless these are n keys, each once, that no item has or that are `freed`."""
        if len(keys) != n:
            raise InputError(f"there are {len(keys)} keys for {n} items; give one an item, None for none")
        given = [key for key in keys if key is not None]
        validate.texts(given, "keys")
        twice = [key for key, count in Counter(given).items() if count > 1]
        if twice:
            raise InputError(f"key {twice[0]!r} is given twice in one chunk")
        known = [key for key in self.known_keys(given) if key not in freed]
        if known:
            raise InputError(
                f"key {known[0]!r} is already in {self.folder}; leave the item out, or give another key"
            )

    def early_features(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows (m,), ascending, of which features are kept, and these, (m, d) float32; (0, 0) if none are."""
        with database.failures(self.folder, 0):
            return catalog.early_features(self.connection, self.snapshot)

    def _check_early(self, early: Any, n: int) -> list[tuple[int, bytes]]:
        """Features of n new items as rows of their table; InputError if they do not fit."""
        X = validate.features(early, name="early features")
        if X.dtype != np.float32 or len(X) != n:
            raise InputError(
                f"early features have shape {X.shape} and dtype {X.dtype}, expected float32, "
                f"a row for each of {n} items"
            )
        with database.failures(self.folder, 0):
            width = catalog.early_width(self.connection)
        if width not in (None, X.shape[1]):
            raise InputError(
                f"early features have {X.shape[1]} columns, those that {self.folder} keeps have {width}"
            )
        return [(row, x.tobytes()) for row, x in enumerate(X.astype("<f4", order="C"), self.snapshot.rows)]

    def _check_recoded(self, recoded: Any) -> NDArray[np.uint8]:
        """Codes for all rows there are; InputError if they do not fit."""
        found, shape = np.asarray(recoded), (self.snapshot.rows, self.d // 8)
        if found.dtype != np.uint8 or found.shape != shape:
            raise InputError(
                f"recoded has shape {found.shape} and dtype {found.dtype}, expected {shape} bytes of uint8: "
                f"a code of {self.d} bits for each row of {self.folder}"
            )
        return np.ascontiguousarray(found)

    # ---- one change, committed ---------------------------------------------------------------------------

    def remove(self, ids: Sequence[int]) -> Round:
        """Take these live items away; see `commit`, of which this is a round that adds nothing."""
        return self.commit(NewRound("removed", np.empty((0, self.d // 8), np.uint8), remove=ids))

    def commit(self, new: NewRound) -> Round:
        """The state after this round is on the disk: all of it, or (on any error) none of it.

        Returns the round's record; `snapshot` is the state.

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
        early = [] if new.early is None else self._check_early(new.early, len(ids))
        recoded = None if new.recoded is None else self._check_recoded(new.recoded)
        if recoded is not None and early:
            raise InputError("early and recoded are both given; features are kept until there are such codes")
        old, number = self.snapshot, self.snapshot.round + 1
        trust = [None] * len(ids) if new.trust is None else new.trust
        columns, cells = item_metadata.placed(self.metadata_columns(), new.metadata or {}, len(ids), number)
        entries = zip(ids.tolist(), new.keys, new.tags, trust, cells, strict=True)
        items: list[ItemRow] = [
            item_row(
                row, id_, None if key is None else str(key), cell_types.of_texts(entry), number, trusted, own
            )
            for row, (id_, key, entry, trusted, own) in enumerate(entries, old.rows)
        ]
        with self.committing() as (catalog_writer, state):
            if recoded is None:
                checksum = self._append(codes, ids)
            else:
                checksum = self._recode(recoded, codes, ids, catalog_writer, state)
            model, model_digest = self._write_model(new, number, state)
            if len(ids) or new.model is not None or anchors:
                files.sync_folder(self.folder)
            self._count_ids(ids, new.numbered, state)
            record = Round(
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
            catalog_writer.add_round(record, row_checks.id_sums(ids))
            catalog_writer.retire(gone, number)
            catalog_writer.add_items(items)
            if columns or any(cells):
                catalog_writer.add_metadata(columns, list(enumerate(cells, old.rows)))
            catalog_writer.put_tags(tag_values, number)
            if early:
                catalog_writer.add_early_features(early)
            if recoded is not None:
                state.restorable = state.recoded = number
            if more := len(state.models) > self._keep:
                state.models = state.models[-self._keep :]
                state.restorable = max(state.restorable, schema.model_round(state.models[0]))
            if more or recoded is not None:
                catalog_writer.forget_undo(state.restorable)
        return record

    def _write_model(self, new: NewRound, number: int, state: State) -> tuple[str | None, str | None]:
        """Model and anchors of the round, where it has any; name and digest of the model in force."""
        model, model_digest = self.snapshot.model, self.snapshot.model_digest
        arrays, anchors = new.model, new.anchors
        if arrays is not None:
            model = schema.model_name(number)
            self.write_model(model, arrays)
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
                newest = catalog.newest_rows(self.connection, now)
            settle(self.folder, self.d, state, now, newest)

    def _append(self, codes: NDArray[np.uint8], ids: NDArray[np.int64]) -> str:
        """Codes and ids behind the committed end; SHA-256 of their bytes."""
        stored = np.ascontiguousarray(ids, dtype="<i8")
        if len(ids):
            files.append(self.folder / schema.CODES, codefile.end(self.d, self.snapshot.rows), codes)
            files.append(self.folder / schema.IDS, 8 * self.snapshot.rows, stored)
        return codefile.checksum(codes, stored)

    def _recode(
        self,
        recoded: NDArray[np.uint8],
        codes: NDArray[np.uint8],
        ids: NDArray[np.int64],
        catalog_writer: CatalogWriter,
        state: State,
    ) -> str:
        """Another generation: the rows there are with other codes, then the new ones; SHA-256 of their bytes.

        StoreError where a row is not what was written: its round's new checksum would hide that.
        """
        catalog_writer.check("rounds", "early_features")
        rows, folder = self.snapshot.rows, self.folder
        rounds = catalog.rounds(self.connection, 1, self.snapshot.round)
        if [it.first_row for it in rounds] + [rows] != [0] + [it.end_row for it in rounds]:
            raise sqlite3.DatabaseError("the rounds do not follow each other")
        known = generations.mapped(folder / schema.CODES, folder / schema.IDS, self.d, rows)
        codefile.check_rounds(folder, rounds, *known)
        state.leave(self.snapshot, self.snapshot.round)
        stored = np.ascontiguousarray(ids, dtype="<i8")
        blocks = [recoded, codes], [known[1], stored]
        generations.write(folder, self.d, state.generation, rows + len(ids), *blocks)
        places = [(slice(it.first_row, it.end_row), it.round) for it in rounds]
        catalog_writer.recode(
            [(codefile.checksum(recoded[at], known[1][at]), number) for at, number in places]
        )
        return codefile.checksum(codes, stored)

    def write_model(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """A new model file of the folder."""
        files.replace(self.folder / name, lambda file: write_npz(file, arrays))

    def write_file(self, name: str, write: Any) -> str:
        """A new file of the folder; SHA-256 of its bytes."""
        files.replace(self.folder / name, write)
        return files.sha256_of(self.folder / name)
