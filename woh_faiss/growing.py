"""The writing half of an index: take the lock, check, learn or encode, commit. One round or nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from . import codes, validate
from .chunks import Chunk, read_chunk
from .config import WOHConfig
from .errors import InputError
from .hasher import Hasher
from .kernel import blocks
from .store import Round, Snapshot, Store, Writing
from .tags import Vocabulary, normalised
from .trainer import WOH
from .vectors import WordVectors


class Grower:
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
        self._checked: str | None = None  # fingerprint of the model whose files were found whole
        self._fingerprint: str | None = None  # of the model that the trainer in memory is at

    def update(self, chunk: Chunk, word_vectors: WordVectors | None, timeout: float) -> Round:
        """Learn `chunk` and append it; see `WOHIndex.update`."""
        if chunk.tags is None:
            raise InputError(
                "the chunk has no tags to learn from; 'woh-index add' (WOHIndex.add) only encodes it"
            )
        with self._store.writing(timeout) as writing:
            ids = new_ids(chunk, writing)
            trainer = self._at(writing.snapshot)
            self._trainer = None  # until the commit it may be a round ahead of the disk
            started = time.perf_counter()
            trainer.partial_fit(chunk.features, chunk.tags, word_vectors=word_vectors)
            learned = bool(trainer.trained_.any())
            committed = writing.commit(
                kind="trained" if learned else "encoded",
                codes=codes.pad(trainer.codes_),
                ids=ids,
                keys=_keys(chunk),
                tags=normalised(chunk.tags),
                trained=int(trainer.trained_.sum()),
                seconds=time.perf_counter() - started,
                model=trainer.state() if learned else None,
                anchors=None if writing.has_anchors else trainer.anchors_,
                tag_rows=trainer.vocabulary_.rows(trainer.touched_),
                chunk_hash=digest(chunk),
                health=codes.health(trainer.codes_) | asdict(trainer.coverage_),
            )
            self._trainer, self._fingerprint = trainer, committed.fingerprint
        return self._store.round(committed.round)

    def add(self, chunk: Chunk, timeout: float) -> Round:
        """Encode `chunk` and append it; see `WOHIndex.add`."""
        with self._store.writing(timeout) as writing:
            ids = new_ids(chunk, writing)
            started = time.perf_counter()
            self._check(writing.snapshot)
            packed = self._hasher().encode(chunk.features)
            committed = writing.commit(
                kind="encoded",
                codes=codes.pad(packed),
                ids=ids,
                keys=_keys(chunk),
                tags=normalised(chunk.tags) if chunk.tags is not None else [[]] * len(chunk),
                trained=0,
                seconds=time.perf_counter() - started,
                chunk_hash=digest(chunk),
                health=codes.health(packed),
            )
        return self._store.round(committed.round)

    def check(self, paths: Sequence[str | os.PathLike[str]], learn: bool) -> None:
        """Refuse what would stop these chunk files after the first: widths, tags, keys, ids given or not.

        Keeps names, not features, so that it needs the memory of one chunk.
        """
        self._store.refresh()
        d = self._hasher().d if self._store.snapshot.model else None
        seen: dict[int | str, str] = {}
        next_id, numbered = self._store.snapshot.next_id, list[tuple[int, int, str]]()
        for path in [os.fsdecode(path) for path in paths]:
            chunk = read_chunk(path)
            d = validate.features(chunk.features[:0], d=d, name=f"{path}: features").shape[1]
            if learn and chunk.tags is None:
                raise InputError(f"{path} has no tags to learn from; 'woh-index add' only encodes it")
            names: list[int | str] = [] if chunk.keys is None else chunk.keys.tolist()
            if chunk.ids is None:
                numbered.append((next_id, len(chunk), path))
                next_id += len(free_ids(next_id, len(chunk)))
            else:
                for first, n, earlier in numbered:
                    if (taken := chunk.ids[(chunk.ids >= first) & (chunk.ids < first + n)]).size:
                        raise InputError(
                            f"{path}: id {taken[0]} is what an item of {earlier}, which has no ids, gets; "
                            f"give {path} first, or ids in every file"
                        )
                next_id = max(next_id, int(chunk.ids.max()) + 1)
                names += chunk.ids.tolist()
            for name in names:
                if name in seen:
                    kind = "key" if isinstance(name, str) else "id"
                    raise InputError(f"{kind} {name!r} is both in {seen[name]} and in {path}; give it once")
                seen[name] = path
        with self._store.writing() as writing:
            known_ids = writing.known_ids([name for name in seen if not isinstance(name, str)])
            known_keys = writing.known_keys([name for name in seen if isinstance(name, str)])
        for kind, known in (("id", known_ids.tolist()), ("key", known_keys)):
            if known:
                raise InputError(
                    f"{seen[known[0]]}: {kind} {known[0]!r} is in the index already; leave it out"
                )

    def _check(self, snapshot: Snapshot) -> None:
        """Refuse to go on with a model that is not what was committed: codes stay for ever. Once a model."""
        if snapshot.fingerprint not in (None, self._checked):
            self._store.check_model()
            self._checked = snapshot.fingerprint

    def _at(self, snapshot: Snapshot) -> WOH:
        """The trainer as of `snapshot`: the one in memory if it is there, else from disk."""
        if self._trainer is not None and self._fingerprint == snapshot.fingerprint:
            return self._trainer
        vocabulary = Vocabulary.from_rows(self._store.tag_rows(), self._config.min_count)
        if snapshot.model is None:
            return WOH(self._config)
        self._check(snapshot)
        model = self._store.model()
        with model.damage():
            return WOH.from_state(self._config, model, self._store.anchors(), vocabulary)


def new_ids(chunk: Chunk, writing: Writing) -> NDArray[np.int64]:
    """The chunk's ids, or the next free ones; refused before any work where an id or key was used before."""
    if chunk.keys is not None and (used := writing.known_keys(chunk.keys.tolist())):
        raise InputError(
            f"key {used[0]!r} is in the index already ({len(used)} of {len(chunk)} are); leave them out"
        )
    if chunk.ids is None:
        return free_ids(writing.next_id, len(chunk))
    known = writing.known_ids(chunk.ids)
    if len(known):
        raise InputError(
            f"id {known[0]} is in the index already ({len(known)} of {len(chunk)} are); leave them out"
        )
    return chunk.ids


def free_ids(first: int, n: int) -> NDArray[np.int64]:
    """n ids from `first` on, the largest ever used plus 1; InputError where int64 ends before them."""
    if first > np.iinfo(np.int64).max - n:
        raise InputError(f"ids after {first - 1} do not fit in 64 signed bits; give ids with the chunk")
    return np.arange(first, first + n, dtype=np.int64)


def digest(chunk: Chunk) -> str:
    """SHA-256 over what the chunk says, in whatever file it says it; names the chunk in the catalogue."""
    sha = hashlib.sha256(repr((chunk.features.shape, chunk.features.dtype.str)).encode())
    for rows in blocks(len(chunk)):
        sha.update(np.ascontiguousarray(chunk.features[rows]).data)
    if chunk.tags is not None:
        sha.update("\0".join(chunk.tags.names).encode())
        sha.update(np.ascontiguousarray(chunk.tags.indptr).data)
        sha.update(np.ascontiguousarray(chunk.tags.indices).data)
    for names in (chunk.ids, chunk.keys):
        sha.update(repr(None if names is None else names.tolist()).encode())
    return sha.hexdigest()


def _keys(chunk: Chunk) -> list[str | None]:
    return [None] * len(chunk) if chunk.keys is None else chunk.keys.tolist()
