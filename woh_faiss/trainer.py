"""WOH: the estimator that learns from a stream, chunk by chunk. The only learning state there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import codes, validate
from .adaptive import remembered
from .chunks import Chunk
from .config import WOHConfig
from .errors import InputError, NotFittedError
from .hasher import Hasher
from .kernel import Matrix
from .learning import Codes, Items, learn_round
from .memory import Adaptive, Learned
from .rows import Features, cut
from .starting import Beginning, Tagged, checked
from .statistics import Statistics
from .tag_vectors import mean_vectors
from .tags import Vocabulary

if TYPE_CHECKING:
    from .tag_lists import TagLists
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
        W to start round 1 of a random start from, columns in the order of `vocabulary_.tags`.
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
    misfit_ : (n,) int64
        Bits in which each of its codes differs from what the item's features alone would get: where it is
        large, tags and picture say different things. 0 where nothing was learned from.
    vocabulary_ : Vocabulary
        The tags so far and their vectors; `coverage_` says how much of the latest chunk they cover.
    hasher_ : Hasher
        The newest hash function.
    anchors_ : (m, d) or None
        The kernel's anchors; None while few items were seen and the anchors may still change.

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
        self._learned: Learned | None = None

    @property
    def hasher_(self) -> Hasher:
        """The newest hash function.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        return self._fitted.hasher

    @property
    def _fitted(self) -> Learned:
        if self._learned is None:
            raise NotFittedError("no round was learned yet; call partial_fit with features and tags first")
        return self._learned

    @property
    def anchors_(self) -> NDArray[Any] | None:
        """The kernel's anchors (m, d), None while they may still change."""
        return None if self._learned is None else self._learned.anchors

    @property
    def looks_at_all(self) -> bool:
        """Whether the next round looks at all rows of its chunk at once, as the first of a semantic start."""
        if self.config.start == "random":
            return False
        memory = None if self._learned is None else self._learned.memory
        return memory is None or memory.early is not None

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
            Codes to start a random start from (only signs matter).

        Raises
        ------
        InputError
            The chunk cannot be used, or is the first and none of its items carries a known tag.
        """
        chunk = Chunk.of(validate.features(X, d=self._learned.hasher.d if self._learned else None), tags)
        if chunk.tags is None:
            raise InputError("tags are None; give one tag list an item, or encode the items instead")
        Z = None if Z is None else checked("Z", Z, (len(chunk), None))
        return self.learn(Features(chunk.features), chunk.tags, word_vectors=word_vectors, Z=Z, B0=B0)

    def learn(
        self,
        features: Features,
        tags: TagLists,
        *,
        word_vectors: WordVectors | None = None,
        Z: Matrix | None = None,
        B0: ArrayLike | None = None,
    ) -> Self:
        """`partial_fit` of features that may be on other machines; theirs are checked there."""
        config, n = self.config, features.shape[0]
        vocabulary, coverage, touched = self.vocabulary_.learn(
            tags, word_vectors, seed=config.seed, vector_size=config.vector_size
        )
        Y = vocabulary.incidence(tags)
        trained = np.diff(Y.indptr) > 0
        misfit = np.zeros(n, np.int64)
        if trained.any():
            Y_rows = features.beside(cut(Y[trained]))
            if Z is None:
                Z_rows, f = Y_rows.map(mean_vectors, vocabulary.E), vocabulary.f
            else:
                Z_rows, f = features.beside(cut(Z[trained])), Z.shape[1]
            chunk = Tagged(features, trained, Y[trained], Y_rows, Z_rows, f)
            learned, packed, misfit[trained] = self._round(chunk, vocabulary.df, B0)
        elif self._learned is None:
            raise InputError(
                f"none of the {n} items of the first chunk has a tag that was seen "
                f"{config.min_count} times; give a chunk with more tags, or a smaller min_count"
            )
        else:  # nothing to learn from: encode with the function there is
            learned, packed = self._learned, _encoded(features, None, self.hasher_)

        self.rounds_ += bool(trained.any())
        self.vocabulary_, self.coverage_, self.touched_ = vocabulary, coverage, touched
        self._learned, self.codes_, self.trained_, self.misfit_ = learned, packed, trained, misfit
        return self

    def _round(
        self, chunk: Tagged, df: Matrix, B0: ArrayLike | None
    ) -> tuple[Learned, NDArray[np.uint8], NDArray[np.int64]]:
        """One more round, the chunk's codes (the new function's for items that took no part), the misfits
        of those that did."""
        config, known, trained = self.config, self._learned, chunk.trained
        if known is not None:
            _same_width(chunk.f, known.stats.C5.shape[1])
        rng = np.random.default_rng((config.seed, self.rounds_ + 1))
        anchors: NDArray[Any] | None = None
        beginning = Beginning(config, known, self.A, self.W0)
        semantic = config.start == "semantic"
        if semantic:
            start = beginning.semantic(chunk, df, B0, rng)
        else:
            start, anchors = beginning.random(chunk, B0, rng)
        done = learn_round(start.items, start.W0, start.past, config, semantic=semantic)
        memory = remembered(start, done, config.anchors if self.A is None else 0)
        if memory is not None and memory.early is None:
            anchors = start.kernel.A.astype(np.float32)
        hasher = Hasher(start.kernel, done.P)
        packed = np.empty((len(trained), config.bits // 8), np.uint8)
        packed[trained] = np.concatenate(done.codes.map(_packed).gathered())[start.given :]
        if not trained.all():
            packed[~trained] = _encoded(chunk.features, ~trained, hasher)
        misfit = np.concatenate(start.items.map(_misfit, done.codes, done.P).gathered())[start.given :]
        return Learned(hasher, done.W, done.stats, memory, anchors), packed, misfit

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything but the vocabulary and `anchors_`, as arrays by name, to go on from later.

        While the anchors are not final they are among the arrays, as ``A``.
        """
        learned = self._fitted
        return {
            **learned.hasher.arrays(),
            **learned.stats.arrays(),
            **({} if learned.memory is None else learned.memory.arrays()),
            **({} if learned.anchors is not None else {"A": learned.hasher.kernel.A.astype(np.float32)}),
            "W": learned.W,
            "rounds": np.asarray(self.rounds_),
        }

    @classmethod
    def from_state(
        cls,
        config: WOHConfig,
        state: Mapping[str, NDArray[Any]],
        anchors: NDArray[Any] | None,
        vocabulary: Vocabulary,
    ) -> WOH:
        """The estimator that `state` was taken of: further rounds are equal to the bit."""
        woh = cls(config)
        woh.vocabulary_ = vocabulary
        woh.rounds_ = int(state["rounds"])
        memory = Adaptive.from_arrays(state) if config.start == "semantic" else None
        hasher = Hasher.from_arrays(state, anchors)
        woh._learned = Learned(
            hasher, validate.stored(state, "W", 2), Statistics.from_arrays(state), memory, anchors
        )
        return woh


