"""The state that rounds leave for the next one, except the vocabulary; all of it is in the model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from woh_faiss.validate import stored

from .hasher import Hasher
from .statistics import Statistics
from .tag_targets import TagTargets

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class WarmupItems:
    """The items so far, kept while they are fewer than the anchors should be.

    Attributes
    ----------
    x, B : (b, d), (b, r)
        Rows of length 1, and codes.
    Y, Z : (b, c) CSR of 0 and 1, (b, f)
        Tags and word-vector means.
    bare_x, bare_codes : (b', d), (b', r)
        Rows and codes of items without a tag, as many as there should be anchors at most.
    bare_n : int
        How many items without a tag were seen.
    names, bare_names : (b, 2), (b', 2) int64
        What the caller calls the items, so that it can tell which are to be forgotten.
    """

    x: Matrix
    B: Matrix
    Y: csr_array
    Z: Matrix
    bare_x: Matrix
    bare_codes: Matrix
    bare_n: int
    names: NDArray[np.int64]
    bare_names: NDArray[np.int64]

    @classmethod
    def none(cls, d: int, r: int, f: int, c: int) -> WarmupItems:
        """No items."""
        none = np.zeros((0, d)), np.zeros((0, r))
        names = np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64)
        return cls(*none, csr_array((0, c)), np.zeros((0, f)), *none, 0, *names)

    def and_then(
        self,
        x: Matrix,
        Y: csr_array,
        Z: Matrix,
        bare: Matrix,
        bare_n: int,
        names: NDArray[np.int64],
        bare_names: NDArray[np.int64],
    ) -> WarmupItems:
        """With a chunk's items behind, who have no codes yet, and rows of `bare_n` items without a tag."""
        mine = csr_array((self.Y.data, self.Y.indices, self.Y.indptr), shape=(len(self.x), Y.shape[1]))
        return WarmupItems(
            np.vstack([self.x, x]),
            self.B,
            csr_array(vstack([mine, Y])),
            np.vstack([self.Z, Z]),
            np.vstack([self.bare_x, bare]),
            self.bare_codes,
            self.bare_n + bare_n,
            np.vstack([self.names, names]),
            np.vstack([self.bare_names, bare_names]),
        )

    def only(self, kept: NDArray[np.bool_], bare_kept: NDArray[np.bool_]) -> WarmupItems:
        """Without the other items, with a tag (b,) and without (b',); how many there were stays known."""
        return WarmupItems(
            self.x[kept],
            self.B[kept],
            csr_array(self.Y[kept]),
            self.Z[kept],
            self.bare_x[bare_kept],
            self.bare_codes[bare_kept],
            self.bare_n,
            self.names[kept],
            self.bare_names[bare_kept],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name."""
        kept: dict[str, Any] = {
            "x": self.x, "B": self.B, "Z": self.Z,
            "Y_indices": self.Y.indices, "Y_indptr": self.Y.indptr,
            "bare_x": self.bare_x, "bare_codes": self.bare_codes, "bare_n": self.bare_n,
            "names": self.names, "bare_names": self.bare_names,
        }  # fmt: skip
        return {f"adaptive_{name}": np.asarray(value) for name, value in kept.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """What the semantic start remembers beside `Statistics`; its size does not depend on the items seen.

    Attributes
    ----------
    side : TagTargets
        Tags and word vectors.
    early : WarmupItems or None
        None once there were as many items as anchors.
    """

    side: TagTargets
    early: WarmupItems | None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name."""
        return {**({} if self.early is None else self.early.arrays()), **self.side.arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Adaptive:
        """The inverse of `arrays`."""
        side, early = TagTargets.from_arrays(arrays), None
        if "adaptive_Z" in arrays:
            x, B, Z, bare_x, bare_codes, names, bare_names = (
                stored(arrays, f"adaptive_{name}", 2)
                for name in ("x", "B", "Z", "bare_x", "bare_codes", "names", "bare_names")
            )
            indices, indptr = (stored(arrays, f"adaptive_Y_{name}", 1) for name in ("indices", "indptr"))
            Y = csr_array((np.ones(len(indices)), indices, indptr), shape=(len(x), side.c))
            bare_n = int(stored(arrays, "adaptive_bare_n", 0))
            early = WarmupItems(x, B, Y, Z, bare_x, bare_codes, bare_n, names, bare_names)
        return cls(side=side, early=early)


def forgetting(
    arrays: Mapping[str, NDArray[Any]], kept: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
) -> dict[str, NDArray[Any]] | None:
    """The arrays of a model file without rows of items that are not `kept`; None where there are none.

    What was learned of them in sums stays, and so does the hash function.

    Parameters
    ----------
    arrays : mapping of str to array
    kept : callable
        Given names (n, 2), it says which items stay (n,).
    """
    if "adaptive_names" not in arrays:
        return None
    early = Adaptive.from_arrays(arrays).early
    assert early is not None  # noqa: S101 - for mypy
    tagged, bare = kept(early.names), kept(early.bare_names)
    if tagged.all() and bare.all():
        return None
    return {**arrays, **early.only(tagged, bare).arrays()}


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """Hash function, W, statistics, the semantic start's memory, and the anchors once they are final."""

    hasher: Hasher
    W: Matrix
    stats: Statistics
    memory: Adaptive | None
    anchors: NDArray[Any] | None
