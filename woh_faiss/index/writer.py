"""The writing half of an index: take the lock, check, learn or encode, commit. One round or nothing.

`extend` takes inputs chunk by chunk, and skips those that are in the index already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk, concatenate, gathered
from woh_faiss.learner.blocks import Features
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.hasher import Hasher, encoded
from woh_faiss.learner.instance import ENOUGH
from woh_faiss.learner.threads import one_blas_thread
from woh_faiss.store import NewRound, Round, Snapshot, Store
from woh_faiss.store.view import Where
from woh_faiss.store.write_transaction import WriteTransaction
from woh_faiss.tags.vocabulary import Vocabulary, normalised
from woh_faiss.tags.word_vectors import WordVectors

from .instance_half import InstanceHalf, code, instance_half, kept
from .item_ids import OnDuplicate, Preflight, ResolvedItems, check_policy, resolve, to_remove

if TYPE_CHECKING:
    from woh_faiss.inputs import Inputs
    from woh_faiss.inputs.open import Piece
    from woh_faiss.learner.estimator import WOH

T = TypeVar("T")
#: What gives a chunk's features to the function it is called with: here, or on a cluster.
WithFeatures = Callable[["WOH | None", Chunk, Callable[[Features], T]], T]


class IndexWriter:
    """Appends rounds to a store, keeping the trainer in memory from one update to the next.

    Parameters
    ----------
    store : Store
        The index folder.
    config : WOHConfig
        The configuration it was made with.
    instance_bits : int
        Of a code, behind the learned ones.
    hasher : callable
        The hash function of the state that `store` serves; NotFittedError where nothing was learned.
    """

    def __init__(
        self, store: Store, config: WOHConfig, instance_bits: int, hasher: Callable[[], Hasher]
    ) -> None:
        self._store, self._config, self._s, self._hasher = store, config, instance_bits, hasher
        self._trainer: WOH | None = None
        self._checked: str | None = None  # digest of the model whose files were found whole
        # Of the model that the trainer in memory is at; a rewritten index may have lost tags it knows.
        self._at_state: tuple[str | None, int] = None, 0

    def build(
        self,
        chunks: Iterable[Chunk],
        word_vectors: WordVectors | None,
        least: int,
        first_sample: int,
        max_chunks: int | None,
        progress: Callable[[Iterable[Chunk], int], Iterable[Chunk]] | None,
        on_duplicate: OnDuplicate = "error",
    ) -> None:
        """Learn the chunks of a new index, of inputs a sample first; see `WOHIndex.build`.

        A round says of each chunk that it is in it; round 1 also of how many items it is a sample.
        """
        from woh_faiss.inputs import DistinctInputs, Inputs, SampledInputs, first_sampled

        noted = {}
        if isinstance(chunks, Inputs):
            if check_policy(on_duplicate) != "error":  # of all inputs, before some of them are a sample
                chunks = DistinctInputs(chunks, on_duplicate)
                noted = {"skipped": chunks.left_out} if chunks.left_out else {}
            chunks = first_sampled(chunks, first_sample, self._config.seed)
        if isinstance(chunks, SampledInputs):
            noted |= {"sampled": len(chunks.rows), "sampled_from": chunks.n}
        given: Iterable[Chunk] = islice(chunks, max_chunks)
        if progress is not None and isinstance(chunks, Inputs):
            given = progress(given, min(len(chunks), max_chunks or len(chunks)))
        for parts in gathered(given, least):
            chunk_hash = " ".join(part.digest() for part in parts)
            joined = concatenate(parts, own_names=True, on_duplicate=on_duplicate)
            self.learned(joined, _here, word_vectors, 10.0, on_duplicate, chunk_hash, noted)
            noted = {}

    def update(
        self,
        chunk: Chunk,
        word_vectors: WordVectors | None,
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
        noted: dict[str, int] | None = None,
    ) -> Round:
        """Learn `chunk` and append it; see `WOHIndex.update`. `chunk_hash`: its `Chunk.digest`, if known."""
        return self.learned(chunk, _here, word_vectors, timeout, on_duplicate, chunk_hash, noted)

    def learned(
        self,
        chunk: Chunk,
        with_features: WithFeatures[None],
        word_vectors: WordVectors | None,
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
        noted: dict[str, int] | None = None,
    ) -> Round:
        """`update` of a chunk whose features may be elsewhere: `with_features` has them.

        `noted` is what the round's health says beside its own figures.
        """
        if not self._config.bits:
            return self._appended(chunk, with_features, timeout, on_duplicate, chunk_hash, noted)
        if chunk.tags is None:
            raise InputError(
                "the chunk has no tags to learn from; 'woh-index add' (WOHIndex.add) only encodes it"
            )
        with self._store.writing(timeout) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(chunk_hash or chunk.digest(), named, writing, noted)
            writing.check_metadata(named.chunk.metadata)  # before minutes of learning
            trainer = self._at(writing.snapshot)
            self._trainer = None  # until the commit it may be a round ahead of the disk
            started = time.perf_counter()
            typed: Any = named.chunk.tags
            tags, half = normalised(typed), None
            names = np.column_stack([named.ids, np.full(len(named.ids), writing.snapshot.round + 1)])

            def learn(features: Features) -> None:
                nonlocal half
                trainer.keep_items(lambda known: writing.live_names(known, named.replaced))
                trainer.learn(features, tags, word_vectors=word_vectors, names=names)
                half = self._half(features, writing)

            with_features(trainer, named.chunk, learn)
            learned = bool(trainer.trained_.any())
            committed = writing.commit(
                NewRound(
                    kind="trained" if learned else "encoded",
                    codes=code(trainer.codes_, half),
                    ids=named.ids,
                    keys=named.keys,
                    tags=tags.lists(),
                    trained=int(trainer.trained_.sum()),
                    seconds=time.perf_counter() - started,
                    model=self._model(trainer.state() if learned else None, half),
                    anchors=None if writing.has_anchors else trainer.anchors_,
                    tag_rows=trainer.vocabulary_.rows(trainer.touched_),
                    chunk_hash=chunk_hash or chunk.digest(),
                    health=codes.health(trainer.codes_)
                    | asdict(trainer.coverage_)
                    | _fit(trainer)
                    | _skipped(named)
                    | (noted or {}),
                    remove=named.replaced,
                    numbered=named.numbered,
                    trust=_kept_trust(trainer.trust_),
                    metadata=named.chunk.metadata,
                    **kept(half),
                )
            )
            self._trainer, self._at_state = trainer, (committed.model_digest, writing.snapshot.generation)
        return committed

    def add(
        self,
        chunk: Chunk,
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
        noted: dict[str, int] | None = None,
    ) -> Round:
        """Encode `chunk` and append it; see `WOHIndex.add`. `chunk_hash` is its `Chunk.digest`, if known."""
        return self._appended(chunk, _here, timeout, on_duplicate, chunk_hash, noted)

    def add_codes(self, chunk: Chunk, model: str, timeout: float, on_duplicate: OnDuplicate) -> Round:
        """Append codes in place of features; see `WOHIndex.add_codes`."""
        bits = self._config.bits + self._s
        with self._store.writing(timeout) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(chunk.digest(), named, writing)
            self._check(writing.snapshot)
            packed = named.chunk.features
            if packed.shape[1] * 8 != bits:
                raise InputError(
                    f"codes have {packed.shape[1] * 8} bits, the index has {bits}; "
                    "encode with its own hash function, WOHIndex.hasher"
                )
            hasher = self._hasher()
            if model != (mine := hasher.fingerprint):
                raise InputError(
                    f"the codes are of hash function {validate.short(model[:12])}, the index is at "
                    f"{mine[:12]!r}; encode the features again with WOHIndex.hasher"
                )
            if hasher.instance is not None and not hasher.instance.final:
                raise InputError(
                    f"the index has learned its instance bits from {hasher.instance.n:,} items and will "
                    f"again from {ENOUGH:,}; until then add features in place of codes"
                )
            return self._commit_encoded(writing, named, packed, None, time.perf_counter(), chunk.digest())

    def append_codes(
        self, chunk: Chunk, trust: Sequence[float | None], done: Round, on_duplicate: OnDuplicate
    ) -> Round:
        """Append codes of a round of a copy of this index, for `merge`, which has checked that they compare.

        Parameters
        ----------
        chunk : Chunk
            Features are packed codes (n, code_size) uint8.
        trust : n float or None
            How far the tags of each item are trusted; None for 1.
        done : Round
            The round in the copy, whose chunk this one is said to be of.
        on_duplicate : "error", "skip" or "replace"
            As `WOHIndex.update`.
        """
        noted = {"merged_round": done.round}
        with self._store.writing(10.0) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(done.chunk_hash, named, writing, noted)
            by_name = dict(zip(_first_names(chunk), trust, strict=True))
            trusted = [by_name[name] for name in _first_names(named.chunk)]
            packed, started = named.chunk.features, time.perf_counter()
            return self._commit_encoded(
                writing, named, packed, None, started, done.chunk_hash, noted, trusted
            )

    def extend(
        self,
        inputs: Inputs,
        *,
        learn: bool,
        word_vectors: WordVectors | None,
        on_duplicate: OnDuplicate,
        skip_known: bool,
        note: Callable[[str], object] | None,
        timeout: float,
    ) -> Iterator[Round]:
        """See `WOHIndex.extend`."""
        check_policy(on_duplicate)
        learn = learn and self._config.bits > 0
        self._store.refresh()
        inputs = self._as_built(inputs, on_duplicate) if skip_known else inputs
        self._check_widths(inputs)
        total, by_name = len(inputs), on_duplicate != "error"
        rounds = self._store.rounds() if skip_known else []
        run = _interrupted(rounds, inputs) if by_name else {}
        if inputs.whole and total > 1:
            known = KnownChunks(rounds, by_name, run)
            new = ((p.where, p.chunk) for p in inputs.pieces() if known.take(p, p.chunk.digest()) is None)
            self.check(new, learn, on_duplicate, timeout)
        known = KnownChunks(rounds, by_name, run)
        for piece in inputs.pieces():
            chunk_hash = piece.chunk.digest()
            there = known.take(piece, chunk_hash)
            if there is not None:
                if note is not None:
                    how = "learned" if there.kind == "trained" else "added"
                    note(
                        f"chunk {piece.number} of {total}: already {how} (round {there.round}), skipped: "
                        f"{piece.where}"
                    )
                continue
            place = {"chunk": piece.number} if by_name else None
            try:
                if learn:
                    yield self.update(piece.chunk, word_vectors, timeout, on_duplicate, chunk_hash, place)
                else:
                    yield self.add(piece.chunk, timeout, on_duplicate, chunk_hash, place)
            except InputError as error:
                if total == 1:
                    raise
                raise InputError(f"{piece.where}: {error}") from error

    def _as_built(self, inputs: Inputs, on_duplicate: OnDuplicate) -> Inputs:
        """The inputs, in the order in which the index was built of them: what is in it is skipped then.

        Round 1 may be a sample. Inputs that have grown since begin with the items that it is of.
        """
        from woh_faiss.inputs import SampledInputs, sample_rows

        for first in self._store.rounds()[:1]:
            noted = first.health or {}
            n, m = noted.get("sampled_from", 0), noted.get("sampled", 0)
            if m and inputs.count() >= n:
                try:
                    sampled = SampledInputs(inputs, n, sample_rows(n, m, self._config.seed))
                except InputError:  # an id or key twice, which `build` left out
                    return inputs
                if on_duplicate != "error" and sampled.named:  # items are compared one by one
                    return inputs
                if _bare(sampled.sample.digest()) == _bare(first.chunk_hash.split()[0]):
                    return sampled
        return inputs

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
        with_features: WithFeatures[None],
        timeout: float,
        on_duplicate: OnDuplicate,
        chunk_hash: str | None = None,
        noted: dict[str, int] | None = None,
    ) -> Round:
        """A round of which nothing is learned but the instance bits, where they are not final."""
        with self._store.writing(timeout) as writing:
            named = resolve(chunk, writing, on_duplicate)
            if named.chunk is None:
                return self._nothing_new(chunk_hash or chunk.digest(), named, writing, noted)
            started = time.perf_counter()
            self._check(writing.snapshot)
            learned = self._hasher().beside(None) if self._config.bits else None
            packed = half = None

            @one_blas_thread()
            def encode(features: Features) -> None:
                nonlocal packed, half
                width = None if learned is None else learned.d
                if width not in (None, features.shape[1]):
                    raise InputError(
                        f"features have {features.shape[1]} columns, the model was fitted with {width}"
                    )
                if learned is not None:
                    packed = np.concatenate(features.rows().map(encoded, learned).gathered())
                half = self._half(features, writing)

            with_features(None, named.chunk, encode)
            chunk_hash = chunk_hash or chunk.digest()
            return self._commit_encoded(writing, named, packed, half, started, chunk_hash, noted)

    def _commit_encoded(
        self,
        writing: WriteTransaction,
        named: ResolvedItems,
        packed: NDArray[np.uint8] | None,
        half: InstanceHalf | None,
        started: float,
        chunk_hash: str,
        noted: dict[str, int] | None = None,
        trust: Sequence[float | None] | None = None,
    ) -> Round:
        assert named.chunk is not None  # noqa: S101 - for mypy
        stored, tags = code(packed, half), named.chunk.tags
        bits = self._config.bits or self._s
        return writing.commit(
            NewRound(
                kind="encoded",
                codes=stored,
                ids=named.ids,
                keys=named.keys,
                tags=[[]] * len(stored) if tags is None else normalised(tags).lists(),
                seconds=time.perf_counter() - started,
                model=self._model(None, half),
                chunk_hash=chunk_hash,
                health=codes.health(codes.unpad(stored, bits)) | _skipped(named) | (noted or {}),
                remove=named.replaced,
                numbered=named.numbered,
                metadata=named.chunk.metadata,
                trust=trust,
                **kept(half),
            )
        )

    def _half(self, features: Features, writing: WriteTransaction) -> InstanceHalf | None:
        """The instance half of a round; None where codes have none."""
        if not self._s:
            return None
        known, d = self._hasher().instance if writing.snapshot.model else None, features.shape[1]
        if known is not None and known.d != d:
            raise InputError(f"features have {d} columns, the model was fitted with {known.d}")
        stored = self._store.view.mapped.codes
        return instance_half(features, writing, stored, known, self._s, self._config.bits, self._config.seed)

    def _model(
        self, learned: dict[str, NDArray[Any]] | None, half: InstanceHalf | None
    ) -> dict[str, NDArray[Any]] | None:
        """The arrays of the round's model file; None where the one before stays.

        `learned` is the trainer's state, None if it is that of the model before.
        """
        if half is None:
            return learned
        if learned is None:
            if not half.is_new:
                return None
            if self._config.bits:
                learned = dict(self._store.view.learned())
            else:
                hasher = Hasher.of_instance(half.function)
                learned = {**hasher.arrays(), "A": hasher.kernel.A}
        return {**learned, **half.function.arrays()}

    def _nothing_new(
        self,
        chunk_hash: str,
        named: ResolvedItems,
        writing: WriteTransaction,
        noted: dict[str, int] | None = None,
    ) -> Round:
        """A round all of whose items were skipped: one a chunk, whatever is in it."""
        return writing.commit(
            NewRound(
                kind="encoded",
                codes=np.empty((0, self._store.d // 8), np.uint8),
                chunk_hash=chunk_hash,
                health=_skipped(named) | (noted or {}),
            )
        )

    def remove(
        self,
        ids: ArrayLike | None,
        keys: Sequence[str] | None,
        ignore_missing: bool,
        timeout: float,
        where: Where | None = None,
    ) -> int:
        """Remove items; see `WOHIndex.remove`."""
        with self._store.writing(timeout) as writing:
            if where is not None:  # of the newest state, which nobody else changes now
                found = self._store.view.ids_where(where).tolist()
            else:
                found = to_remove(ids, keys, writing, ignore_missing)
            if found:
                writing.remove(found)
        return len(found)

    def check(
        self,
        chunks: Iterable[tuple[str, Chunk]],
        learn: bool,
        on_duplicate: OnDuplicate,
        timeout: float = 10.0,
    ) -> None:
        """Refuse what would stop these (file, chunk) after the first; see `Preflight`."""
        self._store.refresh()
        with self._store.writing(timeout) as writing:
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
        from woh_faiss.learner.estimator import WOH  # and with it SciPy, which `add` never needs

        if self._trainer is not None and self._at_state == (snapshot.model_digest, snapshot.generation):
            return self._trainer
        vocabulary = Vocabulary.from_rows(self._store.tag_rows(), self._config.min_count)
        if snapshot.model is None:
            return WOH(self._config)
        self._check(snapshot)
        model = self._store.view.learned()
        with model.damage():
            return WOH.from_state(self._config, model, self._store.view.anchor_rows(), vocabulary)


def _here(_trainer: WOH | None, chunk: Chunk, use: Callable[[Features], None]) -> None:
    """The features of a chunk that is in this process."""
    use(Features(chunk.features))


def _first_names(chunk: Chunk) -> list[Any]:
    """Ids, or else keys, of a chunk that has one of them."""
    names: Any = chunk.keys if chunk.ids is None else chunk.ids
    return list(names.tolist())


def _kept_trust(trust: NDArray[np.float64]) -> list[float | None] | None:
    """What is kept of each item's trust: three digits, None for 1; None where all are 1."""
    if (trust == 1).all():
        return None
    return [None if value == 1 else value for value in np.round(trust, 3).tolist()]


