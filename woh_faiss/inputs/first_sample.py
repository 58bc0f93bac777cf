"""Inputs whose first chunk is a random sample of all of them, so that data in some order teach no worse.

Anchors, means and the first tag directions come from the first round. A stream that begins with few kinds of
items never recovers from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .chunk import Chunk, concatenate, naming
from .open import Inputs, Piece
from .source import at

Rows = NDArray[np.int64]


class SampledInputs(Inputs):
    """A sample of inputs as chunk 1, then all other items in their order.

    Items without ids get their place among all items as id, which they would have without a sample, too.

    Attributes
    ----------
    n : int
        Items that the sample is of, the first ones; inputs that have grown since have more.
    rows : (m,) int64
        Places of its items among them, ascending.
    sample : Chunk
        Its items, as many of them as there are.
    named : bool
        Whether items came with ids or keys.
    """

    def __init__(self, inputs: Inputs, n: int, rows: Rows) -> None:
        super().__init__(inputs.sources, inputs.size, inputs.bad)
        self._inputs, self.n, self.rows = inputs, n, rows
        parts, start, self.named = [], 0, False
        for piece in inputs.pieces():
            self.named |= piece.named
            end = start + len(piece.chunk)
            if len(taken := self._taken(start, end)):
                parts.append(_part(_placed(piece.chunk, start), taken))
            start = end
            if start >= n:
                break
        self.alike = len({naming(part) for part in parts}) == 1
        with at(self._where, 0):
            self.sample = concatenate(parts, own_names=self.alike)

    @property
    def whole(self) -> bool:
        """False: the sample is of several files."""
        return False

    def __len__(self) -> int:
        return 1 + len(self._inputs)

    def pieces(self) -> Iterator[Piece]:
        """The sample, then the chunks without its items; a chunk that is left with none is passed over."""
        yield Piece(1, self._where, self.sample, self.named)
        start = 0
        for piece in self._inputs.pieces():
            end = start + len(piece.chunk)
            rest = _placed(piece.chunk, start) if start < self.n else piece.chunk
            if len(taken := self._taken(start, end)):
                left = np.ones(len(rest), np.bool_)
                left[taken] = False
                rest = _part(rest, np.flatnonzero(left))
            if len(rest):
                yield Piece(piece.number + 1, piece.where, rest, piece.named)
            start = end

    @property
    def _where(self) -> str:
        return f"the sample of {len(self.rows):,} of {self.n:,} items"

    def _taken(self, start: int, end: int) -> Rows:
        """The sample's rows in a chunk that has the items from `start` up to `end`."""
        first, last = np.searchsorted(self.rows, [start, end])
        return self.rows[first:last] - start


def first_sampled(inputs: Inputs, m: int, seed: int) -> Inputs:
    """The inputs with a sample of m items as their first chunk; as they are where they have no more than m.

    They are read once for the sample, and chunk files once more to count their items. Inputs stay as they
    are, too, where only some have ids, keys or tags.

    Raises
    ------
    InputError
        As reading them.
    """
    n = inputs.count() if m else 0
    if n <= m:
        return inputs
    sampled = SampledInputs(inputs, n, sample_rows(n, m, seed))
    return sampled if sampled.alike else inputs


def sample_rows(n: int, m: int, seed: int) -> Rows:
    """Places of m of n items, ascending.

    The last item is always among them: the index then gives no id below n to an item that comes without.
    """
    drawn = np.random.default_rng((seed, n)).choice(n - 1, m - 1, replace=False)
    return np.append(np.sort(drawn), n - 1).astype(np.int64)


def _placed(chunk: Chunk, start: int) -> Chunk:
    """The chunk with ids: places among all items, where it has none."""
    return chunk if chunk.ids is not None else replace(chunk, ids=np.arange(start, start + len(chunk)))


def _part(chunk: Chunk, rows: Rows) -> Chunk:
    part = chunk.rows(rows)
    return part if part.tags is None else replace(part, tags=part.tags.own())
