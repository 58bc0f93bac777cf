"""Batch methods: they keep every item and learn from all of them again in every round."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from woh_faiss import codes
from woh_faiss.inputs.chunk import Chunk, TagLists, concatenate

from .base import Baseline, Matrix


class Batch(Baseline):
    """A batch method, given a stream: memory and time of a round grow with the items so far.

    A tag that is admitted in a later round is then there for the old items that carry it, too.

    Attributes
    ----------
    features_ : (N, d)
        All items so far, in their order and dtype.
    tag_names_, tag_indptr_, tag_indices_
        Their tags, as in `TagLists`.
    learned_ : (N, r // 8) uint8
        Their codes from the newest round, where `keeps_learned`.
    """

    online: ClassVar[bool] = False

    features_: NDArray[Any]
    tag_names_: NDArray[np.str_]
    tag_indptr_: NDArray[np.int64]
    tag_indices_: NDArray[np.int64]
    learned_: NDArray[np.uint8]

    @abstractmethod
    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> Matrix | None:
        """Learn all items again; as `_learn`, without word vectors, which none of these methods uses."""

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> Matrix | None:
        learned = self._fit(X, Y, rng)
        if learned is not None:
            self.learned_ = codes.pack(learned)
        return learned

    def _items(self, chunk: Chunk) -> Chunk:
        if self.rounds_:
            tags = TagLists(tuple(self.tag_names_.tolist()), self.tag_indptr_, self.tag_indices_)
            chunk = concatenate([Chunk.of(self.features_, tags), Chunk.of(chunk.features, chunk.tags)])
        assert chunk.tags is not None  # noqa: S101 - `partial_fit` has checked; this tells mypy
        self.features_ = np.array(chunk.features)
        self.tag_names_ = np.array(chunk.tags.names, str)
        self.tag_indptr_, self.tag_indices_ = chunk.tags.indptr, chunk.tags.indices
        return chunk

    def database(self, X: ArrayLike, learned: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The codes that the items so far are ranked by: learned ones are all from the newest round."""
        return self.learned_ if self.keeps_learned else super().database(X, learned)