def _fit(trainer: WOH) -> dict[str, float]:
    """Of a chunk's tags: what they count, as a share of what they would if all were right, and how much of
    them is new; whether the round adapted to that; the share of its items that anchors cover."""
    trained = trainer.trained_
    if not trained.any():
        return {}
    trusted = float(trainer.trust_[trained].mean())
    return {
        "trusted": trusted,
        "novelty": trainer.novelty_,
        "adapted": int(trainer.adapted_),
        "covered": trainer.covered_,
    }


def _skipped(named: ResolvedItems) -> dict[str, int]:
    skipped = named.skipped + (0 if named.chunk is None else named.chunk.left_out)
    return {"skipped": skipped} if skipped else {}


class KnownChunks:
    """The chunks of `rounds`, each as often as it is there.

    `by_name`: items that have names are looked at one by one, as every policy but "error" wants it. Chunks of
    them are known only from an update of the same inputs that ended the index, in `run`: see `_interrupted`.
    """

    def __init__(self, rounds: Sequence[Round], by_name: bool, run: dict[int, Round]) -> None:
        self._by_name, self._run = by_name, run
        self._rounds: dict[str, list[Round]] = {}
        self._bare: dict[str, Round] = {}
        for done in rounds:
            for chunk_hash in done.chunk_hash.split():  # `build` puts several chunks into round 1
                self._rounds.setdefault(chunk_hash, []).append(done)
                self._bare[_bare(chunk_hash)] = done

    def take(self, piece: Piece, chunk_hash: str) -> Round | None:
        """The round that has the chunk, which from then on is there once less; None to take it in.

        InputError where it has the chunk with other metadata: taken in, all its items would be there twice.
        """
        if self._by_name and piece.named:
            return self._run.get(piece.number)
        rounds = self._rounds.get(chunk_hash)
        if rounds:
            return rounds.pop(0)
        other = self._bare.get(_bare(chunk_hash))
        if other is not None and rounds is None:
            raise InputError(
                f"{piece.where}: its items are in the index already (round {other.round}) with other "
                "metadata; give the same --metadata, ids or keys and --on-duplicate replace, or --no-skip"
            )
        return None


def _bare(chunk_hash: str) -> str:
    """What a `Chunk.digest` says of all but metadata."""
    return chunk_hash.partition("+")[0]


def _interrupted(rounds: Sequence[Round], inputs: Inputs) -> dict[int, Round]:
    """The last rounds by their places in `inputs`, if an update took the first of these inputs, not all of
    them, and nothing came after it; else none.

    A round of such an update has its place as "chunk" in its health. Only the whole run counts: its later
    chunks may have replaced items of its first ones.
    """
    run: dict[int, Round] = {}
    for done in reversed(rounds):
        place = (done.health or {}).get("chunk")
        if place is None or (run and place >= min(run)):
            return {}
        run[place] = done
        if place == 1:
            break
    if 1 not in run or max(run) >= len(inputs):
        return {}
    found = {p.number: p.chunk.digest() for p in islice(inputs.pieces(), max(run))}
    return run if all(found.get(place) == done.chunk_hash for place, done in run.items()) else {}
