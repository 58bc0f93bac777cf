"""A reader's view of one committed state: mapped codes, ids and the open model file."""

from __future__ import annotations

import difflib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, MissingItemError, StoreError

from . import catalog, codefile, database, files, packed_codes, schema
from .dead_rows import DeadRows
from .filtered import matching
from .model import Model, Npy
from .packed_codes import PackedCopies, Single
from .records import Item, Round, Snapshot
from .row_checks import RoundSums, RowChecks
from .scan import NO_ID, Scan, members
from .score_scan import By, ScoreScan

#: How often an opening reader follows a writer that removes the model just read about.
_ATTEMPTS = 5

#: Filters of a state that are kept, a byte a row each.
_FILTERS = 4

#: Bytes of codes and ids up to which those of the newest round are read when an index is opened: 1 ms.
_CHECKED = 1 << 20


class Filtered(NamedTuple):
    """The rows that a filter lets through, removed ones among them, and a search among the others."""

    rows: NDArray[np.bool_]
    scan: Scan


class Where(NamedTuple):
    """A filter, and the form in which it compares tags: see `where.compiled`."""

    text: str
    form: Callable[[str], str]


@dataclass(frozen=True)
class View:
    """One committed state, mapped; nothing in it changes while a writer appends.

    Attributes
    ----------
    folder : Path
    config : dict
        What the index was made with.
    snapshot : Snapshot
    mapped : MappedCodes
        Of all rows, removed ones too.
    ids : (rows,) array of int64
    dead : DeadRows
        Rows of items removed by then.
    model : Model or None
    anchors : Npy or None
    packed : PackedCopies
        Of `mapped`, made when searches are worth it.
    checks : RowChecks
        What of `mapped` and `ids` was compared with what was written.
    filters, earlier_filters : dict of str to Filtered
        What the newest `_FILTERS` filters let through, here and in the state before.
    """

    folder: Path
    config: dict[str, Any]
    snapshot: Snapshot
    mapped: codefile.MappedCodes
    ids: NDArray[np.int64]
    dead: DeadRows
    model: Model | None
    anchors: Npy | None
    packed: PackedCopies = field(repr=False, compare=False)
    checks: RowChecks = field(repr=False, compare=False)
    filters: dict[str, Filtered] = field(repr=False, compare=False, default_factory=dict)
    earlier_filters: dict[str, Filtered] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def open(cls, folder: Path, config: dict[str, Any], d: int, snapshot: Snapshot, dead: DeadRows) -> View:
        """Map the files of `snapshot`; FileNotFoundError if its model file is gone."""
        rows = snapshot.rows
        mapped = codefile.open_mapped(files.newest(folder, schema.CODES, snapshot.generation), d, rows)
        ids = codefile.map_ids(files.newest(folder, schema.IDS, snapshot.generation), rows)
        model = None if snapshot.model is None else Model(folder / snapshot.model)
        anchors = Npy(folder / schema.ANCHORS) if snapshot.anchors else None
        checks = RowChecks(folder, mapped.codes, ids, partial(_round_sums, folder, snapshot))
        packed = PackedCopies(mapped.codes, checks.everything)
        return cls(folder, config, snapshot, mapped, ids, dead, model, anchors, packed, checks)

    def after(self, earlier: View) -> View:
        """The same with the packed copies of an earlier state, if its rows are still the first ones here."""
        before, now = earlier.snapshot, self.snapshot
        same = (before.identity, before.generation, before.line) == (now.identity, now.generation, now.line)
        if not same or before.rows > now.rows:
            return self
        load = partial(_round_sums, self.folder, now)
        checks = RowChecks(self.folder, self.mapped.codes, self.ids, load, earlier.checks)
        if list(earlier.packed):
            checks.everything()
        # What a filter says of a row stays true: of rows that are there it is not asked again.
        filters = {**earlier.earlier_filters, **earlier.filters}
        return replace(
            self,
            filters={},
            earlier_filters=dict(list(filters.items())[-_FILTERS:]),
            packed=earlier.packed.extended(self.mapped.codes, checks.everything),
            checks=checks,
        )

    def check_round(self, number: int, first: int, end: int, checksum: str) -> None:
        """StoreError unless the rows of a round are what was written; a round of many is passed over.

        This tells most copies that were made file by file while a writer was at work.
        """
        codes, ids = self.mapped.codes[first:end], self.ids[first:end]
        if codes.nbytes + ids.nbytes > _CHECKED or codefile.checksum(codes, ids) == checksum:
            return
        raise StoreError(
            f"{self.folder / schema.CODES} or {schema.IDS}: the bytes of round {number} are not what was "
            "written; if this is a copy, make it again with 'woh-index backup', else restore both from a "
            "backup"
        )

    # ---- items --------------------------------------------------------------------------------------

    def items(self, ids: ArrayLike) -> list[Item]:
        """The items with these ids, in the order asked; StoreError names the first that is not there."""
        asked = _whole_numbers(ids)
        found = self.find(asked)
        missing = next((id_ for id_ in asked if id_ not in found), None)
        if missing is not None:
            raise MissingItemError(f"id {missing} is not in {self.folder}")
        return [found[id_] for id_ in asked]

    def find(self, ids: ArrayLike) -> dict[int, Item]:
        """The items with these ids, by id, without those that are not there."""
        asked = _whole_numbers(ids)
        # Sorted and without repeats: each leaf of the table is visited once. Beyond int64 is never there.
        return self._found("id", sorted({id_ for id_ in asked if -(2**63) <= id_ < 2**63}))

    def check_missing(self, ids: Sequence[int]) -> None:
        """StoreError for an id of this state that the catalogue has not, though nothing was erased since."""
        if not ids or not (rows := self._rows_of(ids)):
            return
        if database.read(self.folder, catalog.snapshot).generation == self.snapshot.generation:
            raise StoreError(
                f"{self.folder / schema.IDS} has id {min(rows)}, {schema.CATALOG} has not: one of them is "
                "damaged; restore both from a backup"
            )

    def id_of_key(self, key: str) -> int | None:
        """The id of the item with this key, None if no item has it."""
        return next(iter(self._found("key", [key])), None)

    def ids_of_keys(self, keys: Iterable[str]) -> dict[str, int]:
        """The ids of the items with these keys, by key, without those that are not there."""
        return {str(item.key): id_ for id_, item in self._found("key", sorted({*keys})).items()}

    def known_keys(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` that an item has."""
        return {*self.ids_of_keys(keys)}

    def near_keys(self, key: str) -> list[str]:
        """Up to three keys like one that no item has, the likest first."""
        found = database.read(self.folder, lambda connection: catalog.near_keys(connection, key))
        return difflib.get_close_matches(key, found, 3)

    def live_ids(self) -> NDArray[np.int64]:
        """The ids of all items, (ntotal,), in the order of their rows."""
        found: NDArray[np.int64] = np.asarray(self.ids[self._alive], np.int64)
        return found

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The stored codes of `ids`, (n, d // 8); StoreError names the first id that is not there."""
        if (wanted := validate.array(ids, "ids")).ndim > 1:
            raise InputError(f"ids have shape {wanted.shape}, expected 1-D integers")
        rows = [item.row for item in self.items(wanted)]
        found: NDArray[np.uint8] = self.mapped.codes[np.asarray(rows, dtype=np.intp)]
        return found

    def _found(self, column: str, values: list[Any]) -> dict[int, Item]:
        """The items whose id or key is among the values, by id."""
        items, stale = database.read(
            self.folder,
            lambda connection: catalog.items(connection, self.folder, column, values, self.snapshot),
        )
        for item in [] if stale else items:
            if self.ids[item.row] != item.id:
                raise StoreError(
                    f"{self.folder / schema.IDS} has id {self.ids[item.row]} at row {item.row}, "
                    f"{schema.CATALOG} id {item.id}: one of them is damaged; restore both from a backup"
                )
        if stale and items:  # rewritten: only the mapped ids know which rows this state has
            rows = self._rows_of([item.id for item in items])
            items = [replace(item, row=rows[item.id]) for item in reversed(items) if item.id in rows]
        return {item.id: item for item in items}

    def _rows_of(self, ids: Sequence[int]) -> dict[int, int]:
        """Rows of the live items with these ids, looked up in the mapped ids: a walk over all of them."""
        rows = np.flatnonzero(np.isin(self.ids, np.array(ids, np.int64)) & self._alive)
        return dict(zip(self.ids[rows].tolist(), rows.tolist(), strict=True))

    # ---- model --------------------------------------------------------------------------------------

    def learned(self) -> Model:
        """The model: arrays by name, read when asked for.

        Raises
        ------
        StoreError
            No round has written a model yet.
        """
        if self.model is None:
            raise StoreError(f"{self.folder} has no model yet; learn a first chunk with 'woh-index update'")
        return self.model

    def anchor_rows(self) -> NDArray[Any] | None:
        """The anchors, read-only; None while the model carries its own, since they may still change."""
        return None if "A" in self.learned() else self._anchors().read()

    def _anchors(self) -> Npy:
        if self.anchors is None:
            raise StoreError(f"{self.folder / schema.ANCHORS} is missing; restore it from a backup")
        return self.anchors

    def check_model(self) -> None:
        """StoreError unless the files of the model are those that were committed, to the byte."""
        self.learned().check(self.snapshot.model_digest)
        self.check_anchors()

    def check_anchors(self) -> None:
        """StoreError unless the anchors' file, if it is used, is the one that was committed."""
        if "A" not in self.learned():
            self._anchors().check(self.snapshot.anchors)

    def check_identity(self) -> None:
        """StoreError unless the model, and each array that is read of it, is the index's: for a query."""
        self.learned().check_identity(self.snapshot.model_digest)

    def check_rows(self) -> None:
        """StoreError unless codes and ids are what was written, to the byte: before they replace a copy.

        Where another process rewrote them since, the checksums of what is mapped here are gone.
        """
        seen = self.snapshot

        def known(run: sqlite3.Connection) -> list[Round]:
            with database.moment(run):
                same = catalog.read_state(run).generation == seen.generation
                return catalog.rounds(run, 1, seen.round) if same else []

        codefile.check_rounds(self.folder, database.read(self.folder, known), self.mapped.codes, self.ids)

    # ---- search -------------------------------------------------------------------------------------

    @cached_property
    def _alive(self) -> NDArray[np.bool_]:
        """Which rows an answer may have: (rows,)."""
        return self.dead.alive(self.snapshot.rows)

    @cached_property
    def everything(self) -> Scan:
        """A search among all items."""
        return Scan(self.mapped, self._alive if len(self.dead) else None)

    def among(self, allow: Any = None, deny: Any = None, where: Where | None = None) -> Scan:
        """A search among items that `allow` names (None: all), `deny` does not, and `where` lets through."""
        scan = self.everything if where is None else self.filtered(where)
        if allow is not None or deny is not None:
            self.checks.all_ids()
        if allow is not None:
            scan = scan.among(members(self.ids, allow, "allow"))
        if deny is not None:
            scan = scan.among(~members(self.ids, deny, "deny"))
        return scan

    def filtered(self, where: Where) -> Scan:
        """A search among the items that a filter lets through; of the newest filters the rows are kept."""
        known, text = self.filters, where.text if isinstance(where.text, str) else ""
        found = known.pop(text, None)
        if found is None:
            before = self.earlier_filters.get(text)
            first = None if before is None else before.rows
            rows = database.read(
                self.folder,
                lambda run: matching(
                    run, self.folder, where.text, where.form, self.snapshot, self.ids, first
                ),
            )
            found = Filtered(rows, self.everything.among(rows))
        known[text] = found
        while len(known) > _FILTERS:  # other threads may take some, too
            known.pop(next(iter(known)), None)
        return found.scan

    def ids_where(self, where: Where) -> NDArray[np.int64]:
        """The ids of the items that a filter lets through, in the order of their rows."""
        allowed = self.filtered(where).allowed
        self.checks.all_ids()
        found: NDArray[np.int64] = np.asarray(self.ids if allowed is None else self.ids[allowed], np.int64)
        return found

    def named(self, ids: Any) -> NDArray[np.int64]:
        """The ids of the items that an array_like of ids or a faiss.IDSelector names."""
        found: NDArray[np.int64] = np.asarray(self.ids[members(self.ids, ids, "ids") & self._alive], np.int64)
        return found

    def search(
        self,
        codes: Any,
        k: Any,
        allow: Any = None,
        deny: Any = None,
        bits: int | None = None,
        where: Where | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Hamming distances and ids of the k nearest codes, both (n, k).

        Ties: smaller distance first, then the smaller row. Where there are fewer than k codes the rest is
        2147483647 and -1.

        Parameters
        ----------
        codes : (n, d // 8) array of uint8
            Packed and padded as the stored ones; any strides.
        k : int
            At least 1; may exceed ntotal.
        allow, deny : array_like of ids, or faiss.IDSelector, optional
            Only items in `allow`, and none in `deny`, are looked at: see `scan.members`.
        bits : int, optional
            Of the codes, without the padding; None for all of d. What is packed of them is smaller.
        where : Where, optional
            Only items that it lets through are looked at.

        Raises
        ------
        InputError
            Another shape or dtype, k below 1, or ids that are no integers.
        """
        n_bytes = self.mapped.codes.shape[1] if bits is None else bits // 8
        scan = packed_codes.Hamming(self.packed, self.among(allow, deny, where), n_bytes)
        distances, rows = scan.nearest(codes, k)
        return distances, self.ids_at(rows)

    def score_scan(
        self, r: int, s: int, allow: Any = None, deny: Any = None, where: Where | None = None
    ) -> ScoreScan:
        """A search by score, of codes with r learned bits and then s instance bits, among the items named."""
        return ScoreScan(self.packed, self.among(allow, deny, where), r, s)

    def score_search(
        self,
        r: int,
        s: int,
        h: Single | None,
        a: Single | None,
        k: int,
        *,
        by: By = "both",
        expand: int = 0,
        allow: Any = None,
        deny: Any = None,
        where: Where | None = None,
    ) -> tuple[Single, NDArray[np.int64]]:
        """Scores and ids of the k best, both (n, k): see `ScoreScan.search`; -inf and -1 behind the last.

        `allow`, `deny` and `where` as for `search`.
        """
        S, rows = self.score_scan(r, s, allow, deny, where).search(h, a, k, by, expand)
        return S, self.ids_at(rows)

    def range_search(
        self, codes: Any, radius: Any, allow: Any = None, deny: Any = None, where: Where | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """All codes at a Hamming distance less than `radius`, as Faiss has it: lims (n + 1,), D and ids.

        Query i's answers are those from ``lims[i]`` to ``lims[i + 1]``, ordered as in `search`.
        """
        lims, distances, rows = self.among(allow, deny, where).within(codes, radius)
        return lims, distances, self.ids_at(rows)

    def ids_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of rows, NO_ID where there is none."""
        self.checks.of_ids(rows)
        # They are last in a row; a list, since NumPy's reductions would take a fiftieth of a single query.
        if NO_ID not in rows[..., -1:].ravel().tolist():
            return self.ids.take(rows)
        there = rows != NO_ID
        found = np.full(rows.shape, NO_ID, dtype=np.int64)
        found[there] = self.ids[rows[there]]
        return found


def open_view(folder: Path, wanted: Snapshot | None = None, before: View | None = None) -> View:
    """The newest committed state, which comes after `before`, or an earlier one that is `wanted`, mapped.

    Raises
    ------
    StoreError
        A file is damaged or missing; `wanted` is gone: its files were rewritten, or its model is not kept;
        the folder was replaced by another index than that of `wanted` or `before`.
    """

    def look(connection: sqlite3.Connection) -> View | StoreError:
        with database.moment(connection):
            catalog.check_meta(connection)
            config, d = catalog.settings(connection)
            newest = catalog.snapshot(connection)
            seen = wanted or newest
            if (known := before.snapshot if before else wanted) is not None:
                catalog.rewritten(connection, folder, known)
            if seen.generation != newest.generation:
                return StoreError(
                    f"the state of round {seen.round} is gone from {folder}, whose codes were rewritten "
                    "since; open the index again"
                )
            if before is not None and _removed_alike(before.snapshot, seen):
                dead = before.dead
            else:
                dead = catalog.dead(connection, seen, newest.round)
            newest_rows = None if before else catalog.newest_rows(connection, seen)
        try:
            with files.failures(folder, "open"):
                view = View.open(folder, config, d, seen, dead)
            if newest_rows is not None:
                view.check_round(*newest_rows)
        except StoreError as error:
            if isinstance(missing := error.__cause__, FileNotFoundError):
                way_out = "restore it from a backup" if seen == newest else "open the index again"
                return StoreError(f"{missing.filename} is missing; {way_out}")
            return error
        # A writer replaces files after its COMMIT: if there was none, these belong together.
        now = catalog.snapshot(connection)
        if now.generation != seen.generation:
            return StoreError(f"{folder} was rewritten each time it was opened; try again")
        if view.mapped.counted > now.rows:  # a header is patched after its COMMIT
            return codefile.lost_rounds(folder / schema.CODES, view.mapped.counted, now.rows)
        return view

    for _ in range(_ATTEMPTS):  # a writer removes models and renames files
        view = database.read(folder, look)
        if isinstance(view, View):
            return view
        failed = view
    raise failed


def _removed_alike(a: Snapshot, b: Snapshot) -> bool:
    """Whether the same rows are those of removed items in both states: within a generation they only grow."""
    return (a.generation, a.rows - a.ntotal) == (b.generation, b.rows - b.ntotal)


def _round_sums(folder: Path, seen: Snapshot, after: int) -> list[RoundSums] | None:
    """Checksums of codes and ids of the state `seen`, of rounds after `after`; None where they are gone."""

    def look(connection: sqlite3.Connection) -> list[RoundSums] | None:
        with database.moment(connection):
            try:
                gone = catalog.rewritten(connection, folder, seen)
            except StoreError:  # another index is in its place; what is mapped can still be searched
                gone = True
            return None if gone else catalog.round_sums(connection, after, seen)

    return database.read(folder, look) if os.path.lexists(folder / schema.CATALOG) else None


def _whole_numbers(ids: ArrayLike) -> list[int]:
    wanted = validate.array(ids, "ids")
    if wanted.size and wanted.dtype.kind not in "iu":
        raise InputError(f"ids have dtype {wanted.dtype}, expected integers")
    return [int(id_) for id_ in wanted.ravel().tolist()]
