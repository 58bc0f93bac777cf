"""A writer's queries of the catalogue, and its checks before anything is written."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError

from . import cell_types, database, erased_ids
from .catalog_writer import ItemRow
from .records import Snapshot, State


class Lookups:
    """Questions about ids and keys, under the lock that `WriteTransaction` holds."""

    folder: Path
    connection: sqlite3.Connection
    d: int
    state: State
    snapshot: Snapshot

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
            select = "SELECT row, id, key, tags, round FROM items WHERE id IN"
            rows = database.where_in(self.connection, select, wanted)
            found: list[ItemRow] = cell_types.all_typed("items", rows, cell_types.ITEM)
        if len(found) != len(wanted):
            unknown = sorted(set(wanted) - {id_ for _, id_, *_ in found})
            raise InputError(f"id {unknown[0]} is not in {self.folder}; only what is there can be removed")
        return found

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
