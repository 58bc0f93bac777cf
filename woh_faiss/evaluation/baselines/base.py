"""The common part of every baseline: the interface of `WOH`, checked features, seeds, state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from woh_faiss import codes, validate
from woh_faiss.errors import ConfigError, InputError, NotFittedError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss.tags.tag_lists import class_tags
from woh_faiss.tags.vocabulary import Vocabulary

if TYPE_CHECKING:
    from woh_faiss.tags.word_vectors import WordVectors

Matrix = NDArray[np.float64]


def positive(weights: Mapping[str, float]) -> None:
    """ConfigError unless all weights of a method are finite numbers above 0."""
    for name, value in weights.items():
        if not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ConfigError(f"{name} is {value!r}, expected a finite number above 0")


class Baseline(ABC):
    """A method to compare with; learns a stream chunk by chunk, as `WOH` does.

    Parameters
    ----------
    bits : int
        Code length r, a multiple of 8.
    seed : int
        Decides every random draw; round t draws from ``default_rng((seed, t))``.
    min_count : int
        Times a tag must have been seen before it is learned from, as in `WOHConfig`.

    Attributes
    ----------
    rounds_ : int
        Rounds learned.
    codes_ : (n, r // 8) uint8
        Packed codes of the latest chunk: learned ones if `keeps_learned`, else the newest function's.
    """

    #: How tables call it.
    name: ClassVar[str]
    #: Whether the database is ranked by codes as they were learned; else it is encoded again each round.
    keeps_learned: ClassVar[bool] = False
    #: Whether old items are never needed again; a batch method keeps all and learns from them again.
    online: ClassVar[bool] = True
    #: Whether an online method's state grows with the items all the same.
    grows: ClassVar[bool] = False
    #: Whether the seed matters; without random draws it cannot.
    draws: ClassVar[bool] = True
    #: Where it is from; in tables, too, where a number needs a caveat.
    source: ClassVar[str]

    n_features_in_: int

    def __init__(self, bits: int = 64, *, seed: int = 0, min_count: int = 2) -> None:
        if not isinstance(bits, int) or bits < 8 or bits % 8:
            raise ConfigError(f"bits is {bits!r}, expected a multiple of 8 (Faiss stores whole bytes)")
        self.bits, self.seed, self.min_count = bits, seed, min_count
        self.rounds_ = 0
        self.vocabulary_ = Vocabulary(min_count)

    @classmethod
    def of(cls, config: WOHConfig) -> Self:
        """One with a config's bits, seed and min_count: a `make` for `streaming.stream`."""
        return cls(config.bits, seed=config.seed, min_count=config.min_count)

    def partial_fit(self, X: ArrayLike, y: Any, *, word_vectors: WordVectors | None = None) -> Self:
        """Learn one chunk.

        Parameters
        ----------
        X, y, word_vectors
            As `WOH.partial_fit`; most methods do not use word vectors.

        Raises
        ------
        InputError
            As `WOH.partial_fit`.
        """
        d = None if not self.rounds_ else self.n_features_in_
        chunk = Chunk.of(validate.features(X, d=d), class_tags(y))
        if chunk.tags is None:
            raise InputError("tags are None; give one tag list an item")
        self.vocabulary_, _, _ = self.vocabulary_.learn(
            chunk.tags, word_vectors, seed=self.seed, vector_size=100
        )
        items = self._items(chunk)
        assert items.tags is not None  # noqa: S101 - each chunk's were checked; this tells mypy
        Y, Z, _ = self.vocabulary_.matrices(items.tags)
        self.n_features_in_ = chunk.features.shape[1]
        rng = np.random.default_rng((self.seed, self.rounds_ + 1))
        self.rounds_ += 1
        learned = self._learn(np.array(items.features, np.float64, order="C"), Y, Z, rng)
        self.codes_ = self.encode(chunk.features) if learned is None else codes.pack(learned[-len(chunk) :])
        return self

    def _items(self, chunk: Chunk) -> Chunk:
        """What a round learns from: the chunk, or all items so far, the chunk's last."""
        return chunk

    @abstractmethod
    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> Matrix | None:
        """One round, of features (n, d), tags (n, c) of 0 and 1 and word-vector means (n, f).

        Returns the items' learned codes (n, r), only their signs count, where `keeps_learned`; else None.
        """

    @abstractmethod
    def _project(self, X: Matrix) -> Matrix:
        """What each bit is the sign of: (n, r)."""

    def decision_function(self, X: ArrayLike) -> Matrix:
        """What each bit is the sign of: (n, d) → (n, r) float64; NotFittedError before the first round."""
        if not self.rounds_:
            raise NotFittedError("no round was learned yet; call partial_fit with features and tags first")
        return self._project(np.asarray(validate.features(X, d=self.n_features_in_), np.float64))

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes: (n, d) → (n, r // 8) uint8."""
        return codes.pack(self.decision_function(X))

    def transform(self, X: ArrayLike) -> NDArray[np.int8]:
        """Codes as signs: (n, d) → (n, r) in {-1, +1}."""
        return codes.unpack(self.encode(X))

    def database(self, X: ArrayLike, learned: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The codes that the items so far are ranked by: (N, r // 8).

        Parameters
        ----------
        X : (N, d)
            Features of all items so far, in their order.
        learned : (N, r // 8)
            The `codes_` that each got when its chunk came.
        """
        return learned if self.keeps_learned else self.encode(X)

    def state(self) -> dict[str, NDArray[Any]]:
        """Every learned array by name, to go on from later: attributes in _ that are arrays or numbers."""
        return {
            name: np.asarray(value)
            for name, value in vars(self).items()
            if name.endswith("_") and isinstance(value, (np.ndarray, int, float, np.generic))
        }

    def restore(self, state: Mapping[str, NDArray[Any]], vocabulary: Vocabulary) -> Self:
        """The inverse of `state`, on an object with the same parameters."""
        for name, value in state.items():
            setattr(self, name, value if value.ndim else value.item())
        self.vocabulary_ = vocabulary
        return self
