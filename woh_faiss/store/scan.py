"""Exact search of mapped codes: the k nearest, or all within a radius, among the rows an answer may have."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError

from . import codefile

Rows = NDArray[np.int64]
Distances = NDArray[np.int32]

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
#: What Faiss answers where there is no neighbour.
NO_DISTANCE, NO_ID = np.iinfo(np.int32).max, -1
#: Codes compared by a search below which it stays on one thread: about 10 ms of scanning 64-bit codes.
#: Waking other threads costs 0.05 ms where cores are idle, and was seen to cost 100 ms where they are not.
_SMALL = 20_000_000
#: 64-bit words compared in one call of Faiss, which Ctrl-C cannot end: some tenths of a second.
_AT_ONCE = 250_000_000
#: Neighbours from which sorting by counting distances beats a heap: at 1,000 by 1.2 times.
_MANY = 200
#: Share of rows up to which those allowed are copied together and nothing else is scanned.
_FEW = 0.2
#: Neighbours asked for beyond k and its share of rows left out: few queries then end short.
_SPARE = 16
_forked = False


def _after_fork() -> None:
    # A child has none of its parent's OpenMP threads, and Faiss would wait for them forever.
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


class _OneThread:
    """Faiss uses one OpenMP thread inside, for calls from this thread only. A generator would take longer."""

    def __enter__(self) -> None:
        self.before = faiss.omp_get_max_threads()
        if self.before != 1:
            faiss.omp_set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        if self.before != 1:
            faiss.omp_set_num_threads(self.before)


def threads(few: bool) -> AbstractContextManager[None]:
    """One thread inside where there is `few` to do, and in a forked child."""
    return _OneThread() if few or _forked else nullcontext()


def parts(queries: NDArray[Any], rows: int) -> list[tuple[NDArray[Any], bool]]:
    """Queries, packed or a real number a bit, in parts soon done with, and whether one thread is enough."""
    n = len(queries)
    words = -(-queries.shape[1] // (8 if queries.dtype == np.uint8 else 64))
    # Faiss shares out queries, not rows: a second thread has nothing to do for one query.
    alone = n == 1 or n * rows < _SMALL
    size = max(1, _AT_ONCE // max(1, rows * words))
    if n <= size:
        return [(queries, alone)]
    return [(queries[start : start + size], alone) for start in range(0, n, size)]


@dataclass(frozen=True)
class Scan:
    """Codes, and which of their rows an answer may have.

    Attributes
    ----------
    mapped : MappedCodes
    allowed : (rows,) array of bool, or None
        None where all are.
    """

    mapped: codefile.MappedCodes
    allowed: NDArray[np.bool_] | None

    @cached_property
    def rows(self) -> int:
        """Codes, those left out among them."""
        return len(self.mapped.codes)

    @cached_property
    def ntotal(self) -> int:
        """Rows that an answer may have."""
        return self.rows if self.allowed is None else int(np.count_nonzero(self.allowed))

    @cached_property
    def places(self) -> Rows | None:
        """The rows that an answer may have, ascending; None where all may."""
        return None if self.allowed is None else np.flatnonzero(self.allowed)

    @property
    def few(self) -> bool:
        """Whether so few rows may answer that those are scanned alone."""
        return self.ntotal <= _FEW * self.rows

    @property
    def codes(self) -> NDArray[np.uint8]:
        """Codes that an answer may have, (ntotal, d // 8), in their order; a copy where not all may."""
        return self.mapped.codes if self.allowed is None else self.mapped.codes[self.allowed]

    def among(self, allowed: NDArray[np.bool_]) -> Scan:
        """The same with only those rows that are `allowed`, too."""
        return Scan(self.mapped, allowed if self.allowed is None else self.allowed & allowed)

    def nearest(self, codes: Any, k: Any) -> tuple[Distances, Rows]:
        """Distances and rows of the k nearest codes (n, k), NO_DISTANCE and NO_ID where there is none.

        Smaller distances first, then smaller rows: exactly what a file without the other rows would answer.
        """
        k, codes = validate.positive_int(k), self.checked(codes)
        n = len(codes)
        validate.empty_places(n, k, self.ntotal)
        some = min(k, self.ntotal) if n else 0  # Faiss does not clamp k
        if some:
            if self.ntotal == self.rows:
                distances, rows = self._ask(self._flat(some), codes, some)
            elif self.few:
                distances, rows = self._few(codes, some)
            else:
                distances, rows = self._dropping(codes, some)
            if some == k:
                return distances, rows
        else:
            distances, rows = np.empty((n, 0), np.int32), np.empty((n, 0), np.int64)
        lack = ((0, 0), (0, k - some))
        return (
            np.pad(distances, lack, constant_values=NO_DISTANCE),
            np.pad(rows, lack, constant_values=NO_ID),
        )

    def within(self, codes: Any, radius: Any) -> tuple[NDArray[np.int64], Distances, Rows]:
        """Faiss's range_search: all codes nearer than `radius`, strictly.

        Returns
        -------
        lims : (n + 1,) int64
            Query i's answers are those from ``lims[i]`` to ``lims[i + 1]``, the nearest first, then by row.
        D, rows : (lims[-1],) int32 and int64
        """
        codes = self.checked(codes)
        radius = min(validate.whole_number(radius, "radius", 0), 8 * codes.shape[1] + 1)  # an int for Faiss
        if self.few:
            index, among = self._gathered
        else:
            index, among = self.mapped.index, None
        counts, D, I = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for some, alone in parts(codes, index.ntotal):
            with threads(alone):
                lims, distances, rows = index.range_search(some, radius)
            count = np.diff(lims.astype(np.int64))
            query = np.repeat(np.arange(len(some)), count)
            if among is not None:
                rows = among[rows]
            elif self.allowed is not None:
                kept = self.allowed[rows]
                query, distances, rows = query[kept], distances[kept], rows[kept]
                count = np.bincount(query, minlength=len(some))
            order = np.lexsort((rows, distances, query))
            counts.append(count)
            D.append(distances[order].astype(np.int32))
            I.append(rows[order])
        return np.cumsum(np.concatenate(counts)), np.concatenate(D), np.concatenate(I)

    def checked(self, codes: Any) -> NDArray[np.uint8]:
        """The queries, C-contiguous; InputError unless they are packed codes of this width."""
        codes = np.asarray(codes)
        width = self.mapped.codes.shape[1]
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
            raise InputError(
                f"queries have shape {codes.shape} and dtype {codes.dtype}, "
                f"expected (n, {width}) bytes of uint8 for codes of {8 * width} bits"
            )
        return np.ascontiguousarray(codes)

    def _few(self, codes: NDArray[np.uint8], k: int) -> tuple[Distances, Rows]:
        """Among the few rows that are allowed, side by side."""
        index, rows = self._gathered
        index.use_heap = k < _MANY
        D, I = self._ask(index, codes, k)
        return D, rows[I]

    def _flat(self, k: int) -> Any:
        return self.mapped.index if k < _MANY else self.mapped.counting

    def _ask(self, index: Any, codes: NDArray[np.uint8], k: int, **named: Any) -> tuple[Distances, Rows]:
        """What Faiss answers, for k up to the number of rows."""
        found: list[tuple[Distances, Rows]] = []
        for some, alone in parts(codes, index.ntotal):
            with threads(alone):
                found.append(index.search(some, k, **named))
        if len(found) == 1:
            return found[0]
        D, I = zip(*found, strict=True)
        return np.concatenate(D), np.concatenate(I)

    def _dropping(self, codes: NDArray[np.uint8], k: int) -> tuple[Distances, Rows]:
        """More neighbours than k, and those that are not allowed dropped.

        The few queries that end short of k go through a bitmap that Faiss looks at for each row.
        """
        assert self.allowed is not None  # noqa: S101 - for mypy
        out = self.rows - self.ntotal
        more = min(self.rows, k + _SPARE + 2 * k * out // self.ntotal)
        D, I = self._ask(self._flat(more), codes, more)
        allowed = self.allowed[I]
        first = np.argsort(~allowed, axis=1, kind="stable")[:, :k]  # allowed ones first, in Faiss's order
        D, I = np.take_along_axis(D, first, axis=1), np.take_along_axis(I, first, axis=1)
        short = allowed.sum(axis=1) < k
        if short.any():
            D[short], I[short] = self._ask(self._flat(k), codes[short], k, params=self._bitmap)
        return D, I

    @cached_property
    def _gathered(self) -> tuple[Any, Rows]:
        """An index of the allowed codes alone, and which rows they are."""
        rows = np.arange(self.rows) if self.allowed is None else np.flatnonzero(self.allowed)
        index = faiss.IndexBinaryFlat(8 * self.mapped.codes.shape[1])
        if len(rows):
            index.add(np.ascontiguousarray(self.codes))
        return index, rows.astype(np.int64)

    @cached_property
    def _bitmap(self) -> Any:
        """Search parameters that leave rows out."""
        assert self.allowed is not None  # noqa: S101 - for mypy
        bits = np.packbits(self.allowed, bitorder="little")
        selector = _swig.IDSelectorBitmap(self.rows, faiss.swig_ptr(bits))
        parameters = _swig.SearchParameters(sel=selector)
        parameters.bits = bits  # Faiss keeps only the address
        return parameters


def members(ids: Rows, named: Any, name: str) -> NDArray[np.bool_]:
    """Which of `ids` are named, by an array_like of ids or by a faiss.IDSelector: (len(ids),).

    A selector is evaluated id by id, about a second a million; ids that no item has are ignored.
    """
    is_member: Callable[[int], bool] | None = getattr(named, "is_member", None)
    if is_member is not None:
        return np.fromiter(map(is_member, ids.tolist()), np.bool_, len(ids))
    found: NDArray[np.bool_] = np.isin(
        ids, validate.whole_numbers(np.atleast_1d(np.asarray(named)), name, None)
    )
    return found
