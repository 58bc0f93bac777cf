"""The best answers of a search ordered by cosine of original features, as Faiss's IndexRefine does.

A large .npy is mapped, and only rows of answers are read. Whatever else `build` takes is read once; what
cannot be mapped where it is goes into a temporary file, which is mapped.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.display import display_path
from woh_faiss.encoders.encoder import EncoderRecord
from woh_faiss.errors import InputError
from woh_faiss.inputs import Columns, open_inputs
from woh_faiss.io.npz import read_npy
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.instance import unit_single
from woh_faiss.learner.kernel import Single
from woh_faiss.store import NO_ID, Item, View

#: Answers that are ordered unless another number is asked for: the larger of this and `TIMES` k.
LEAST, TIMES = 100, 10
#: Share of an item's instance bits that differ where its features are others, not rounded otherwise.
CHANGED = 1 / 8


class Refine:
    """Original features of an index's items, by id, key or place.

    Parameters
    ----------
    features : path, or (n, d) array_like of a real dtype
        An .npy or an array: row i is the item with id i. Or whatever `build` takes (Parquet, folders, .npz):
        a row is the item with its key, or with its id, or without both the item whose id is its place.
    note : callable, optional
        Gets a line for each guess of columns.

    Attributes
    ----------
    encoder : EncoderRecord or None
        What made the features, where the input says it.
    missing, changed : set of int
        Ids of answers so far that have no features here, and whose features here are not those of their code.
        The latter is told by instance bits, or not at all.

    Raises
    ------
    InputError
        There is no such file, it is damaged, or its rows are not features of one width.
    """

    def __init__(
        self, features: str | os.PathLike[str] | ArrayLike, *, note: Callable[[str], object] | None = None
    ) -> None:
        self.missing: set[int] = set()
        self.changed: set[int] = set()
        self.encoder: EncoderRecord | None = None
        self._keys: dict[str, int] | None = None
        self._ids: _Ids | None = None
        if not isinstance(features, str | os.PathLike):
            self.where = "refine"
            self._parts = [_rows(features, self.where)]
        else:
            path = Path(os.fsdecode(features))
            self.where = display_path(path)
            if _is_npy(path):
                self._parts = [_rows(read_npy(path, self.where, mapped=True), self.where)]
            else:
                self._parts = self._read(path, note)
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def d(self) -> int:
        """Width of the features."""
        return int(self._parts[0].shape[1])

    def order(
        self, view: View, hasher: Hasher, xq: NDArray[Any], I: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k answers of each query whose features have the largest cosine to it.

        Answers without features are left out. Of equal ones the earlier answer comes first.

        Parameters
        ----------
        view : View
            The state that answered.
        hasher : Hasher
            Its hash function, for instance bits of features.
        xq : (nq, d) array
            Query features.
        I : (nq, K) int64
            Answers of each query, `NO_ID` where there is none.
        k : int

        Returns
        -------
        D, I : (nq, k) float32 and int64
            Cosines, descending; -inf and `NO_ID` where there is no answer left.

        Raises
        ------
        InputError
            Queries have another width, none of the answers has features here, or some are not finite.
        """
        if self.d != hasher.d:
            raise InputError(
                f"{self.where} has features of {self.d} numbers, the index takes {hasher.d}; "
                "give the features that it was made of"
            )
        U = unit_single(validate.features(xq, d=self.d, name="queries"))
        ids = np.unique(I[I != NO_ID])
        items = view.find(ids)
        place = {id_: self._place(items[id_]) for id_ in ids.tolist() if id_ in items}
        absent = {id_ for id_, row in place.items() if row is None}
        if place and len(absent) == len(place):
            first = self._called(items[min(absent)])
            raise InputError(
                f"{self.where} has no row for any of the answers, not for {first}: its "
                "rows are items by key, by id, or without both by place: give features of these items"
            )
        self.missing |= absent
        D, found = np.full((len(I), k), -np.inf, np.float32), np.full((len(I), k), NO_ID, np.int64)
        for q, answers in enumerate(I.tolist()):
            there = [id_ for id_ in answers if place.get(id_) is not None]
            if not there:
                continue
            V = unit_single(self._features(np.array([place[id_] for id_ in there])))
            self._compare(view, hasher, V, [items[id_] for id_ in there])
            cosines = V @ U[q]
            best = np.argsort(-cosines, kind="stable")[:k]
            D[q, : len(best)], found[q, : len(best)] = cosines[best], np.array(there)[best]
        return D, found

    def notes(self) -> list[str]:
        """Lines about answers so far: how many have no features here, and how many other ones."""
        lines = []
        if self.missing:
            lines.append(
                f"{self.where} has no row for {len(self.missing):,} of the answers, the first of them id "
                f"{min(self.missing)}; they are left out"
            )
        if self.changed:
            lines.append(
                f"{self.where} has other features of {len(self.changed):,} of the answers than they were "
                f"indexed with, the first of them id {min(self.changed)}; replace those items, or give the "
                "features they were made of"
            )
        return lines

    def _compare(self, view: View, hasher: Hasher, V: Single, items: list[Item]) -> None:
        """Note items whose instance bits are not those of their features here, V of length 1."""
        if hasher.instance is None:
            return
        start, size = hasher.bits // 8, hasher.instance.bits // 8
        stored = view.mapped.codes[np.array([item.row for item in items]), start : start + size]
        differ = np.unpackbits(stored ^ hasher.instance.packed(V), axis=1).sum(axis=1)
        for place in np.flatnonzero(differ > CHANGED * hasher.instance.bits).tolist():
            self.changed.add(items[place].id)

    def _read(self, path: Path, note: Callable[[str], object] | None) -> list[NDArray[Any]]:
        """The features of whatever `build` reads, as parts that are mapped; notes ids and keys."""
        inputs = open_inputs([path], columns=Columns(tags=""))
        for line in inputs.notes(Columns(tags="")) if note is not None else ():
            note(line)  # type: ignore[misc]
        self.encoder = inputs.encoder
        parts: list[NDArray[Any] | slice] = []
        names: list[tuple[Any, Any]] = []
        n = d = 0
        try:
            with tempfile.TemporaryFile(prefix="woh-refine-") as spilled:
                for chunk in inputs:
                    X, d = chunk.features, chunk.features.shape[1]
                    if isinstance(X, np.memmap):
                        parts.append(X)
                    else:
                        spilled.write(np.ascontiguousarray(X, np.float32).data)
                        parts.append(slice(n, n + len(X)))
                        n += len(X)
                    names.append((chunk.ids, chunk.keys))
                spilled.flush()
                mapped = np.memmap(spilled, np.float32, "r", shape=(n, d)) if n else np.empty((0, d))
        except OSError as error:
            raise InputError(
                f"{self.where} does not fit into the folder of temporary files ({error.strerror}); set "
                "TMPDIR to another, or give an .npy"
            ) from error
        ids, keys = zip(*names, strict=True)
        if all(part is not None for part in ids):
            self._ids = _Ids(np.concatenate(ids), self.where)
        if all(part is not None for part in keys):
            self._keys = _places_of_keys(np.concatenate(keys), self.where)
        return [mapped[part] if isinstance(part, slice) else part for part in parts]

    def _place(self, item: Item) -> int | None:
        """The row of an item; None if there is none."""
        if self._keys is not None and item.key is not None:
            return self._keys.get(item.key)
        if self._ids is not None:
            return self._ids.place(item.id)
        return item.id if item.id < len(self) else None

    def _called(self, item: Item) -> str:
        return f"key {validate.short(item.key)}" if item.key is not None and self._keys else f"id {item.id}"

    def _features(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Rows (m, d); an InputError names one that is not finite."""
        part = np.searchsorted(self._ends, places, side="right")
        X = np.empty((len(places), self.d), np.result_type(np.float32, *{p.dtype for p in self._parts}))
        for number in np.unique(part).tolist():
            here = np.flatnonzero(part == number)
            start = int(self._ends[number]) - len(self._parts[number])
            rows = places[here] - start
            X[here] = self._parts[number][rows]
        bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(bad):
            raise InputError(
                f"{self.where}: features of row {places[bad[0]]} are not finite (NaN or infinite); repair it"
            )
        return X


class _Ids:
    """Places of ids, in as much memory as the ids."""

    def __init__(self, ids: NDArray[np.int64], where: str) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        if len(twice := np.flatnonzero(self._sorted[1:] == self._sorted[:-1])):
            raise InputError(f"{where} has id {self._sorted[twice[0]]} twice; give each item one row")

    def place(self, id_: int) -> int | None:
        near = int(np.searchsorted(self._sorted, id_))
        return int(self._order[near]) if near < len(self._sorted) and self._sorted[near] == id_ else None


def _places_of_keys(keys: NDArray[np.str_], where: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, key in enumerate(keys.tolist()):
        if places.setdefault(key, place) != place:
            raise InputError(f"{where} has key {validate.short(key)} twice; give each item one row")
    return places


def _rows(X: ArrayLike, where: str) -> NDArray[Any]:
    """X as rows of real numbers, which are not looked at."""
    rows = X if isinstance(X, np.ndarray) else validate.array(X, where)
    validate.features(rows[:0] if rows.ndim == 2 else rows, name=f"features of {where}")
    return rows


def _is_npy(path: Path) -> bool:
    """Whether a file is an .npy, by its first bytes."""
    try:
        with path.open("rb") as file:
            return path.is_file() and file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
    except OSError:  # a folder, or what `open_inputs` says a line about
        return False


def answers_to_order(k: int, wanted: int | None) -> int:
    """How many answers are ordered for the k best: `wanted`, which is at least k, or the usual number.

    Raises
    ------
    InputError
        Fewer than k are wanted.
    """
    if wanted is None:
        return max(LEAST, TIMES * k)
    if validate.positive_int(wanted, "refine_k") < k:
        raise InputError(f"refine_k is {wanted}, expected at least k, which is {k}")
    return int(wanted)
