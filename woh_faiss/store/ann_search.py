"""Searches of a state through an approximate index of its codes, and the rows that came since beside it."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError

from . import codefile, faiss_indexes, files, fork_safety
from .records import AnnIndex
from .scan import NO_DISTANCE, NO_ID, Distances, Rows, Scan
from .view import View

#: Neighbours asked for beyond k and its share of rows left out; how many times more where that was too few.
_SPARE, _MORE = 16, 4


@dataclass(frozen=True)
class AnnSearcher:
    """A search of one state through an approximate index, as `Scan` searches all of it.

    Attributes
    ----------
    view : View
    ann : AnnIndex
    index : faiss.IndexBinary
        Of the first `ann.rows` rows.
    """

    view: View
    ann: AnnIndex
    index: Any

    def nearest(self, codes: NDArray[np.uint8], k: int) -> tuple[Distances, Rows]:
        """Distances and rows, as `Scan.nearest`: exact among the rows that are newer."""
        D, rows = self._of_ann(codes, min(k, self.ann.rows))
        if self._tail.ntotal:
            D_tail, tail = self._tail.nearest(codes, min(k, self._tail.ntotal))
            D = np.concatenate([D, D_tail], axis=1)
            rows = np.concatenate([rows, np.where(tail == NO_ID, NO_ID, tail + self.ann.rows)], axis=1)
        return _best(D, rows, k)

    def _of_ann(self, codes: NDArray[np.uint8], k: int) -> tuple[Distances, Rows]:
        """Of the rows it holds: more neighbours than k, and removed ones dropped."""
        alive = self.view.everything.allowed
        n, out = self.ann.rows, self._out
        if alive is None:
            return faiss_indexes.nearest(self.index, codes, k)
        more = min(n, k + (_SPARE + 2 * k * out // max(1, n - out) if out else 0))
        D, rows = np.full((len(codes), k), NO_DISTANCE, np.int32), np.full((len(codes), k), NO_ID, np.int64)
        short = np.arange(len(codes))
        while len(short):
            D_all, found = faiss_indexes.nearest(self.index, codes[short], more)
            exhausted = found[:, -1] == NO_ID
            gone = ~alive[found]  # NO_ID looks at the last row, which is no matter
            D_all[gone], found[gone] = NO_DISTANCE, NO_ID
            D[short], rows[short] = _best(D_all, found, k)
            short = short[(rows[short, -1] == NO_ID) & ~exhausted]
            if more == n:
                break
            more = min(n, _MORE * more)
        return D, rows

    @cached_property
    def _out(self) -> int:
        """How many of the rows it holds may not answer."""
        alive = self.view.everything.allowed
        return 0 if alive is None else int(np.count_nonzero(~alive[: self.ann.rows]))

    @cached_property
    def _tail(self) -> Scan:
        """The scan of the rows that are newer."""
        start, scan = self.ann.rows, self.view.everything
        codes = scan.mapped.codes[start:]
        flat: Any = faiss.IndexBinaryFlat(8 * codes.shape[1])
        if len(codes):
            flat.add(codes)
        return Scan(
            codefile.MappedCodes(flat, flat, codes, None),
            None if scan.allowed is None else scan.allowed[start:],
        )


def _best(D: Distances, rows: Rows, k: int) -> tuple[Distances, Rows]:
    """The k first by distance, then by row, padded where there are fewer."""
    if (lack := k - D.shape[1]) > 0:
        D = np.pad(D, ((0, 0), (0, lack)), constant_values=NO_DISTANCE)
        rows = np.pad(rows, ((0, 0), (0, lack)), constant_values=NO_ID)
    order = np.lexsort((rows, D), axis=1)[:, :k]
    return np.take_along_axis(D, order, axis=1), np.take_along_axis(rows, order, axis=1)


class AnnCache:
    """The approximate indexes that an opened `Store` has read, by kind; threads share them."""

    def __init__(self) -> None:
        self._held: dict[str, AnnSearcher] = {}
        self._reading = threading.RLock()

    def clear(self) -> None:
        """Close them."""
        self._held = {}

    def searcher(self, view: View, kind: str) -> AnnSearcher:
        """A search of `view` through its approximate index of a kind, read when first asked for.

        Raises
        ------
        InputError
            The kind is unknown.
        StoreError
            There is none, its file is gone or damaged; other searches are not touched.
        """
        check_kind(kind, "ann", ", or None")
        held = self._held.get(kind)
        if held is None or held.view is not view:
            ann = next((it for it in view.snapshot.ann if it.kind == kind), None)
            if ann is None:
                raise StoreError(
                    f"{view.folder} has no approximate index {kind}; 'woh-index build-ann {kind}' makes one"
                )
            with fork_safety.gate, self._reading:  # a fork waits, else the child might wait for this forever
                held = _taken(view, ann, self._held.get(kind))
                self._held = {**self._held, kind: held}
        return held


def _taken(view: View, ann: AnnIndex, held: AnnSearcher | None) -> AnnSearcher:
    """A search of `view` with what is held, if that is the index wanted, or else read."""
    if held is not None and held.ann.name == ann.name:
        return AnnSearcher(view, ann, held.index)
    try:
        return AnnSearcher(view, ann, load(view.folder, ann, 8 * view.mapped.codes.shape[1]))
    except StoreError as error:
        # A writer has built another meanwhile; one that is older lacks rows, which are scanned.
        if not isinstance(error.__cause__, FileNotFoundError) or held is None:
            raise
        other = held.view.snapshot.generation != view.snapshot.generation
        if other or held.ann.rows > view.snapshot.rows:
            raise
        return AnnSearcher(view, held.ann, held.index)


def load(folder: Path, ann: AnnIndex, d: int) -> Any:
    """The Faiss index in a ANN file; StoreError unless it is what was written, to the byte."""
    path, again = folder / ann.name, f"'woh-index build-ann {ann.kind}' makes it again"
    try:
        with files.failures(folder, "open"), files.open_regular(path) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != ann.sha256:
                raise StoreError(f"{path} is not what was written (another SHA-256); {again}")
            file.seek(0)
            try:
                index = faiss_indexes.read(file)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise StoreError(
                    f"{path} is not an index that Faiss {faiss.__version__} reads ({reason}); {again}"
                ) from error
    except StoreError as error:
        if isinstance(missing := error.__cause__, FileNotFoundError):
            raise StoreError(f"{path} is missing; open the index again, or {again}") from missing
        raise
    if (index.ntotal, index.d) != (ann.rows, d):
        raise StoreError(f"{path} holds {index.ntotal} codes of {index.d} bits, expected others; {again}")
    return index


def check_kind(kind: str, name: str = "kind", also: str = "") -> None:
    """InputError unless an approximate index may be of this kind; `name` is what the parameter is called."""
    if not isinstance(kind, str) or kind not in faiss_indexes.SUBLINEAR:
        expected = ", ".join(faiss_indexes.SUBLINEAR)
        raise InputError(f"{name} is {validate.short(kind)}, expected one of {expected}{also}")
