"""Inputs in which each id and key is once: of several items with one, the first or the last stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .chunk import Distinct, OnDuplicate
from .open import Inputs, Piece


class DistinctInputs(Inputs):
    """Inputs without the items whose id or key another one has; read once to find them.

    Keeps the names of all items in memory.

    Attributes
    ----------
    left_out : int
        Items that are not among them.
    """

    def __init__(self, inputs: Inputs, policy: OnDuplicate) -> None:
        super().__init__(inputs.sources, inputs.size)
        self._inputs, self.left_out = inputs, 0
        held, self._n = Distinct(policy), 0
        for piece in inputs.pieces():
            held.take(piece.chunk)
            self._n += len(piece.chunk)
            self.left_out += piece.chunk.left_out
        self._dropped = np.sort(np.array(held.dropped, np.int64))
        self.left_out += len(self._dropped)

    def count(self) -> int:
        """Items that are left."""
        return self._n - len(self._dropped)

    @property
    def whole(self) -> bool:
        """False: what a chunk keeps depends on others."""
        return False

    def pieces(self) -> Iterator[Piece]:
        """The chunks, without the items that are left out; one that is left with none is passed over."""
        start = 0
        for piece in self._inputs.pieces():
            end = start + len(piece.chunk)
            first, last = np.searchsorted(self._dropped, [start, end])
            if last > first:
                kept = np.setdiff1d(np.arange(end - start), self._dropped[first:last] - start)
                part = piece.chunk.rows(kept)
                piece = piece._replace(
                    chunk=part if part.tags is None else replace(part, tags=part.tags.own())
                )
            if len(piece.chunk):
                yield piece._replace(chunk=replace(piece.chunk, left_out=0))  # counted once
            start = end
