"""Exact search by score: the k best of all items, without scoring all of them.

Fagin's threshold algorithm on two lists: the K best by the learned bits and the K best by the instance bits,
which packed codes give fast, are scored exactly. No other row scores more than the last of the first list
plus the last of the second, each a little more for what the packed codes round. Where the k-th score found is
more, the answer is proved; else K grows, up to all rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes, score, validate

from . import fork_safety
from .packed_codes import PackedCodes, rounding
from .scan import NO_ID, Distances, Rows
from .view import View

Single = NDArray[np.float32]
Packed = NDArray[np.uint8]

#: Rows up to which all are scored: no more than two scans of packed codes and what surrounds them cost.
_FEW = 4096
#: Length of the lists: first, and the factor when they prove nothing.
_FIRST, _MORE = 128, 8
#: Length from which all rows are scored instead, and share of the rows.
_MOST, _MOST_SHARE = 1 << 17, 0.25
#: Share of rows up to which those allowed are scored, and nothing else is looked at.
_ALLOWED_FEW = 0.02
#: Sums of float32 that are the same number may differ by this.
_SLACK = np.float32(2e-6)
#: Look-ups at once: some 100 MB with their places.
_CELLS = 1 << 22
#: Queries by Hamming distance from which packing pays: a packed scan saves half of a flat one.
_PAYS = 32


class _List(NamedTuple):
    """The best rows (n, K) by one half of the codes, and what no other row is above (n,)."""

    rows: Rows
    bound: Single


class _Query(NamedTuple):
    """Queries by both halves, or by one; None for the other."""

    h: Single | None
    a: Single | None

    def of(self, some: NDArray[Any]) -> _Query:
        """Some of the queries."""
        return _Query(*(None if half is None else half[some] for half in self))

    @property
    def n(self) -> int:
        return len(self.a if self.h is None else self.h)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ScoreScan:
    """The items of a state, searched by score.

    Attributes
    ----------
    view : View
    r, s : int
        Learned bits of a code, and instance bits behind them.
    packed : callable
        The packed copy of some bytes of the codes.
    """

    view: View
    r: int
    s: int
    packed: Callable[[slice], PackedCodes]

    def search(
        self,
        h: Single | None,
        a: Single | None,
        k: int,
        *,
        by: str = "both",
        expand: int = 0,
        allow: Any = None,
        deny: Any = None,
    ) -> tuple[Single, NDArray[np.int64]]:
        """Scores, descending, and ids of the k best items of each query, (n, k) each; of equals the earlier.

        Parameters
        ----------
        h, a : (n, r) and (n, s) float32, or None
            The queries, each half `score.normalised`; None where there is none.
        k : int
        by : "both", "kind" or "instance"
            Which terms the score has.
        expand : int
            First answers that h is expanded by: `score.expanded`.
        allow, deny : array_like of ids, or faiss.IDSelector, optional
            Only items in `allow`, and none in `deny`, answer.

        Returns
        -------
        S, I : (n, k) float32 and int64
            -inf and -1 where there are fewer than k.
        """
        query = _Query(None if by == "instance" else h, None if by == "kind" else a)
        scan = self.view.among(allow, deny)
        n, ntotal = query.n, scan.ntotal
        validate.empty_places(n, k, ntotal)
        some = min(k, ntotal) if n else 0
        S, rows = np.empty((n, 0), np.float32), np.empty((n, 0), np.int64)
        if some:
            search = _Search(self, query, scan.allowed, ntotal)
            if expand and query.h is not None:
                _, first = search.best(min(expand, ntotal))
                learned = self.view.mapped.codes[first, : self.r // 8]
                search = search.asking(score.expanded(query.h, learned))
            S, rows = search.best(some)
        if some < k:
            lack = ((0, 0), (0, k - some))
            S = np.pad(S, lack, constant_values=-np.inf)
            rows = np.pad(rows, lack, constant_values=NO_ID)
        return S, self.view._ids_at(rows)


class _Search:
    """Queries among the allowed rows; keeps the instance list for queries with another h."""

    def __init__(
        self, scan: ScoreScan, query: _Query, allowed: NDArray[np.bool_] | None, ntotal: int
    ) -> None:
        self._scan, self._query, self._allowed, self._ntotal = scan, query, allowed, ntotal
        self._codes = scan.view.mapped.codes
        self._learned, self._own = slice(0, scan.r // 8), slice(scan.r // 8, (scan.r + scan.s) // 8)
        self._same: _List | None = None
        self._same_length = 0  # the K of that list, which is of all queries

    def asking(self, h: Single) -> _Search:
        """The same search with another h."""
        search = _Search(self._scan, _Query(h, self._query.a), self._allowed, self._ntotal)
        search._same, search._same_length = self._same, self._same_length
        return search

    def best(self, k: int) -> tuple[Single, Rows]:
        """Scores and rows of the k best, (n, k) each; k is at most the rows allowed."""
        query, rows = self._query, len(self._codes)
        if self._ntotal <= max(_FEW, _ALLOWED_FEW * rows):
            return self._of_all(query, k)
        S, found = np.empty((query.n, k), np.float32), np.empty((query.n, k), np.int64)
        left = np.arange(query.n)
        K = max(_FIRST, 2 * k) * -(-rows // self._ntotal)
        while len(left):
            if min(_MOST, _MOST_SHARE * rows) < K:
                S[left], found[left] = self._of_all(query.of(left), k)
                break
            proved, S_some, rows_some = self._of_lists(
                query if len(left) == query.n else query.of(left), k, K
            )
            S[left], found[left] = S_some, rows_some
            left = left[~proved]
            K *= _MORE
        return S, found

    def _of_lists(self, query: _Query, k: int, K: int) -> tuple[NDArray[np.bool_], Single, Rows]:
        """Scores and rows of the k best in the lists, and whether no other row can be among them."""
        lists = []
        if query.h is not None:
            lists.append(self._list(query.h, self._learned, K))
        if query.a is not None:
            same = self._same if query is self._query and self._same_length == K else None
            if same is None:
                same = self._list(query.a, self._own, K)
                if query is self._query:
                    self._same, self._same_length = same, K
            lists.append(same)
        rows = np.concatenate([one.rows for one in lists], axis=1) if len(lists) > 1 else lists[0].rows.copy()
        rows.sort(axis=1)
        S = self._scores(query, rows)
        out = rows == NO_ID
        if len(lists) > 1:
            out[:, 1:] |= rows[:, 1:] == rows[:, :-1]
        if self._allowed is not None:
            out |= ~self._allowed[rows]
        S[out] = -np.inf
        order = np.argsort(-S, axis=1, kind="stable")[:, :k]
        S, rows = np.take_along_axis(S, order, axis=1), np.take_along_axis(rows, order, axis=1)
        bounds = [one.bound for one in lists]
        bound = score.combined(bounds[0], bounds[1]) if len(bounds) > 1 else bounds[0]
        return S[:, -1] > bound + _SLACK, S, rows

    def _list(self, H: Single, columns: slice, K: int) -> _List:
        D, rows = self._scan.packed(columns).nearest(H, K)
        return _List(rows, D[:, -1] + rounding(H))

    def _tables(self, query: _Query) -> tuple[Single | None, Single | None]:
        h, a = (None if half is None else score.tables(half) for half in query)
        return h, a

    def _scores(self, query: _Query, rows: Rows) -> Single:
        """Scores (n, K) of rows of each query's own."""
        S = np.empty(rows.shape, np.float32)
        step = max(1, _CELLS // max(1, rows.shape[1] * self._codes.shape[1]))
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            stored = self._codes[rows[some]]
            h, a = self._tables(query.of(some))  # type: ignore[arg-type]
            kind = None if h is None else score.sums(h, stored[:, :, self._learned])
            same = None if a is None else score.sums(a, stored[:, :, self._own])
            S[some] = score.combined(kind, same)
        return S

    def _of_all(self, query: _Query, k: int) -> tuple[Single, Rows]:
        """Scores and rows of the k best of all rows that are allowed."""
        S, rows = np.empty((query.n, 0), np.float32), np.empty((query.n, 0), np.int64)
        found = [
            self._of_block(query, block, k) for block in self._blocks(max(1, query.n) * self._codes.shape[1])
        ]
        S, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        order = np.argsort(-S, axis=1, kind="stable")[:, :k]  # blocks and their rows ascend
        return np.take_along_axis(S, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _blocks(self, cells: int) -> Iterator[Rows]:
        rows = np.arange(len(self._codes)) if self._allowed is None else np.flatnonzero(self._allowed)
        step = max(64, _CELLS // cells)
        return (rows[start : start + step] for start in range(0, len(rows), step))

    def _of_block(self, query: _Query, rows: Rows, k: int) -> tuple[Single, Rows]:
        stored = self._codes[rows]
        h, a = self._tables(query)
        kind = None if h is None else score.sums_of_all(h, stored[:, self._learned])
        same = None if a is None else score.sums_of_all(a, stored[:, self._own])
        S = score.combined(kind, same)
        order = np.argsort(-S, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(S, order, axis=1), rows[order]


@dataclass(frozen=True)
class PackedHamming:
    """The nearest codes by Hamming distance, found in a packed copy: the answers of `Scan.nearest`."""

    view: View
    packed: PackedCodes

    def nearest(self, asked: Packed, k: int) -> tuple[Distances, Rows]:
        """Distances and rows of the k nearest codes, as `Scan.nearest`."""
        scan, bits = self.view.everything, self.packed.bits
        some = min(k, scan.ntotal)
        K = 4 * some + 64
        if not len(asked) or not some or scan.rows * _MOST_SHARE < K:
            return scan.nearest(asked, k)
        signs = codes.unpack(np.ascontiguousarray(asked[:, self.packed.columns])).astype(np.float32)
        D, rows = self.packed.nearest(signs, K)
        far = np.rint((bits - D) / 2).astype(np.int32)  # off by less than a half
        last = far[:, -1].copy()
        if scan.allowed is not None:
            far[~scan.allowed[rows]] = np.iinfo(np.int32).max
        order = np.lexsort((rows, far), axis=1)[:, :some]
        far, rows = np.take_along_axis(far, order, axis=1), np.take_along_axis(rows, order, axis=1)
        if (short := far[:, -1] >= last).any():  # rows beyond the list may tie with its last
            far[short], rows[short] = scan.nearest(asked[short], some)
        if some < k:
            return scan.nearest(asked, k)
        return far, rows


class PackedCache:
    """The packed copies that an opened `Store` keeps; threads share them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], tuple[tuple[int, str], PackedCodes]] = {}
        self._packing = threading.RLock()
        self._asked = 0

    def clear(self) -> None:
        """Drop them."""
        self._held = {}

    def of(self, view: View, columns: slice) -> PackedCodes:
        """The packed copy of some bytes of the codes of a state, made or extended when first asked for."""
        state = view.snapshot
        name, of_rows = (columns.start, columns.stop), (state.generation, state.line)
        held = self._held.get(name)
        if held is not None and held[0] == of_rows and held[1].rows == state.rows:
            return held[1]
        with fork_safety.gate, self._packing:  # a fork waits, else the child might wait for this forever
            held = self._held.get(name)
            before = held[1] if held is not None and held[0] == of_rows else PackedCodes(columns)
            if before.rows > state.rows:  # another thread is at a newer state: that stays
                return PackedCodes(columns).extended(view.mapped.codes)
            packed = before.extended(view.mapped.codes)
            self._held = {**self._held, name: (of_rows, packed)}
        return packed

    def hamming(self, view: View, bits: int, queries: int) -> PackedHamming | None:
        """What finds the nearest by Hamming distance faster than the flat scan, once that pays; else None.

        A reader keeps one packed copy: of the halves, or of the whole.
        """
        self._asked += queries
        whole = slice(0, bits // 8)
        there = (whole.start, whole.stop) in self._held
        if bits > 256 or view.snapshot.rows < 1 << 16 or (not there and (self._held or self._asked < _PAYS)):
            return None
        return PackedHamming(view, self.of(view, whole))
