"""WOH: the estimator that learns from a stream, chunk by chunk; the only learning state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import ConfigError, InputError, NotFittedError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists, class_tags
from woh_faiss.tags.vocabulary import NormalisedTags, Vocabulary, mean_vectors, normalised

from .blocks import Features, Sums, split_blocks
from .config import PARAMETERS, WOHConfig, merged
from .hasher import Hasher, encoded
from .kernel import Kernel, Matrix, near_anchors
from .round_start import RoundStart, TaggedChunk, valid_chunk
from .semantic_start import remembered
from .state import Adaptive, ModelState
from .statistics import Statistics
from .threads import one_blas_thread
from .training_round import Codes, Items, learn_round

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from woh_faiss.tags.word_vectors import WordVectors


class WOH:
    """Weakly-supervised online hashing (Zhan et al., ICME 2021).

    A hash function from features to short codes, learned from the tags of a stream of items. Every
    `partial_fit` gives the chunk's items their final codes and improves the function for later queries and
    chunks. Old items are never needed again.

    It is a scikit-learn transformer; scikit-learn need not be installed. `fit` forgets and learns one chunk.
    `get_params`, `set_params`, `clone`, pipelines and grid searches work.

    Parameters
    ----------
    config : WOHConfig, optional
        Hyper-parameters; or give them by name, ``WOH(bits=32, seed=1)``. The attribute has all of them.
    A : (m, d) array_like, optional
        The kernel's anchors, instead of those made of the first chunk.
    W0 : (r, c) array_like, optional
        W to start round 1 of a random start from, columns in the order of `vocabulary_.tags`.
    **hyper
        Fields of `WOHConfig`, which win over those of `config`; `config.merged` has the rule.

    Raises
    ------
    ConfigError
        A hyper-parameter is unknown or out of range. This is checked here and not in `fit`.

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
    trust_ : (n,) float64
        How far its tags are trusted, 0 to 1 (`learner.trust`): what they count. 1 where nothing was learned
        from.
    novelty_ : float
        Share of the latest chunk's tags that are more than chance draws from the items so far: about 0 in a
        shuffled stream. 0 in round 1, of a random start, and where nothing was learned from.
    covered_ : float
        Share of the items it learned from that are near an anchor: about 0.9 if they are like the first
        items, of which anchors are made; 1 where nothing was learned from, and with fewer than 100 anchors.
    adapted_ : bool
        Whether the latest chunk was so unlike the items so far that its codes got directions of their own.
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
        self.config = _with_bits(merged(config, hyper))
        self.A = A
        self.W0 = W0

    # What it has before the first round; scikit-learn has it that an instance gets these when it is fitted.
    rounds_ = 0
    _learned: ModelState | None = None
    _vocabulary: Vocabulary | None = None
    _learned_with: tuple[WOHConfig, Any, Any] | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What to call `WOH` with to make an equal one, nothing learned.

        Parameters
        ----------
        deep : bool
            Has no effect: no parameter is an estimator.

        Returns
        -------
        dict
            ``A``, ``W0``, and every field of `WOHConfig`, None where the preset decides. ``config`` is always
            None, because its fields are there by name; `WOH.config` has them with the preset's values.
        """
        return {"config": None, "A": self.A, "W0": self.W0, **self.config.given()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters by name for the next `fit`; on an error none is changed.

        Parameters
        ----------
        **params
            As the constructor takes them. Those not named stay, unless a `config` is given: it replaces all
            fields of `WOHConfig`, but for those named beside it. None takes the preset's value.

        Raises
        ------
        ConfigError
            A parameter is unknown or out of range.
        """
        arrays = {name: params.pop(name, getattr(self, name)) for name in ("A", "W0")}
        config = params.pop("config", None)
        self.config = _with_bits(merged(self.config if config is None else config, params))
        self.A, self.W0 = arrays["A"], arrays["W0"]
        return self

    def __repr__(self) -> str:
        """The call that makes it; A and W0 by their names alone, because they are large."""
        default, own = WOHConfig().given(), self.config.given()
        given = [f"{name}={value!r}" for name, value in own.items() if value != default[name]]
        given += [f"{name}=..." for name, value in (("A", self.A), ("W0", self.W0)) if value is not None]
        return f"WOH({', '.join(given)})"

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn wants to know of an estimator; nobody else calls it."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, multi_output=True, single_output=True),
            transformer_tags=TransformerTags(preserves_dtype=[]),  # features of any dtype, codes of int8
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned is not None

    @property
    def vocabulary_(self) -> Vocabulary:
        """The tags so far and their vectors."""
        return Vocabulary(self.config.min_count) if self._vocabulary is None else self._vocabulary

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
    def _fitted(self) -> ModelState:
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

    def fit(
        self,
        X: ArrayLike,
        y: Any = None,
        *,
        word_vectors: WordVectors | None = None,
        Z: ArrayLike | None = None,
        B0: ArrayLike | None = None,
    ) -> Self:
        """Forget all that was learned, then learn one chunk.

        Parameters
        ----------
        X, y, word_vectors, Z, B0
            As `partial_fit`.

        Raises
        ------
        InputError
            As `partial_fit`.
        """
        fresh = type(self)(**self.get_params())
        fresh.partial_fit(X, y, word_vectors=word_vectors, Z=Z, B0=B0)
        vars(self).update(vars(fresh) | {"config": self.config})  # an equal one, but scikit-learn checks
        return self

    def fit_transform(self, X: ArrayLike, y: Any = None, **fit_params: Any) -> NDArray[np.int8]:
        """``fit(X, y).transform(X)``: codes of the features alone, (n, r) in {-1, +1}.

        The items' own codes, which their tags decided, too, and which an index would store, are `codes_`.

        Parameters
        ----------
        X, y, **fit_params
            As `fit`.
        """
        return self.fit(X, y, **fit_params).transform(X)

    def partial_fit(
        self,
        X: ArrayLike,
        y: Any,
        *,
        word_vectors: WordVectors | None = None,
        Z: ArrayLike | None = None,
        B0: ArrayLike | None = None,
    ) -> Self:
        """Learn one more chunk; on an error the estimator is as it was.

        Parameters
        ----------
        X : (n, d) array_like of a real dtype
            Features.
        y : list of str, list of lists of str, (n, c) 0/1 array or sparse matrix, TagLists, or (n,) integers
            What each item was tagged with; see `Chunk.of`. Integers are class numbers, as scikit-learn's
            labels are: class 3 is the tag "tag3", which is what column 3 of a 0/1 array is called.
        word_vectors : WordVectors, optional
            Vectors of the words of new tags.
        Z : (n, f) array_like, optional
            Word-vector means of the items, instead of those of their tags.
        B0 : (n, r) array_like, optional
            Codes to start a random start from (only signs matter).

        Raises
        ------
        InputError
            The chunk cannot be used, or is the first and none of its items carries a known tag.
        ConfigError
            Parameters were changed since the rounds before; `fit` starts again with them.
        """
        self._check_params()
        X = validate.features(X, d=self._learned.hasher.d if self._learned else None)
        chunk = Chunk.of(X, class_tags(y))
        if chunk.tags is None:
            raise InputError("tags are None; give one tag list an item, or encode the items instead")
        Z = None if Z is None else valid_chunk("Z", Z, (len(chunk), None))
        return self.learn(Features(chunk.features), chunk.tags, word_vectors=word_vectors, Z=Z, B0=B0)

    @one_blas_thread()
    def learn(
        self,
        features: Features,
        tags: TagLists | NormalisedTags,
        *,
        word_vectors: WordVectors | None = None,
        Z: Matrix | None = None,
        B0: ArrayLike | None = None,
        names: NDArray[np.int64] | None = None,
    ) -> Self:
        """`partial_fit` of features that may be on other machines, where they were checked.

        Parameters
        ----------
        features : Features
            Blocks of (n, d) rows.
        tags : TagLists
            Of n items.
        word_vectors, Z, B0
            As `partial_fit`.
        names : (n, 2) int64, optional
            What the items are called when some of them are to be forgotten: see `keep_items`.

        Raises
        ------
        InputError, ConfigError
            As `partial_fit`.
        """
        self._check_params()
        config, (n, d) = self.config, features.shape
        if self._learned is not None and d != self.n_features_in_:
            raise InputError(f"features have {d} columns, the model was fitted with {self.n_features_in_}")
        tags = normalised(tags)
        vocabulary, coverage, touched = self.vocabulary_.learn(
            tags, word_vectors, seed=config.seed, vector_size=config.vector_size
        )
        Y = vocabulary.incidence(tags)
        trained = np.diff(Y.indptr) > 0
        trust, drift = np.ones(n), (0.0, False, 1.0)
        if trained.any():
            Y_rows = features.beside(split_blocks(Y[trained]))
            if Z is None:
                Z_rows, f = Y_rows.map(mean_vectors, vocabulary.E), vocabulary.f
            else:
                Z_rows, f = features.beside(split_blocks(Z[trained])), Z.shape[1]
            chunk = TaggedChunk(
                features,
                trained,
                Y[trained],
                Y_rows,
                Z_rows,
                f,
                np.full((n, 2), -1, np.int64) if names is None else names,
            )
            learned, packed, trust[trained], drift = self._round(chunk, vocabulary.df, B0)
        elif self._learned is None:
            raise InputError(
                f"none of the {n} items of the first chunk has a tag that was seen "
                f"{config.min_count} times; give a chunk with more tags, or a smaller min_count"
            )
        else:  # nothing to learn from: encode with the function there is
            learned, packed = self._learned, _encoded(features, None, self.hasher_)

        self.rounds_ += bool(trained.any())
        self._vocabulary, self.coverage_, self.touched_ = vocabulary, coverage, touched
        self._learned_with = config, self.A, self.W0
        self._learned, self.codes_, self.trained_ = learned, packed, trained
        self.trust_, (self.novelty_, self.adapted_, self.covered_) = trust, drift
        return self

    def _check_params(self) -> None:
        """ConfigError if a round would go on from what was learned with other parameters."""
        if self._learned_with is None:
            return
        config, A, W0 = self._learned_with
        names = [name for name in PARAMETERS if getattr(self.config, name) != getattr(config, name)]
        names += [name for name, given in (("A", A), ("W0", W0)) if getattr(self, name) is not given]
        if names:
            raise ConfigError(
                f"{validate.listed(names)} changed since the rounds before; call fit to start again, "
                "or set the old value"
            )

    def _round(
        self, chunk: TaggedChunk, df: Matrix, B0: ArrayLike | None
    ) -> tuple[ModelState, NDArray[np.uint8], Matrix, tuple[float, bool, float]]:
        """One more round, the chunk's codes (the new function's for items that took no part), how far tags
        of those that did are trusted, and the round's novelty, whether it adapted, what anchors cover."""
        config, known, trained = self.config, self._learned, chunk.trained
        if known is not None:
            _same_width(chunk.f, known.stats.C5.shape[1])
        rng = np.random.default_rng((config.seed, self.rounds_ + 1))
        anchors: NDArray[Any] | None = None
        beginning = RoundStart(config, known, self.A, self.W0)
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
        trust = np.concatenate(start.items.map(_trust).gathered())
        state = ModelState(hasher, done.W, done.stats, memory, anchors)
        near = start.items.sum(_near, start.kernel)
        said = start.novelty, start.adapted, near["near"] / near["n"]
        return state, packed, trust[start.given :], said

    def keep_items(self, kept: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> None:
        """Forget all other items of those that are remembered whole, while there are few.

        Parameters
        ----------
        kept : callable
            Given names (n, 2) of items, as `learn` has them, it says which stay (n,).
        """
        learned = self._learned
        if learned is None or learned.memory is None or learned.memory.early is None:
            return
        early = learned.memory.early
        early = early.only(kept(early.names), kept(early.bare_names))
        self._learned = replace(learned, memory=replace(learned.memory, early=early))

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
        """The estimator whose state this is: further rounds are equal to the bit.

        Parameters
        ----------
        config : WOHConfig
            Its hyper-parameters.
        state : mapping of str to array
            The arrays of a model file.
        anchors : (m, d) array, optional
            The kernel's anchors; None where `state` has them.
        vocabulary : Vocabulary
            Its tags and their vectors.
        """
        woh = cls(config)
        woh._vocabulary, woh._learned_with = vocabulary, (config, None, None)
        woh.rounds_ = int(state["rounds"])
        memory = Adaptive.from_arrays(state) if config.start == "semantic" else None
        hasher = Hasher.from_arrays(state, anchors).beside(None)  # an index has instance bits beside
        woh._learned = ModelState(
            hasher, validate.stored(state, "W", 2), Statistics.from_arrays(state), memory, anchors
        )
        return woh


def _with_bits(config: WOHConfig) -> WOHConfig:
    if not config.bits:
        raise ConfigError("bits is 0, expected at least 8; only an index goes without learned bits")
    return config


def _near(block: Items, kernel: Kernel) -> Sums:
    return near_anchors(block.phi[block.given :], kernel)


def _packed(block: Codes) -> NDArray[np.uint8]:
    return codes.pack(block.B)


def _trust(items: Items) -> Matrix:
    return np.ones(len(items.B0)) if items.trust is None else items.trust


def _encoded(features: Features, wanted: NDArray[np.bool_] | None, hasher: Hasher) -> NDArray[np.uint8]:
    return np.concatenate(features.rows(wanted).map(encoded, hasher).gathered())


def _same_width(f: int, fitted: int) -> None:
    if f != fitted:
        raise InputError(f"word-vector means have {f} columns, the model was fitted with {fitted}")
