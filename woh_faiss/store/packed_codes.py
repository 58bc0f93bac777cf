"""Codes in the layout that Faiss scans fastest: as 4-bit product-quantiser codes with fixed centroids.

Four bits of a code are a number whose centroid is their pattern of -1 and 1. So packed codes are the codes of
a 4-bit `IndexPQ` of which nothing is trained, and `IndexPQFastScan` scans them (André et al., VLDB 2015): for
real-valued queries by inner product, and for queries of -1 and 1 by Hamming distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from .scan import NO_ID, Rows, query_parts, threads

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
Single = NDArray[np.float32]
Packed = NDArray[np.uint8]

#: Rows of a segment, at most: what is copied on the way is that of one.
_SEGMENT = 1 << 22
#: The centroid of each value of four bits, the lowest first.
_PATTERNS = np.array([[1 if value >> bit & 1 else -1 for bit in range(4)] for value in range(16)], np.float32)
#: Queries that one thread scans together: fewer and more take a tenth longer each.
_TOGETHER = 4
#: A query of zeros is scanned as this in its first bit.
_NOTHING = np.float32(1e-7)


@dataclass(frozen=True)
class _Segment:
    """Rows from `start` to `end` in one Faiss index."""

    start: int
    end: int
    index: Any


@dataclass(frozen=True)
class PackedCodes:
    """A copy of some bytes of every code, which never changes: threads share it.

    Attributes
    ----------
    columns : slice
        The bytes of a code.
    segments : tuple of _Segment
        One after the other, from row 0.
    """

    columns: slice
    segments: tuple[_Segment, ...] = ()

    @property
    def rows(self) -> int:
        """Codes in it."""
        return self.segments[-1].end if self.segments else 0

    @property
    def bits(self) -> int:
        """Bits of a code in it."""
        return 8 * int(self.columns.stop - self.columns.start)

    def extended(self, codes: Packed) -> PackedCodes:
        """With the rows that `codes` (rows, bytes), all of an index, has beyond it.

        Small segments at the end are packed again together with them, so that there are never many, and each
        row is packed about log₂(rows / chunk) times at most.
        """
        kept, start = list(self.segments), self.rows
        while kept and kept[-1].end - kept[-1].start < min(2 * (len(codes) - start), _SEGMENT):
            start = kept.pop().start
        for first in range(start, len(codes), _SEGMENT):
            end = min(first + _SEGMENT, len(codes))
            kept.append(_Segment(first, end, _packed(codes[first:end, self.columns])))
        return PackedCodes(self.columns, tuple(kept))

    def nearest(self, Q: Single, K: int) -> tuple[Single, Rows]:
        """Approximate inner products of queries (n, bits) with the K best codes, and their rows: (n, K) each.

        They are at most `rounding(Q)` off. Order and choice among equals is Faiss's. K is at most `rows`.
        """
        zero = ~Q.any(axis=1)
        if zero.any():
            Q = Q.copy()
            Q[zero, 0] = _NOTHING
        found = [
            self._of_segment(segment, Q, min(K, segment.end - segment.start)) for segment in self.segments
        ]
        if len(found) == 1:
            return found[0]
        D, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        best = np.argsort(-D, axis=1, kind="stable")[:, :K]
        return np.take_along_axis(D, best, axis=1), np.take_along_axis(rows, best, axis=1)

    @staticmethod
    def _of_segment(segment: _Segment, Q: Single, k: int) -> tuple[Single, Rows]:
        n = segment.end - segment.start
        parts = []
        for some, alone in query_parts(Q, n, Q.shape[1] // 8):
            with threads(alone):
                step = _TOGETHER if alone else len(some)
                parts += [segment.index.search(some[i : i + step], k) for i in range(0, len(some), step)]
        D, rows = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        if segment.start:
            rows = np.where(rows == NO_ID, NO_ID, rows + segment.start)
        return D, rows


def rounding(Q: Single) -> Single:
    """How far `PackedCodes.nearest` may be off for each query (n, bits): (n,) float32.

    Faiss rounds the tables of a query to 8 bits, all with one step (faiss/utils/quantize_lut.cpp): half a
    step for each of the bits / 4 look-ups, at most.
    """
    spans = 2 * np.abs(Q).reshape(len(Q), -1, 4).sum(axis=2)
    step = np.maximum(spans.max(axis=1) / np.float32(255), spans.sum(axis=1) / np.float32(65535))
    return np.asarray(
        spans.shape[1] * step * np.float32(0.501) + np.float32(1e-5) * spans.sum(axis=1), np.float32
    )


def _packed(codes: Packed) -> Any:
    """An IndexPQFastScan of codes (n, bytes)."""
    M = 2 * codes.shape[1]
    pq = _swig.IndexPQ(4 * M, M, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.tile(_PATTERNS, (M, 1, 1)).ravel(), pq.pq.centroids)
    pq.is_trained = True
    faiss.copy_array_to_vector(np.ascontiguousarray(codes).ravel(), pq.codes)
    pq.ntotal = len(codes)
    with threads(few=True):
        index = _swig.IndexPQFastScan(pq)
    index.orig_codes = None  # which would outlive what it points to
    return index
