"""WOH: the estimator that learns from a stream, chunk by chunk. The only learning state there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import codes, validate
from .adaptive import Adaptive, Past, learn_adaptive_round
from .chunks import Chunk
from .config import WOHConfig
from .errors import InputError, NotFittedError
from .hasher import Hasher
from .kernel import Kernel, Matrix
from .solver import learn_round, sign
from .statistics import Statistics, widen
from .tags import Vocabulary

if TYPE_CHECKING:
    from .vectors import WordVectors


class WOH:
    """Weakly-supervised online hashing (Zhan et al., ICME 2021).

    Think of a function from features to short codes that is taught by the tags of the items streaming
    past: every `partial_fit` gives the chunk's items their final codes and makes the function better for
    the queries and chunks to come. Old items are never needed again.

    Parameters
    ----------
    config : WOHConfig, optional
        Hyper-parameters; or give them by name, ``WOH(bits=32, seed=1)``.
    A : (m, d) array_like, optional
        The kernel's anchors, instead of `config.anchors` rows drawn from the first chunk.
    W0 : (r, c) array_like, optional
        W to start round 1 from, columns in the order of `vocabulary_.tags`, instead of N(0, 1).
    **hyper
        Fields of `WOHConfig`, replacing those of `config`.

    Attributes
    ----------
    n_features_in_ : int
        Width d of the features.
    rounds_ : int
        Rounds learned.
    codes_ : (n, r // 8) uint8
        Packed codes of the latest chunk, in its order.
    trained_ : (n,) bool
        Which of its items were learned from; the rest carry no known tag and were only encoded.
    vocabulary_ : Vocabulary
        The tags so far and their vectors; `coverage_` says how much of the latest chunk they cover.
    hasher_ : Hasher
        The newest hash function.
    anchors_ : (m, d)
        The kernel's anchors, raw, in the dtype of the first chunk.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 4))
    >>> woh = WOH(bits=8).partial_fit(X, ["sea", "hill"] * 10)
    >>> woh.transform(X[:2]).shape
    (2, 8)
    """

    def __init__(
        self,
        config: WOHConfig | None = None,
        *,
        A: ArrayLike | None = None,
        W0: ArrayLike | None = None,
        **hyper: Any,
    ) -> None:
        self.config = _configure(config, hyper)
        self.A = A
        self.W0 = W0
        self.rounds_ = 0
        self.vocabulary_ = Vocabulary(self.config.min_count)
        self._hasher: Hasher | None = None
        self._W: Matrix
        self._stats: Statistics
        self._memory: Adaptive | None = None

    @property
    def hasher_(self) -> Hasher:
        """The newest hash function.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        if self._hasher is None:
            raise NotFittedError("no round was learned yet; call partial_fit with features and tags first")
        return self._hasher

    @property
    def n_features_in_(self) -> int:
        """Width d of the features it was fitted with."""
        return self.hasher_.d

    def decision_function(self, X: ArrayLike) -> Matrix:
        """φ(x) P before the sign: (n, d) → (n, r) float64; see `Hasher.decision_function`."""
        return self.hasher_.decision_function(X)

    def transform(self, X: ArrayLike) -> NDArray[np.int8]:
        """Codes as signs: (n, d) → (n, r) in {-1, +1}; errors as `Hasher.decision_function`."""
        return codes.unpack(self.encode(X))

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Codes as packed bytes: (n, d) → (n, r // 8) uint8; errors as `Hasher.decision_function`."""
        return self.hasher_.encode(X)

    def partial_fit(
        self,
        X: ArrayLike,
        tags: Any,
        *,
        word_vectors: WordVectors | None = None,
        Z: ArrayLike | None = None,
        B0: ArrayLike | None = None,
    ) -> Self:
        """Learn one chunk; on an error the estimator is as it was.

        Parameters
        ----------
        X : (n, d) array_like of a real dtype
            Features.
        tags : list of str, list of lists of str, 0/1 array, sparse matrix or TagLists
            What each item was tagged with; see `Chunk.of`.
        word_vectors : WordVectors, optional
            Where vectors of tags met for the first time come from.
        Z : (n, f) array_like, optional
            Word-vector means of the items, instead of those of their tags.
        B0 : (n, r) array_like, optional
            Codes to start from (only signs matter), instead of random ones.

        Raises
        ------
        InputError
            The chunk cannot be used, or is the first and none of its items carries a known tag.
        """
        chunk = Chunk.of(validate.features(X, d=self._hasher.d if self._hasher else None), tags)
        if chunk.tags is None:
            raise InputError("tags are None; give one tag list an item, or encode the items instead")
        config = self.config
        vocabulary, coverage, touched = self.vocabulary_.learn(
            chunk.tags, word_vectors, seed=config.seed, vector_size=config.vector_size
        )
        Y, Z_tags, trained = vocabulary.matrices(chunk.tags)
        Zs = Z_tags if Z is None else _checked("Z", Z, (len(chunk), None))
        if self.config.start == "semantic" and (self._hasher is not None or trained.any()):
            hasher, W, stats, B, memory = self._semantic_round(chunk.features, Y, Zs, trained, vocabulary)
        elif trained.any():
            memory = None
            B0 = None if B0 is None else _checked("B0", B0, (len(chunk), config.bits))[trained]
            hasher, W, stats, B = self._round(chunk.features, Y, Zs, trained, B0)
        elif self._hasher is None:
            raise InputError(
                f"none of the {len(chunk)} items of the first chunk has a tag that was seen "
                f"{config.min_count} times; give a chunk with more tags, or a smaller min_count"
            )
        else:  # nothing to learn from: encode with the function there is
            memory = None
            hasher, W, stats, B = self._hasher, self._W, self._stats, np.empty((0, config.bits))

        packed = np.empty((len(chunk), config.bits // 8), np.uint8)
        if memory is not None:  # items without a known tag were given codes, too
            packed[:] = codes.pack(B)
        else:
            packed[trained] = codes.pack(B)
            packed[~trained] = hasher.encode(chunk.features[~trained])
        self.rounds_ += memory is not None or bool(trained.any())
        self.vocabulary_, self.coverage_, self.touched_ = vocabulary, coverage, touched
        self._hasher, self._W, self._stats, self._memory = hasher, W, stats, memory
        self.codes_, self.trained_ = packed, trained
        return self

    def _round(
        self, X: NDArray[Any], Y: Any, Z: Matrix, trained: NDArray[np.bool_], B0: Matrix | None
    ) -> tuple[Hasher, Matrix, Statistics, Matrix]:
        """Hash function, W, statistics and codes (trained items only) after one more round."""
        config, r, c, f = self.config, self.config.bits, Y.shape[1], Z.shape[1]
        rng = np.random.default_rng((config.seed, self.rounds_ + 1))
        if self._hasher is None:
            self.anchors_ = self._first_anchors(X, rng)
            kernel = Kernel.fit(X, self.anchors_)
            past = Statistics.zero(r=r, m=len(kernel.A), f=f, c=c)
            W = rng.standard_normal((r, c)) if self.W0 is None else _checked("W0", self.W0, (r, c))
        else:
            kernel, past, W = self._hasher.kernel, self._stats.widened(c), widen(self._W, c)
            if past.C5.shape[1] != f:
                raise InputError(
                    f"word-vector means have {f} columns, the model was fitted with {past.C5.shape[1]}"
                )
        if B0 is None:
            B0 = rng.standard_normal((int(trained.sum()), r))
        phi = kernel.map(X[trained])
        learned = learn_round(phi, Y[trained], Z[trained], sign(B0), W, past, config)
        return Hasher(kernel, learned.P), learned.W, learned.stats, learned.B

    def _semantic_round(
        self, X: NDArray[Any], Y: Any, Z: Matrix, trained: NDArray[np.bool_], vocabulary: Vocabulary
    ) -> tuple[Hasher, Matrix, Statistics, Matrix, Adaptive]:
        """As `_round`, for a semantic start: codes of all items, and what is remembered beside the statistics."""
        config = self.config
        past = None
        if self._hasher is not None and self._memory is not None:
            past = Past(self._hasher.kernel, self._W, self._stats, self._memory)
            if len(past.memory.side.z_mean) != Z.shape[1]:
                raise InputError(
                    f"word-vector means have {Z.shape[1]} columns, "
                    f"the model was fitted with {len(past.memory.side.z_mean)}"
                )
        rng = np.random.default_rng((config.seed, self.rounds_ + 1))
        df = np.array([vocabulary.counts[tag] for tag in vocabulary.tags], np.float64)
        A = None if self.A is None else _checked("A", self.A, (None, X.shape[1]))
        done = learn_adaptive_round(X, Y, Z, trained, df, past, config, self.rounds_, rng, A)
        return Hasher(done.kernel, done.P), done.W, done.stats, done.B, done.memory

    def _first_anchors(self, X: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        if self.A is not None:
            return _checked("A", self.A, (None, X.shape[1]))
        m = min(self.config.anchors, len(X))
        anchors: NDArray[Any] = np.array(X[np.sort(rng.choice(len(X), m, replace=False))])
        return anchors

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything but the anchors and the vocabulary, as arrays by name, to go on from later."""
        return {
            **self.hasher_.arrays(),
            **self._stats.arrays(),
            "W": self._W,
            "rounds": np.asarray(self.rounds_),
        }

    @classmethod
    def from_state(
        cls, config: WOHConfig, state: Mapping[str, NDArray[Any]], anchors: ArrayLike, vocabulary: Vocabulary
    ) -> WOH:
        """The estimator that `state` was taken of: further rounds are equal to the bit."""
        woh = cls(config)
        woh.vocabulary_ = vocabulary
        woh.rounds_ = int(state["rounds"])
        woh.anchors_ = np.asarray(anchors)
        woh._hasher = Hasher.from_arrays(state, woh.anchors_)
        woh._stats = Statistics.from_arrays(state)
        woh._W = np.asarray(state["W"])
        return woh


def _configure(config: WOHConfig | None, hyper: dict[str, Any]) -> WOHConfig:
    """`config` with the fields in `hyper` replaced; an unknown name is a ConfigError."""
    if config is not None and "preset" not in hyper:
        return WOHConfig.from_dict({**config.to_dict(), **hyper})
    return WOHConfig.from_dict(hyper)


def _checked(name: str, M: ArrayLike, shape: tuple[int | None, int | None]) -> Matrix:
    """M as a finite float64 matrix of `shape`, None leaving a side open."""
    M = np.asarray(validate.features(M, name=name), np.float64)
    if any(want is not None and want != got for want, got in zip(shape, M.shape, strict=True)):
        raise InputError(
            f"{name} has shape {M.shape}, expected {tuple('any' if s is None else s for s in shape)}"
        )
    return M