def _packed(block: Codes) -> NDArray[np.uint8]:
    return codes.pack(block.B)


def _misfit(items: Items, block: Codes, P: Matrix) -> NDArray[np.int64]:
    """Bits in which the codes differ from what features alone get: (b,)."""
    misfit: NDArray[np.int64] = ((items.phi @ P.astype(items.phi.dtype) >= 0) != (block.B > 0)).sum(axis=1)
    return misfit


def encoded(X: NDArray[Any], hasher: Hasher) -> NDArray[np.uint8]:
    """`Hasher.encode` of a block of rows."""
    return hasher.encode(X)


def _encoded(features: Features, wanted: NDArray[np.bool_] | None, hasher: Hasher) -> NDArray[np.uint8]:
    return np.concatenate(features.rows(wanted).map(encoded, hasher).gathered())


def _same_width(f: int, fitted: int) -> None:
    if f != fitted:
        raise InputError(f"word-vector means have {f} columns, the model was fitted with {fitted}")


def _configure(config: WOHConfig | None, hyper: dict[str, Any]) -> WOHConfig:
    """`config` with the fields in `hyper` replaced; an unknown name is a ConfigError."""
    if config is not None and "preset" not in hyper:
        return WOHConfig.from_dict({**config.to_dict(), **hyper})
    return WOHConfig.from_dict(hyper)
