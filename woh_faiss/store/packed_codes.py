"""A copy of codes in memory, repacked for Faiss's fast scan: sums of real numbers over the bits of codes.

Four bits are a 4-bit product-quantiser code whose 16 centroids are the sign patterns of {-1, +1}⁴. So
nothing is trained, and an IndexPQFastScan scans 96 codes at a time. With a query of ±1 the sum is
bits - 2 Hamming.

Faiss rounds its look-up tables to 8 bits: `PackedCodes.best` says by how much a sum may be wrong. It takes no
SearchParameters (1.12 to 1.15), so rows that may not answer are dropped by the caller.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes as binary
from woh_faiss import validate

from . import fork_safety
from .crowds import Crowds
from .scan import NO_ID, Distances, Rows, Scan, parts, threads

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
Single = NDArray[np.float32]
Bytes = NDArray[np.uint8]

#: Bits of the widest code: at 256 tables of 8 bits the 16-bit sums of Faiss cannot overflow.
WIDEST = 1024
#: Bits of the widest code whose Hamming distances Faiss's rounding cannot swap, with a wide margin.
WIDEST_HAMMING = 256
#: Rows of a segment: what is copied while one is packed stays small.
_SEGMENT = 1 << 22
#: A segment is packed again with newer rows while it is less than so many times as large.
_GROWTH = 4
_VERSION = (_swig.FAISS_VERSION_MAJOR, _swig.FAISS_VERSION_MINOR, _swig.FAISS_VERSION_PATCH)
#: Rows of a block: 96 are scanned up to a third faster than Faiss's own 32; older versions end the process.
_BLOCK = 96 if _VERSION >= (1, 14, 2) else 32
#: For blocks of 32, Faiss's code for "three queries, then three, at once": faster in batches than its choice.
_SIX_QUERIES = 0x33
#: Row v holds the signs of the four bits of v.
_PATTERNS = binary.unpack(np.arange(16, dtype=np.uint8)[:, None])[:, :4].astype(np.float32)
#: Hamming neighbours asked for, of k, and of random codes as near as the k-th; and some more.
_TIMES, _TIED, _SPARE = 3, 1.1, 64
#: Rows from which a packed copy saves time; queries asked before making one costs less than it has saved.
_LEAST, _WORTH = 10_000, 50
#: Bytes of a huge page; an advice of Linux's madvise that Python's mmap does not name.
_HUGE_PAGE, _MADV_COLLAPSE = 2 << 20, 25
#: Bits of a sort key that hold the row.
_ROW_BITS = 40


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows from `start` on, packed: never changed."""

    index: Any
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """Bytes `first` to `end` of each code, packed; `rows` codes.

    Immutable: threads search one object while `extended` makes the next.
    """

    first: int
    end: int
    segments: tuple[_Segment, ...] = ()

    @classmethod
    def of(cls, codes: Bytes, first: int, end: int) -> PackedCodes:
        """Pack bytes `first` to `end`, at most WIDEST bits, of codes (n, width): 14 ns a code of 64 bits."""
        return cls(first, end).extended(codes)

    @property
    def bits(self) -> int:
        """Bits of a packed code."""
        return 8 * (self.end - self.first)

    @property
    def rows(self) -> int:
        """Codes."""
        return self.segments[-1].start + self.segments[-1].rows if self.segments else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(segment.index.codes.size() for segment in self.segments)

    def extended(self, codes: Bytes) -> PackedCodes:
        """The same for `codes` (n, width), whose first `rows` rows are those packed here already.

        Only new rows are packed, and old segments at the end that are not much larger than they are together:
        over many additions each row is packed a few times.
        """
        segments, start, n = list(self.segments), self.rows, len(codes)
        if start == n:
            return self
        while segments and segments[-1].rows < _GROWTH * (n - start):
            if n - segments[-1].start > _SEGMENT:
                break
            start = segments.pop().start
        for begin in range(start, n, _SEGMENT):
            part = codes[begin : begin + _SEGMENT, self.first : self.end]
            segments.append(_Segment(_packed(part), begin, len(part)))
        return PackedCodes(self.first, self.end, tuple(segments))

    def best(self, H: Single, K: int) -> tuple[Single, Rows, Single]:
        """About the K largest sums Σ_j H_ij b_j of each query.

        Parameters
        ----------
        H : (n, bits) float32
            C-contiguous, finite.
        K : int
            At least 1.

        Returns
        -------
        D : (n, K) float32
            Sums as Faiss has them, descending.
        rows : (n, K) int64
            NO_ID where there are fewer rows, or those left have the least sum that Faiss can tell; D is the
            least possible sum there, -Σ|H_ij|.
        error : (n,) float32
            No sum in D is wrong by more, and no row that is not listed has more than ``D[:, -1] + error``.
        """
        D, rows = self.listed(H, K)
        # quantize_lut.cpp: tables are in steps of the widest span / 255 (the other limit, the sum of spans
        # / 65535, counts only beyond WIDEST); each entry is wrong by half a step. A span is twice this:
        widest = np.add.reduce(np.abs(H).reshape(len(H), -1, 4), axis=2).max(axis=1)
        return D, rows, widest * np.float32(self.bits / 4 * (1.001 / 255 + 2**-18))  # 2^-18: float32 itself

    def listed(self, H: Single, K: int) -> tuple[Single, Rows]:
        """D and rows of `best`."""
        found: list[tuple[Single, Rows]] = []
        for part, alone in parts(H, self.rows):
            with threads(alone):
                found.append(self._best(part, K))
        D, rows = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        if NO_ID in rows[:, -1].tolist():
            D = np.where(rows == NO_ID, -np.abs(H).sum(axis=1)[:, None], D)
        return D, rows

    def _best(self, H: Single, K: int) -> tuple[Single, Rows]:
        if len(self.segments) == 1:
            found: tuple[Single, Rows] = self.segments[0].index.search(H, K)
            return found
        D, rows = [np.empty((len(H), 0), np.float32)], [np.empty((len(H), 0), np.int64)]
        for segment in self.segments:
            D_here, here = segment.index.search(H, min(K, segment.rows))
            D.append(np.where(here == NO_ID, -np.inf, D_here).astype(np.float32))
            rows.append(np.where(here == NO_ID, NO_ID, here + segment.start))
        lack = max(0, K - sum(array.shape[1] for array in D))
        D.append(np.full((len(H), lack), -np.inf, np.float32))
        rows.append(np.full((len(H), lack), NO_ID, np.int64))
        D_all, all_rows = np.concatenate(D, axis=1), np.concatenate(rows, axis=1)
        first = np.argsort(-D_all, axis=1, kind="stable")[:, :K]
        return np.take_along_axis(D_all, first, axis=1), np.take_along_axis(all_rows, first, axis=1)


