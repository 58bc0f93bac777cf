"""The writing half of an index: take the lock, check, learn or encode, commit. One round or nothing.

`extend` takes inputs chunk by chunk, and skips those that are in the index already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.blocks import Features
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.hasher import Hasher
from woh_faiss.store import NewRound, Round, Snapshot, Store
from woh_faiss.store.write_transaction import WriteTransaction
from woh_faiss.tags.vocabulary import NormalisedTags, Vocabulary, normalised
from woh_faiss.tags.word_vectors import WordVectors

from .item_ids import OnDuplicate, Preflight, ResolvedItems, check_policy, resolve, to_remove

if TYPE_CHECKING:
    from woh_faiss.inputs import Inputs

#: Items a round that are remembered as those whose tags fit their features least.
TAG_OUTLIERS = 20


class IndexWriter:
    """Appends rounds to a store, keeping the trainer in memory from one update to the next.

    Parameters
    ----------
    store : Store
        The index folder.
    config : WOHConfig
        The configuration it was made with.
    hasher : callable
        The hash function of the state that `store` serves; NotFittedError where nothing was learned.
    """

    def __init__(self, store: Store, config: WOHConfig, hasher: Callable[[], Hasher]) -> None:
        self._store, self._config, self._hasher = store, config, hasher
        self._trainer: WOH | None = None
        self._checked: str | None = None  # digest of the model whose files were found whole
        # Of the model that the trainer in memory is at; a rewritten index may have lost tags it knows.
        self._at_state: tuple[str | None, int] = None, 0

    def update(
        self,
        chunk: Chunk,
        word_vectors: WordVectors | None,
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
    ) -> Round:
        """Learn `chunk` and append it; see `WOHIndex.update`. `chunk_hash`: its `Chunk.digest`, if known."""

        def fit(trainer: WOH, chunk: Chunk, tags: NormalisedTags) -> None:
            trainer.learn(Features(chunk.features), tags, word_vectors=word_vectors)

        return self.learned(chunk, fit, timeout, on_duplicate, chunk_hash)

    def learned(
        self,
        chunk: Chunk,
        fit: Callable[[WOH, Chunk, NormalisedTags], None],
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
    ) -> Round:
        """`update` where `fit` learns: its chunk's features may be elsewhere, and are not looked at here."""
        if chunk.tags is None:
            raise InputError(
                "the chunk has no tags to learn from; 'woh-index add' (WOHIndex.add) only encodes it"
            )
        with self._store.writing(timeout) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(chunk_hash or chunk.digest(), named, writing)
            trainer = self._at(writing.snapshot)
            self._trainer = None  # until the commit it may be a round ahead of the disk
            started = time.perf_counter()
            typed: Any = named.chunk.tags
            tags = normalised(typed)
            fit(trainer, named.chunk, tags)
            learned = bool(trainer.trained_.any())
            committed = writing.commit(
                NewRound(
                    kind="trained" if learned else "encoded",
                    codes=codes.pad(trainer.codes_),
                    ids=named.ids,
                    keys=named.keys,
                    tags=tags.lists(),
                    trained=int(trainer.trained_.sum()),
                    seconds=time.perf_counter() - started,
                    model=trainer.state() if learned else None,
                    anchors=None if writing.has_anchors else trainer.anchors_,
                    tag_rows=trainer.vocabulary_.rows(trainer.touched_),
                    chunk_hash=chunk_hash or chunk.digest(),
                    health=codes.health(trainer.codes_) | asdict(trainer.coverage_) | _skipped(named),
                    remove=named.replaced,
                    numbered=named.numbered,
                    tag_outliers=_worst(named.ids, trainer.tag_outlier_),
                )
            )
            self._trainer, self._at_state = trainer, (committed.model_digest, writing.snapshot.generation)
        return committed

    def add(
        self, chunk: Chunk, timeout: float, on_duplicate: OnDuplicate, chunk_hash: str | None = None
    ) -> Round:
        """Encode `chunk` and append it; see `WOHIndex.add`. `chunk_hash` is its `Chunk.digest`, if known."""
        return self._appended(chunk, lambda X: self._hasher().encode(X), timeout, on_duplicate, chunk_hash)

    def add_codes(self, chunk: Chunk, model: str, timeout: float, on_duplicate: OnDuplicate) -> Round:
        """Append codes in place of features; see `WOHIndex.add_codes`."""

        def same(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
            if packed.shape[1] * 8 != self._config.bits:
                raise InputError(
                    f"codes have {packed.shape[1] * 8} bits, the index has {self._config.bits}; "
                    "encode with its own hash function, WOHIndex.hasher"
                )
            if model != (mine := self._hasher().fingerprint):
                raise InputError(
                    f"the codes are of hash function {validate.short(model[:12])}, the index is at "
                    f"{mine[:12]!r}; encode the features again with WOHIndex.hasher"
                )
            return packed

        return self._appended(chunk, same, timeout, on_duplicate)

    def extend(
        self,
        inputs: Inputs,
        *,
        learn: bool,
        word_vectors: WordVectors | None,
        on_duplicate: OnDuplicate,
        skip_known: bool,
        note: Callable[[str], object] | None,
    ) -> Iterator[Round]:
        """See `WOHIndex.extend`."""
        check_policy(on_duplicate)
        self._store.refresh()
        self._check_widths(inputs)
        total = len(inputs)
        if inputs.whole and total > 1:
            known = KnownChunks(self._store, on_duplicate, skip_known)
            new = (
                (p.where, p.chunk) for p in inputs.pieces() if known.take(p.chunk.digest(), p.chunk) is None
            )
            self.check(new, learn, on_duplicate)
        known = KnownChunks(self._store, on_duplicate, skip_known)
        for piece in inputs.pieces():
            chunk_hash = piece.chunk.digest()
            there = known.take(chunk_hash, piece.chunk)
            if there is not None:
                if note is not None:
                    how = "learned" if there.kind == "trained" else "added"
                    note(
                        f"chunk {piece.number} of {total}: already {how} (round {there.round}), skipped: "
                        f"{piece.where}"
                    )
                continue
            try:
                if learn:
                    yield self.update(piece.chunk, word_vectors, 10.0, on_duplicate, chunk_hash)
                else:
                    yield self.add(piece.chunk, 10.0, on_duplicate, chunk_hash)
            except InputError as error:
                if total == 1:
                    raise
                raise InputError(f"{piece.where}: {error}") from error

    def _check_widths(self, inputs: Inputs) -> None:
        d = self.width()
        for source in inputs.sources:
            if d is not None and source.d is not None and source.d != d:
                raise InputError(
                    f"{source.where}: features have {source.d} columns, the model was fitted with {d}"
                )

    def _appended(
        self,
        chunk: Chunk,
        encode: Callable[[NDArray[Any]], NDArray[np.uint8]],
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
    ) -> Round:
        with self._store.writing(timeout) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(chunk_hash or chunk.digest(), named, writing)
            started = time.perf_counter()
            self._check(writing.snapshot)
            packed = encode(named.chunk.features)
            tags = named.chunk.tags
            return writing.commit(
                NewRound(
                    kind="encoded",
                    codes=codes.pad(packed),
                    ids=named.ids,
                    keys=named.keys,
                    tags=[[]] * len(packed) if tags is None else normalised(tags).lists(),
                    seconds=time.perf_counter() - started,
                    chunk_hash=chunk_hash or chunk.digest(),
                    health=codes.health(packed) | _skipped(named),
                    remove=named.replaced,
                    numbered=named.numbered,
                )
            )

    def _nothing_new(self, chunk_hash: str, named: ResolvedItems, writing: WriteTransaction) -> Round:
        """A round all of whose items were skipped: one a chunk, whatever is in it."""
        return writing.commit(
            NewRound(
                kind="encoded",
                codes=np.empty((0, self._store.d // 8), np.uint8),
                chunk_hash=chunk_hash,
                health=_skipped(named),
            )
        )

    def remove(
        self, ids: ArrayLike | None, keys: Sequence[str] | None, ignore_missing: bool, timeout: float
    ) -> int:
        """Remove items; see `WOHIndex.remove`."""
        with self._store.writing(timeout) as writing:
            found = to_remove(ids, keys, writing, ignore_missing)
            if found:
                writing.remove(found)
        return len(found)

    def check(self, chunks: Iterable[tuple[str, Chunk]], learn: bool, on_duplicate: OnDuplicate) -> None:
        """Refuse what would stop these (file, chunk) after the first; see `Preflight`."""
        self._store.refresh()
        with self._store.writing() as writing:
            ahead = Preflight(writing, self.width(), learn, on_duplicate)
            for path, chunk in chunks:
                ahead.take(path, chunk)

    def width(self) -> int | None:
        """Width of the features it takes, None while nothing was learned."""
        return self._hasher().d if self._store.snapshot.model else None

    def _check(self, snapshot: Snapshot) -> None:
        """Refuse to go on with a model that is not what was committed: codes are permanent. Once a model."""
        if snapshot.model_digest not in (None, self._checked):
            self._store.view.check_model()
            self._checked = snapshot.model_digest

    def _at(self, snapshot: Snapshot) -> WOH:
        """The trainer as of `snapshot`: the one in memory if it is there, else from disk."""
        if self._trainer is not None and self._at_state == (snapshot.model_digest, snapshot.generation):
            return self._trainer
        vocabulary = Vocabulary.from_rows(self._store.tag_rows(), self._config.min_count)
        if snapshot.model is None:
            return WOH(self._config)
        self._check(snapshot)
        model = self._store.view.learned()
        with model.damage():
            return WOH.from_state(self._config, model, self._store.view.anchor_rows(), vocabulary)


def _worst(ids: NDArray[np.int64], tag_outlier: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The items (id, bits) of a round that are remembered as its tag outliers; of equal ones the earlier."""
    order = np.argsort(-tag_outlier, kind="stable")[:TAG_OUTLIERS]
    return [(int(ids[row]), int(tag_outlier[row])) for row in order if tag_outlier[row]]


def _skipped(named: ResolvedItems) -> dict[str, int]:
    return {"skipped": named.skipped} if named.skipped else {}


class KnownChunks:
    """The chunks that an index has, each as often as it has it; none without `skip`.

    With another policy than "error" no chunk is known whose items have names: they are looked at one by one.
    """

    def __init__(self, store: Store, on_duplicate: OnDuplicate, skip: bool) -> None:
        self._by_name = on_duplicate != "error"
        self._rounds: dict[str, list[Round]] = {}
        for done in store.rounds() if skip else []:
            for chunk_hash in done.chunk_hash.split():  # `build` puts several chunks into round 1
                self._rounds.setdefault(chunk_hash, []).append(done)

    def take(self, chunk_hash: str, chunk: Chunk) -> Round | None:
        """The round that has the chunk, which from then on is there once less; None to take it in."""
        if self._by_name and (chunk.ids is not None or chunk.keys is not None):
            return None
        rounds = self._rounds.get(chunk_hash)
        return rounds.pop(0) if rounds else None
