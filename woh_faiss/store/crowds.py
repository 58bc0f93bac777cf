"""Rows by their learned code, where many rows share few codes: a search then looks at codes, not at rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .scan import Rows

#: Rows a distinct code, at least, for which it is worth knowing them by code.
_CROWDED = 16
#: Share of rows that may have come since, before rows are sorted again.
_NEWER = 1 / 64


@dataclass(frozen=True, slots=True, eq=False)
class Crowds:
    """The first `rows` rows by code; immutable.

    Attributes
    ----------
    codes : (g, n_bytes) uint8
        The distinct codes, none if there are too many of them.
    order : (rows,) int32 or int64
        Rows, those of one code together and ascending.
    starts : (g + 1,) int64
        Where each code's rows are in `order`.
    """

    codes: NDArray[np.uint8]
    order: NDArray[np.signedinteger]
    starts: NDArray[np.int64]
    rows: int

    @classmethod
    def of(cls, codes: NDArray[np.uint8], first: int, end: int) -> Crowds:
        """Of bytes `first` to `end` of codes (n, width)."""
        n, n_bytes = len(codes), end - first
        words = np.zeros((n, -(-n_bytes // 8) * 8), np.uint8)
        words[:, :n_bytes] = codes[:, first:end]
        keys = words.view(np.uint64)
        order = np.argsort(keys[:, 0], kind="stable") if keys.shape[1] == 1 else np.lexsort(keys.T)
        new = np.ones(n, np.bool_)
        new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
        starts = np.append(np.flatnonzero(new), n)
        if _CROWDED * (len(starts) - 1) > n:
            none = np.empty(0, np.int32)
            return cls(np.empty((0, n_bytes), np.uint8), none, np.zeros(1, np.int64), n)
        kind = np.int32 if n < 2**31 else np.int64
        return cls(words[order[starts[:-1]], :n_bytes], order.astype(kind), starts, n)

    def serves(self, rows: int) -> bool:
        """Whether it is still of use where there are `rows` rows."""
        return rows - self.rows <= _NEWER * self.rows

    def sizes(self, which: NDArray[np.intp]) -> NDArray[np.int64]:
        """How many rows some codes have."""
        return self.starts[which + 1] - self.starts[which]

    def rows_of(self, which: NDArray[np.intp]) -> Rows:
        """The rows of some codes."""
        parts = [self.order[self.starts[i] : self.starts[i + 1]] for i in which.tolist()]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