@lru_cache(maxsize=4)
def sign_quantiser(bits: int) -> Any:
    """An empty IndexPQ whose centroids are sign patterns."""
    pq = _swig.IndexPQ(bits, bits // 4, 4, _swig.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.tile(_PATTERNS, (bits // 4, 1, 1)).ravel(), pq.pq.centroids)
    pq.is_trained = True
    return pq


def _packed(codes: Bytes) -> Any:
    bits = 8 * codes.shape[1]
    pq: Any = faiss.clone_index(sign_quantiser(bits))
    faiss.copy_array_to_vector(np.ascontiguousarray(codes).ravel(), pq.codes)
    pq.ntotal = len(codes)
    index: Any = _swig.IndexPQFastScan(pq, _BLOCK)
    index.orig_codes = None  # they end with pq
    index.qbs = _SIX_QUERIES
    _use_huge_pages(int(index.codes.get()), index.codes.size())
    return index


def _use_huge_pages(start: int, size: int) -> None:
    """Move memory that is scanned at once to huge pages: 10⁷ codes are scanned a tenth faster.

    Linux moves it now (from 6.1 on), or some time later, or not at all; the bytes are the same.
    """
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        first, end = -(-start // mmap.PAGESIZE), (start + size) // mmap.PAGESIZE
        where, length = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t((end - first) * mmap.PAGESIZE)
        for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE):
            ctypes.CDLL(None).madvise(where, length, advice)


def nearest(packed: PackedCodes, scan: Scan, codes: Bytes, k: int) -> tuple[Distances, Rows]:
    """The k nearest codes exactly as `Scan.nearest`, through the packed copy of all bits of the same rows.

    Parameters
    ----------
    packed : PackedCodes
        From byte 0 on, at most WIDEST_HAMMING bits; the bits that follow are padding.
    """
    k, codes = validate.positive_int(k), scan.checked(codes)
    n = len(codes)
    enough = max(_TIMES * k, int(_TIED * _within(scan.ntotal, packed.bits, k)))
    K = min(scan.rows, enough * scan.rows // max(1, scan.ntotal) + _SPARE)
    if not n or k > scan.ntotal or scan.few or scan.rows < 4 * K:
        return scan.nearest(codes, k)
    validate.empty_places(n, k, scan.ntotal)
    H = binary.unpack(codes[:, : packed.end]).astype(np.float32)
    D, rows = packed.listed(H, K)
    # Of multiples of 63.75 rounded to whole numbers half is half too large, some a quarter too small; the
    # mean of both taken away, at most .4 bits are left.
    tables = packed.bits // 4
    d = np.rint((np.float32(packed.bits + tables / 255) - D) * np.float32(0.5)).astype(np.int64)
    last = d[:, -1]
    if scan.allowed is not None:
        d = np.where(scan.allowed[rows], d, packed.bits + 1)
    if NO_ID in rows[:, -1].tolist():
        d = np.where(rows == NO_ID, packed.bits + 1, d)
        rows = np.maximum(rows, 0)
    keys = (d << _ROW_BITS) | rows
    keys.sort(axis=1)
    keys = keys[:, :k]
    d, rows = keys >> _ROW_BITS, keys & ((1 << _ROW_BITS) - 1)
    distances = d.astype(np.int32)
    open_ = d[:, -1] >= last  # rows at the same distance may not be in the list
    if open_.any():
        distances[open_], rows[open_] = scan.nearest(codes[open_], k)
    return distances, rows


@lru_cache(maxsize=256)
def _within(n: int, bits: int, k: int) -> int:
    """Of n random codes, how many are as near to a query as the k-th nearest, on average."""
    balls = accumulate(math.comb(bits, d) for d in range(bits + 1))
    return next((within for ball in balls if (within := n * ball >> bits) >= k), n)


class PackedCopies:
    """The packed copies of one state's codes, made when asking often enough is seen; threads share them.

    Attributes
    ----------
    codes : (n, width) uint8
        Mapped.
    check : callable
        Raises StoreError unless all codes are what was written: asked before they are copied.
    """

    def __init__(self, codes: Bytes, check: Callable[[], object] = lambda: None) -> None:
        self.codes, self._check = codes, check
        self._held: dict[tuple[int, int], PackedCodes] = {}
        self._asked: dict[tuple[int, int], int] = {}
        self._crowds: dict[tuple[int, int], Crowds] = {}
        self._packing = threading.Lock()

    def of(self, first: int, end: int, queries: int, worth: int) -> PackedCodes | None:
        """The copy of a byte range, made once more than `worth` queries were asked; None before."""
        here = first, end
        held = self._held.get(here)
        if held is not None:
            return held
        asked = self._asked[here] = self._asked.get(here, 0) + queries  # a lost count does not matter
        if asked < worth or 8 * (end - first) > WIDEST or not len(self.codes):
            return None
        with fork_safety.gate, self._packing:  # a fork waits, else the child might wait for this forever
            if here not in self._held:
                self._check()
                self._held = {**self._held, here: PackedCodes.of(self.codes, first, end)}
            return self._held[here]

    def crowds(self, first: int, end: int, make: bool = True) -> Crowds | None:
        """The rows by these bytes of their codes; None where codes are many. Sorted when first to be made."""
        here = first, end
        held = self._crowds.get(here)
        if held is None and not make:
            return None
        if held is None:
            with fork_safety.gate, self._packing:
                held = self._crowds.get(here)
                if held is None:
                    self._check()
                    held = Crowds.of(self.codes, first, end)
                    self._crowds = {**self._crowds, here: held}
        return held if len(held.codes) else None

    def extended(self, codes: Bytes, check: Callable[[], object] = lambda: None) -> PackedCopies:
        """Those of a later state of the same rows and some more, which were checked if any is held."""
        later = PackedCopies(codes, check)
        later._held = {here: held.extended(codes) for here, held in self._held.items()}
        later._asked = dict(self._asked)
        later._crowds = {here: held for here, held in self._crowds.items() if held.serves(len(codes))}
        return later

    def __iter__(self) -> Iterator[PackedCodes]:
        return iter(self._held.values())


@dataclass(frozen=True, slots=True)
class Hamming:
    """A Hamming search of `scan`, through a packed copy of the first `n_bytes` bytes once it is worth it."""

    copies: PackedCopies
    scan: Scan
    n_bytes: int

    def nearest(self, codes: Any, k: Any) -> tuple[Distances, Rows]:
        """As `Scan.nearest`."""
        k, codes, packed = validate.positive_int(k), self.scan.checked(codes), None
        if self.scan.rows >= _LEAST and not self.scan.few and 8 * self.n_bytes <= WIDEST_HAMMING:
            packed = self.copies.of(0, self.n_bytes, len(codes), _WORTH)
        return self.scan.nearest(codes, k) if packed is None else nearest(packed, self.scan, codes, k)
