"""Indexes of one lineage as one: copies of an index that went their own ways, without learning apart.

The result begins as a copy of the one with the newest model. The rounds that only others have are appended as
they are: codes, ids, keys, tags, metadata, trust and the hash of the chunk, a round (or two, where only some
items have keys) each.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, StoreError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.instance import ENOUGH
from woh_faiss.metadata import MetadataColumn
from woh_faiss.store import Item, Round, View, publish
from woh_faiss.store.verify import Note
from woh_faiss.tags.tag_lists import TagLists

from .index import WOHIndex, check_free
from .item_ids import OnDuplicate, check_policy

#: Items that are looked up at once.
_ITEMS = 10_000


class Merged(NamedTuple):
    """What `merge` made.

    Attributes
    ----------
    base : str
        The index whose copy it began as.
    rounds, items : int
        Appended from the others.
    skipped : int
        Items of others that were left out, for their id or key was there.
    still_there, left_out : int
        Items of rounds that all have: which others removed or replaced and the base has, and the other way
        round. The base decides.
    ntotal : int
        Items in all.
    """

    base: str
    rounds: int
    items: int
    skipped: int
    still_there: int
    left_out: int
    ntotal: int


def merge(
    sources: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    on_duplicate: OnDuplicate = "error",
    new_ids: bool = False,
) -> Merged:
    """A new index at `path` with the items of all of `sources`: all of them, or on any error no index at all.

    The sources are copies of one index, by `WOHIndex.backup`, that appended items on their own. Only one of
    them may have learned since: codes of hash functions that learned apart do not compare. The new index
    begins as a copy of that one, or of the one that has most of the items which all had once. Every byte of
    the sources is verified first; they stay as they are.

    Parameters
    ----------
    sources : sequence of paths
        Two indexes or more.
    path : path
        Of the new folder; nothing may exist there.
    on_duplicate : "error", "skip" or "replace"
        Of items that different sources have appended under one id or key: refuse, or keep the first or the
        last, in the order of the sources behind the base.
    new_ids : bool
        Give the appended items new ids, so that equal ids that sources gave by themselves do not collide; the
        items must have keys.

    Raises
    ------
    InputError
        Sources are not of one lineage, an id or key is known, or items without keys would get new ids.
    StoreError
        A source is damaged or missing, `path` exists already, or it cannot be written.
    """
    check_policy(on_duplicate)
    final, paths = Path(path), [Path(os.fsdecode(source)) for source in sources]
    if len({place.resolve() for place in paths}) < max(2, len(paths)):
        raise InputError(f"{len(paths)} indexes were given, expected two or more, each once")
    check_free(final)
    for place in paths:
        faults = [line for line in WOHIndex.verify(place) if not isinstance(line, Note)]
        if faults:
            raise StoreError(f"{display_path(place)} is damaged: {faults[0]}")
    with ExitStack() as opened:
        indexes = [opened.enter_context(WOHIndex.open(place)) for place in paths]
        base = _base(indexes)
        others = [index for index in indexes if index is not base]
        try:
            hidden = tempfile.TemporaryDirectory(
                prefix=".woh-index-", suffix=".building", dir=final.parent, ignore_cleanup_errors=True
            )
        except OSError as error:
            raise StoreError(f"cannot create {final}: {error.strerror}; choose another place") from error
        unfinished = Path(opened.enter_context(hidden), "index")
        base.backup(unfinished)
        with WOHIndex.open(unfinished) as made:
            merged = _append(made, base, others, on_duplicate, new_ids)
        publish(unfinished, final)
    return merged


def _base(indexes: list[WOHIndex]) -> WOHIndex:
    """The index whose model is, or comes from, that of each other one; an InputError where there is none."""
    first = indexes[0]
    for other in indexes[1:]:
        apart = f"{display_path(other.path)} and {display_path(first.path)}"
        if other.store.snapshot.identity != first.store.snapshot.identity:
            raise _refused(apart, "are not copies of one index")
    for index in indexes:
        if not index.is_trained:
            raise _refused(display_path(index.path), "has learned nothing yet")
    models = [{done.model_digest for done in index.rounds()} for index in indexes]
    newest = [index.store.snapshot.model_digest for index in indexes]
    fits = [all(model in known for model in newest) for known in models]
    if not any(fits):
        raise _refused(f"{display_path(first.path)} and the others", "have learned apart since they were one")
    shared = set.intersection(*({_name(done) for done in index.rounds()} for index in indexes))
    able = [index for index, fit in zip(indexes, fits, strict=True) if fit]
    base = max(able, key=lambda index: len(_live(index, shared)))
    function = base.hasher.instance
    for index in indexes:
        mine = index.hasher.instance
        if (mine is None) != (function is None):
            raise _refused(display_path(index.path), "has other instance bits")
        if mine is None or function is None:
            continue
        if not mine.final:
            raise _refused(
                display_path(index.path),
                f"has fewer than {ENOUGH:,} items, before which instance bits change",
            )
        if not (np.array_equal(mine.R, function.R) and np.array_equal(mine.mean, function.mean)):
            raise _refused(display_path(index.path), "has other instance bits")
    return base


def _refused(which: str, why: str) -> InputError:
    return InputError(
        f"{which} {why}, so their codes do not compare; append the features of one to the other "
        "('woh-index update' or 'woh-index add'), or build one index of all features"
    )


def _append(
    made: WOHIndex, base: WOHIndex, others: list[WOHIndex], on_duplicate: OnDuplicate, new_ids: bool
) -> Merged:
    known = {_name(done) for done in base.rounds()}
    rounds = items = skipped = 0
    gone: set[int] = set()
    lost: set[int] = set()
    for other in others:
        view, common = other.store.view, {_name(done) for done in other.rounds()} & known
        mine, theirs = (set(_live(index, common).tolist()) for index in (base, other))
        gone, lost = gone | (mine - theirs), lost | (theirs - mine)
        for done in other.rounds():
            if done.kind == "removed" or _name(done) in known:
                continue
            known.add(_name(done))
            for chunk, trust in _chunks(other, view, done, new_ids):
                added = made._writer.append_codes(chunk, trust, done, on_duplicate)
                rounds, items = rounds + 1, items + added.n
                skipped += len(chunk) - added.n
    there = set(made.ids().tolist())
    still_there, left_out = len(gone & there), len(lost - there)
    return Merged(str(base.path), rounds, items, skipped, still_there, left_out, made.ntotal)


def _name(done: Round) -> tuple[Any, ...]:
    """What tells a round from that of a copy which went another way."""
    return done.round, done.time, done.kind, done.chunk_hash


def _live(index: WOHIndex, names: set[tuple[Any, ...]]) -> NDArray[np.int64]:
    """Ids of the items of some rounds that can be found."""
    view = index.store.view
    rows = [np.arange(done.first_row, done.end_row) for done in index.rounds() if _name(done) in names]
    ids = view.ids[np.concatenate([*rows, np.empty(0, np.intp)]).astype(np.intp)]
    return np.asarray(ids[np.isin(ids, view.live_ids())], np.int64)


def _chunks(
    index: WOHIndex, view: View, done: Round, new_ids: bool
) -> Iterator[tuple[Chunk, list[float | None]]]:
    """The items of a round that can be found, as codes, and their trust; those without keys apart."""
    ids = view.ids[done.first_row : done.end_row].tolist()
    items: list[Item] = []
    for start in range(0, len(ids), _ITEMS):
        found = view.find(ids[start : start + _ITEMS])
        items += [found[id_] for id_ in ids[start : start + _ITEMS] if id_ in found]
    items = [item for item in items if item.round == done.round]  # not those that replaced them
    for keyed in (True, False):
        own = [item for item in items if (item.key is not None) == keyed]
        if not own:
            continue
        if new_ids and not keyed:
            raise InputError(
                f"id {own[0].id} of {display_path(index.path)} has no key, by which it would be known under "
                "a new id; merge without new ids"
            )
        stored = view.mapped.codes[np.array([item.row for item in own], np.intp)]
        chunk = Chunk.of(
            codes.unpad(stored, 8 * index.code_size),
            TagLists.from_lists([item.tags for item in own]),
            ids=None if new_ids else np.array([item.id for item in own], np.int64),
            keys=[str(item.key) for item in own] if keyed else None,
            metadata={name: _column(name, type_, own) for name, type_ in index.metadata_types.items()},
        )
        yield chunk, [None if item.trust == 1 else item.trust for item in own]


def _column(name: str, type_: str, items: list[Item]) -> MetadataColumn:
    """The cells of a column of metadata."""
    values = [item.metadata.get(name) for item in items]
    return MetadataColumn(type_, [int(v) if isinstance(v, bool) else v for v in values])
