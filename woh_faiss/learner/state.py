"""The state that rounds leave for the next one, except the vocabulary; all of it is in the model file."""

from __future__ import annotations

from collections.abc import Mapping
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
    """

    x: Matrix
    B: Matrix
    Y: csr_array
    Z: Matrix
    bare_x: Matrix
    bare_codes: Matrix
    bare_n: int

    @classmethod
    def none(cls, d: int, r: int, f: int, c: int) -> WarmupItems:
        """No items."""
        none = np.zeros((0, d)), np.zeros((0, r))
        return cls(*none, csr_array((0, c)), np.zeros((0, f)), *none, 0)

    def and_then(self, x: Matrix, Y: csr_array, Z: Matrix, bare: Matrix, bare_n: int) -> WarmupItems:
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
        )


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """What the semantic start remembers beside `Statistics`; its size does not depend on the items seen.

    Attributes
    ----------
    side : TagSide
        Tags and word vectors.
    early : Early or None
        None once there were as many items as anchors.
    """

    side: TagTargets
    early: WarmupItems | None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every field by name."""
        early = self.early
        kept: dict[str, Any] = {} if early is None else {
            "x": early.x, "B": early.B, "Z": early.Z,
            "Y_indices": early.Y.indices, "Y_indptr": early.Y.indptr,
            "bare_x": early.bare_x, "bare_codes": early.bare_codes, "bare_n": early.bare_n,
        }  # fmt: skip
        own = {f"adaptive_{name}": np.asarray(value) for name, value in kept.items()}
        return {**own, **self.side.arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Adaptive:
        """The inverse of `arrays`."""
        side, early = TagTargets.from_arrays(arrays), None
        if "adaptive_Z" in arrays:
            names = ("x", "B", "Z", "bare_x", "bare_codes")
            x, B, Z, bare_x, bare_codes = (stored(arrays, f"adaptive_{name}", 2) for name in names)
            indices, indptr = (stored(arrays, f"adaptive_Y_{name}", 1) for name in ("indices", "indptr"))
            Y = csr_array((np.ones(len(indices)), indices, indptr), shape=(len(x), side.c))
            bare_n = int(stored(arrays, "adaptive_bare_n", 0))
            early = WarmupItems(x, B, Y, Z, bare_x, bare_codes, bare_n)
        return cls(side=side, early=early)


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """Hash function, W, statistics, the semantic start's memory, and the anchors once they are final."""

    hasher: Hasher
    W: Matrix
    stats: Statistics
    memory: Adaptive | None
    anchors: NDArray[Any] | None
