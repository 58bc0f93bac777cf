"""Rows in blocks of fixed size, and sums over them in a fixed order: in this process, or on a cluster.

A floating-point sum depends on its order, and the rows of a matrix product on how many it is given at once.
A round is therefore written as steps over blocks of `BLOCK` rows, whose sums are added as `added` has it:
whoever holds which block, the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from .threads import ordered

T = TypeVar("T")
U = TypeVar("U")
#: Named sums: arrays or numbers.
Sums = dict[str, Any]

#: Rows of a block: many for BLAS, and most chunks are one; few enough that no second n x d array is made.
BLOCK = 2048
#: Bytes of a chunk's φ from which it is not kept, but computed again, block by block, whenever it is needed.
MEMORY = 1 << 30
#: Sums that are added one after the other before their sum meets others.
FAN_IN = 8


def block_slices(n: int) -> Iterator[slice]:
    """Slices that cover n rows, `BLOCK` at a time."""
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def plus(one: Sums, other: Sums) -> Sums:
    """Sums name by name."""
    return {name: value + other[name] for name, value in one.items()}


def added(terms: Iterable[Sums]) -> Sums:
    """The sum of at least one term: of each `FAN_IN` in a row from the left, then of those sums likewise."""
    rest = iter(terms)
    level = [reduce(plus, islice(rest, FAN_IN - 1), first) for first in rest]
    return level[0] if len(level) == 1 else added(level)


class Rows(Generic[T]):
    """One value a block of rows, in the order of the rows."""

    def __init__(self, values: Sequence[T]) -> None:
        self._values = values

    def __len__(self) -> int:
        """Blocks, not rows."""
        return len(self._values)

    def map(self, step: Callable[..., U], *args: Any) -> Rows[U]:
        """step(value, *args) of each block; of an argument that is Rows, too, its value there.

        `step` is a function of a module, and changes nothing that it is given.
        """
        return Rows(list(self._done(step, args)))

    def map_if_small(self, size: int, step: Callable[..., U], *args: Any) -> Rows[U]:
        """`map`; if what it gives takes `size` bytes, more than `MEMORY`, each block when it is needed."""
        return self.map(step, *args) if size <= MEMORY else Rows(_Remade(self, step, args))

    def sum(self, step: Callable[..., Sums], *args: Any) -> Sums:
        """The sum of step(value, *args) over the blocks, as `added` has it."""
        return added(self._done(step, args))

    def gathered(self) -> Sequence[T]:
        """The values, here."""
        return self._values

    def _done(self, step: Callable[..., U], args: tuple[Any, ...]) -> Iterator[U]:
        return ordered(lambda i: step(*self._at(i, args)), len(self))

    def _at(self, i: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a step is given of block i."""
        return self._values[i], *(arg._values[i] if isinstance(arg, Rows) else arg for arg in args)


class _Remade(Sequence[U]):
    """step(value, *args) of each block, computed again each time it is used."""

    def __init__(self, rows: Rows[Any], step: Callable[..., U], args: tuple[Any, ...]) -> None:
        self._rows, self._step, self._args = rows, step, args

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: Any) -> Any:
        return self._step(*self._rows._at(i, self._args))


def split_blocks(M: Any) -> Rows[Any]:
    """The rows of an array, dense or sparse, in blocks."""
    return Rows([M[rows] for rows in block_slices(M.shape[0])])


class Features:
    """The features of a chunk, n rows of d numbers, in this process.

    A cluster's have the same methods; so a round need not know where it runs.
    """

    def __init__(self, X: NDArray[Any]) -> None:
        self._X = X
        self.shape: tuple[int, int] = (X.shape[0], X.shape[1])

    def rows(self, wanted: NDArray[np.bool_] | None = None) -> Rows[NDArray[Any]]:
        """The rows that are wanted (n,), or all, in blocks."""
        if wanted is None or wanted.all():
            return split_blocks(self._X)
        return Rows([self._X[places] for places in split_blocks(np.flatnonzero(wanted)).gathered()])

    def take(self, places: NDArray[Any]) -> NDArray[Any]:
        """A few rows, here."""
        return np.asarray(self._X[places])

    def beside(self, rows: Rows[T]) -> Rows[T]:
        """Values that are here, where the features are."""
        return rows
