"""One update of an index, under the writer lock: check all, write behind the end, COMMIT, settle."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError

from . import catalog, codefile, files, schema
from .catalog import Snapshot
from .model import check_arrays, write_npy, write_npz

TagRow = tuple[int | None, str, int, bytes | None]
#: Files an update makes, under their own and their temporary names; all else in the folder is not ours.
_OURS = re.compile(rf"(model-\d+\.npz|anchors\.npy)({re.escape(files.TEMPORARY)})?")


@dataclass(frozen=True, slots=True)
class _Committed:
    """What the files must agree with: the state, the model files to keep, SHA-256 of the anchors or None."""

    snapshot: Snapshot
    models: list[str]
    anchors: str | None


class Writing:
    """The right to write, from :meth:`Store.writing`; ends with one :meth:`commit` or with nothing.

    Attributes
    ----------
    snapshot : Snapshot
        The committed state, which no other writer can change now.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, d: int, keep_models: int) -> None:
        self._folder, self._connection = folder, connection
        self._d, self._keep = d, keep_models
        self._open = True
        with catalog.failures(folder, 0):
            self._committed = self._read()
        self.snapshot = self._committed.snapshot
        with files.failures(folder, "repair"):
            self._settle(self._committed)

    @property
    def next_id(self) -> int:
        """The largest id ever used, plus 1."""
        return self.snapshot.next_id

    @property
    def has_anchors(self) -> bool:
        """Whether the anchors were committed."""
        return self._committed.anchors is not None

    def known_ids(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Those of `ids` that were ever used, deleted ones included, in the order given."""
        given = np.asarray(ids, dtype=np.int64)
        # Most chunks bring ids beyond the largest one: nothing to look up.
        candidates = given[given < self.next_id].tolist()
        with catalog.failures(self._folder, 0):
            rows = catalog.where_in(self._connection, "SELECT id FROM items WHERE id IN", candidates)
            used = {id_ for (id_,) in rows}
        return np.array([id_ for id_ in candidates if id_ in used], dtype=np.int64)

    def known_keys(self, keys: Iterable[str | None]) -> list[str]:
        """Those of `keys` that a live item has, in the order given."""
        given = [key for key in keys if key is not None]
        with catalog.failures(self._folder, 0):
            select = "SELECT key FROM items WHERE deleted IS NULL AND key IN"
            used = {key for (key,) in catalog.where_in(self._connection, select, given)}
        return [key for key in given if key in used]

    def commit(
        self,
        *,
        kind: Literal["trained", "encoded"],
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
    ) -> Snapshot:
        """The state after this round is on the disk: all of it, or (on any error) none of it.

        Parameters
        ----------
        kind : "trained" or "encoded"
            Whether the round changed the model.
        codes : (n, d // 8) array of uint8
            Packed codes, padded to the store's d.
        ids : (n,) array of int64
            New, not negative, no two equal.
        keys, tags : n entries each
            A key of its own or None; a list of tags.
        trained, seconds : int, float
            Items learned from; what the round took so far.
        model : arrays by name, optional
            None: the previous model stays in force.
        anchors : array, optional
            Only in the first round that has them.
        tag_rows : (column, tag, count, vector) each
            New or changed rows of the tag table; each replaces the tag's row.
        chunk_hash, health : str, dict
            Kept in the round's row.

        Raises
        ------
        InputError
            Something does not fit; nothing was written and the lock is still held.
        StoreError
            The disk refused; nothing is changed and this object cannot be used again.
        """
        if not self._open:
            raise StoreError(f"this update of {self._folder} has ended; start another with Store.writing()")
        codes, ids = self._check_codes(codes, ids)
        self._check_keys(keys, len(ids))
        if len(tags) != len(ids):
            raise InputError(
                f"there are {len(tags)} tag lists for {len(ids)} items; give one an item, empty for none"
            )
        if kind not in ("trained", "encoded"):
            raise InputError(f"kind is {kind!r}, expected 'trained' or 'encoded'")
        check_arrays({**(model or {}), **({} if anchors is None else {"anchors": anchors})})
        if anchors is not None and self._committed.anchors is not None:
            raise InputError(f"{self._folder} has its anchors already; they are written once")
        tag_values = [(tag, column, count, vector) for column, tag, count, vector in tag_rows]
        _check_text([tag for tag, *_ in tag_values], "tag")
        item_tags = [json.dumps(list(entry)) if len(entry) else None for entry in tags]
        health_text = None if health is None else json.dumps(health)

        old, number = self.snapshot, self.snapshot.round + 1
        state = {"models": list(self._committed.models), "anchors": self._committed.anchors}
        try:
            with files.failures(self._folder, "write"), catalog.failures(self._folder, 0):
                checksum = self._append(codes, ids)
                name, fingerprint = old.model, old.fingerprint
                if model is not None:
                    name = schema.model_name(number)
                    fingerprint = self._write_file(name, lambda file: write_npz(file, model))
                    state["models"] = [*self._committed.models, name][-self._keep :]
                if anchors is not None:
                    state["anchors"] = self._write_file(schema.ANCHORS, lambda file: write_npy(file, anchors))
                files.sync_folder(self._folder)
                top = int(max(old.next_id - 1, ids.max(initial=-1)))
                new = Snapshot(number, old.ntotal + len(ids), name, fingerprint, top + 1)
                run = self._connection
                run.execute(
                    "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(number, time.time(), kind, len(ids), old.ntotal, new.ntotal, top, int(trained)),
                        *(checksum, name, fingerprint, chunk_hash, float(seconds), health_text),
                    ),
                )
                run.executemany(
                    "INSERT INTO items (id, row, key, tags, round) VALUES (?, ?, ?, ?, ?)",
                    (
                        (id_, row, key, text, number)
                        for row, (id_, key, text) in enumerate(
                            zip(ids.tolist(), keys, item_tags, strict=True), old.ntotal
                        )
                    ),
                )
                run.executemany(
                    'INSERT INTO tags (tag, "column", count, vector) VALUES (?, ?, ?, ?) ON CONFLICT (tag) '
                    'DO UPDATE SET "column" = excluded."column", count = excluded.count, '
                    "vector = excluded.vector",
                    tag_values,
                )
                run.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (json.dumps(state),))
                with files.step("COMMIT"):
                    run.execute("COMMIT")
        except BaseException:
            self.end()
            raise
        self._open = False
        self._tidy()
        self.snapshot = new
        return new

    def end(self) -> None:
        """Take back what was not committed; nothing to do after a commit."""
        self._open = False
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self._tidy()

    def _tidy(self) -> None:
        """Settle the files after COMMIT or ROLLBACK, if no other writer has come in between.

        Both give the lock away, so it is taken again and the catalogue read again: files are only ever
        cut to what is committed under the lock that is held. A writer that was faster settles them
        itself, and the next one does if the disk fails here; so nothing here is an error.
        """
        with suppress(OSError, StoreError, sqlite3.Error):
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._settle(self._read())
            finally:
                self._connection.execute("ROLLBACK")

    def _read(self) -> _Committed:
        state = catalog.state(self._connection)
        return _Committed(catalog.snapshot(self._connection), state["models"], state["anchors"])

    def _settle(self, committed: _Committed) -> None:
        """Make the files agree with the catalogue; needs the lock."""
        ntotal = committed.snapshot.ntotal
        codefile.settle(self._folder / schema.CODES, self._d, ntotal)
        files.truncate(self._folder / schema.IDS, 8 * ntotal)
        keep = {*committed.models, *([schema.ANCHORS] if committed.anchors else [])}
        for path in sorted(self._folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in keep:
                with files.step(f"remove {path.name}"):
                    path.unlink()

    def _append(self, codes: NDArray[np.uint8], ids: NDArray[np.int64]) -> str:
        """Codes and ids behind the committed end; SHA-256 of their bytes."""
        stored = np.ascontiguousarray(ids, dtype="<i8")
        files.append(self._folder / schema.CODES, codefile.end(self._d, self.snapshot.ntotal), codes)
        files.append(self._folder / schema.IDS, 8 * self.snapshot.ntotal, stored)
        digest = hashlib.sha256(codes.tobytes())
        digest.update(stored.tobytes())
        return digest.hexdigest()

    def _write_file(self, name: str, write: Any) -> str:
        """A new file of the folder; SHA-256 of its bytes."""
        files.replace(self._folder / name, write)
        with (self._folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _check_codes(self, codes: Any, ids: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        codes = np.asarray(codes)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self._d // 8:
            raise InputError(
                f"codes have shape {codes.shape} and dtype {codes.dtype}, "
                f"expected (n, {self._d // 8}) bytes of uint8 for {self._d} bits"
            )
        checked = validate.item_ids(ids, len(codes))
        known = self.known_ids(checked)
        if len(known):
            raise InputError(
                f"id {known[0]} is already in {self._folder}, or was removed from it "
                f"({len(known)} of this chunk's {len(codes)} ids); leave them out, or give new ids"
            )
        return np.ascontiguousarray(codes), checked

    def _check_keys(self, keys: Sequence[str | None], n: int) -> None:
        if len(keys) != n:
            raise InputError(f"there are {len(keys)} keys for {n} items; give one an item, None for none")
        given = [key for key in keys if key is not None]
        _check_text(given, "key")
        twice = [key for key, count in Counter(given).items() if count > 1]
        if twice:
            raise InputError(f"key {twice[0]!r} is given twice in one chunk")
        known = self.known_keys(given)
        if known:
            raise InputError(
                f"key {known[0]!r} is already in {self._folder}; leave the item out, or give another key"
            )


def _check_text(values: Sequence[Any], name: str) -> None:
    """InputError unless every value is text that UTF-8 can hold."""
    for value in values:
        try:
            value.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InputError(
                f"{name} {value!r} is not text that can be stored; give a valid string"
            ) from None
