"""The items that ids and keys name: new, known or ambiguous ones of a chunk, and those to be removed.

`Preflight` checks several chunks before the first is learned: nothing is written before all is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.inputs.chunk import OnDuplicate as OnDuplicate
from woh_faiss.inputs.chunk import check_policy as check_policy
from woh_faiss.metadata import new_types
from woh_faiss.store.write_transaction import WriteTransaction


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedItems:
    """The items of a chunk that are to be appended.

    Attributes
    ----------
    chunk : Chunk or None
        Without the items that are skipped; None if that leaves nothing.
    ids : (n,) int64
    keys : n keys or None each
    replaced : list of int
        Those of `ids` that an item in the index has.
    skipped : int
        Items left out.
    numbered : bool
        Whether the new ids are the next free ones, and none was given with the chunk.
    """

    chunk: Chunk | None
    ids: NDArray[np.int64]
    keys: list[str | None]
    replaced: list[int]
    skipped: int
    numbered: bool


def resolve(chunk: Chunk, writing: WriteTransaction, on_duplicate: OnDuplicate) -> ResolvedItems:
    """Ids and keys for the chunk's items; items without either get the next free ids.

    Raises
    ------
    InputError
        An id or key is known and the policy is "error"; an id was removed; an id is known under another
        key, or a key under another id.
    """
    check_policy(on_duplicate)
    ids, keys = names(chunk)
    live = writing.live(ids or (), keys or ())
    refuse_removed(ids or [], live, writing)
    matched = match(ids, keys, live, len(chunk), on_duplicate)
    known = np.array([id_ is not None for id_ in matched])
    if on_duplicate == "skip" and known.any():
        rows = np.flatnonzero(~known)
        kept = chunk.rows(rows) if rows.size else None
        matched = [None] * len(rows)
        ids = None if ids is None else [ids[row] for row in rows]
        keys = None if keys is None else [keys[row] for row in rows]
    else:
        kept = chunk
    final: NDArray[np.int64]
    if ids is not None:
        final = np.array(ids, np.int64)
    else:
        new = [row for row, id_ in enumerate(matched) if id_ is None]
        final = np.array([-1 if id_ is None else id_ for id_ in matched], np.int64)
        final[new] = free_ids(writing.next_id, len(new))
    if keys is None:  # what is replaced keeps its name
        keys_: list[str | None] = [None if id_ is None else live[id_] for id_ in matched]
    else:
        keys_ = list(keys)
    replaced = [id_ for id_ in matched if id_ is not None]
    return ResolvedItems(kept, final, keys_, replaced, len(chunk) - len(matched), ids is None)


def names(chunk: Chunk) -> tuple[list[int] | None, list[str] | None]:
    """The chunk's ids and keys as Python values."""
    ids = None if chunk.ids is None else chunk.ids.tolist()
    return ids, None if chunk.keys is None else chunk.keys.tolist()


def match(
    ids: Sequence[int] | None,
    keys: Sequence[str] | None,
    live: dict[int, str | None],
    n: int,
    on_duplicate: OnDuplicate,
) -> list[int | None]:
    """The id of the live item (id: key in `live`) that each of n items is, by id or by key; None if new."""
    id_of = {key: id_ for id_, key in live.items() if key is not None}
    matched: list[int | None] = [None] * n
    for row in range(n):
        by_key = None if keys is None else id_of.get(keys[row])
        by_id = ids[row] if ids is not None and ids[row] in live else None
        if on_duplicate != "error":
            if ids is not None and by_key not in (None, ids[row]):
                raise InputError(
                    f"row {row} has key {keys[row]!r} and id {ids[row]}, "  # type: ignore[index]
                    f"the index has that key under id {by_key}; give it with that id, or with another key"
                )
            if by_id is not None and keys is not None and live[by_id] not in (None, keys[row]):
                raise InputError(
                    f"row {row} has id {by_id} and key {keys[row]!r}, "
                    f"the index has that id under key {live[by_id]!r}; give it with that key, or another id"
                )
        matched[row] = by_key if by_id is None else by_id
    if on_duplicate == "error":
        _refuse_known(ids, keys, live, id_of, n)
    return matched


def _refuse_known(
    ids: Sequence[int] | None,
    keys: Sequence[str] | None,
    live: dict[int, str | None],
    id_of: dict[str, int],
    n: int,
) -> None:
    named: list[tuple[str, Sequence[Any] | None, Any]] = [("key", keys, id_of), ("id", ids, live)]
    for kind, given, there in named:
        known = [name for name in given or () if name in there]
        if known:
            raise InputError(
                f"{kind} {known[0]!r} is in the index already ({len(known)} of {n} are); leave them out, "
                "or take --on-duplicate skip or replace"
            )


def refuse_removed(ids: Sequence[int], live: dict[int, str | None], writing: WriteTransaction) -> None:
    """InputError for ids that an item had which was removed: they mean nothing else, ever."""
    removed = writing.known_ids([id_ for id_ in ids if id_ not in live])
    if len(removed):
        raise InputError(
            f"id {removed[0]} was removed from the index ({len(removed)} of {len(ids)} were) "
            "and is not used again; give new ids"
        )


def free_ids(first: int, n: int) -> NDArray[np.int64]:
    """n ids from `first` on, the largest ever used plus 1; InputError where int64 ends before them."""
    if first > np.iinfo(np.int64).max - n:
        raise InputError(f"ids after {first - 1} do not fit in 64 signed bits; give ids with the chunk")
    return np.arange(first, first + n, dtype=np.int64)


def to_remove(
    ids: ArrayLike | None, keys: Sequence[str] | None, writing: WriteTransaction, ignore_missing: bool
) -> list[int]:
    """The live items with these ids or keys; InputError for any that is not there unless `ignore_missing`."""
    wanted = (
        [] if ids is None else validate.whole_numbers(np.atleast_1d(np.asarray(ids)), "ids", None).tolist()
    )
    named = [] if keys is None else validate.texts(keys, "keys")
    live = writing.live(wanted, named)
    there: set[Any] = {*live, *(key for key in live.values() if key is not None)}
    missing = [f"id {id_}" for id_ in dict.fromkeys(wanted) if id_ not in there]
    missing += [f"key {key!r}" for key in dict.fromkeys(named) if key not in there]
    if missing and not ignore_missing:
        given = len({*wanted, *named})
        raise InputError(
            f"{validate.listed(missing)} {'is' if len(missing) == 1 else 'are'} not in the index "
            f"({len(missing)} of {given} given); leave them out, or take --ignore-missing"
        )
    return sorted(live)


class Preflight:
    """What chunk after chunk would bring: widths, tags, keys, ids given or not, types of metadata.

    Keeps names, not features, so that it needs the memory of one chunk.

    Parameters
    ----------
    writing : WriteTransaction
        The index as it is, under the writer lock.
    d : int or None
        Width of the features it takes, None while nothing was learned.
    learn : bool
        Whether tags are needed.
    on_duplicate : "error", "skip" or "replace"
    """

    def __init__(
        self, writing: WriteTransaction, d: int | None, learn: bool, on_duplicate: OnDuplicate
    ) -> None:
        self._writing, self._d = writing, d
        self._learn, self._on_duplicate = learn, on_duplicate
        self._next_id = writing.next_id
        self._types = {it.name: it.type for it in writing.metadata_columns()}
        self._numbered: list[tuple[int, int, str]] = []  # first id, how many, of chunks that have none
        self._seen: dict[int | str, str] = {}
        self._pairs: dict[int | str, tuple[int, str]] = {}  # ids and keys that came together, by either

    def take(self, path: str, chunk: Chunk) -> None:
        """The next one; InputError, about the file `path`, where it would be refused after those before."""
        self._d = validate.features(chunk.features[:0], d=self._d, name=f"{path}: features").shape[1]
        if self._learn and chunk.tags is None:
            raise InputError(f"{path} has no tags to learn from; 'woh-index add' only encodes it")
        ids, keys = names(chunk)
        self._number(path, ids, len(chunk))
        with _of_file(path):
            live = self._writing.live(ids or (), keys or ())
            refuse_removed(ids or [], live, self._writing)
            match(ids, keys, live, len(chunk), self._on_duplicate)
            self._types |= new_types(self._types, chunk.metadata or {})
        self._pair(path, ids or (), keys or ())
        for name in [*(keys or ()), *(ids or ())]:
            if name in self._seen and self._on_duplicate == "error":
                kind = "key" if isinstance(name, str) else "id"
                raise InputError(f"{kind} {name!r} is both in {self._seen[name]} and in {path}; give it once")
            self._seen[name] = path

    def _number(self, path: str, ids: Sequence[int] | None, n: int) -> None:
        """Ids that the index gives to chunks without any must not be those of a later one."""
        if ids is None:
            self._numbered.append((self._next_id, n, path))
            self._next_id += len(free_ids(self._next_id, n))
            return
        for first, size, earlier in self._numbered:
            if taken := [id_ for id_ in ids if first <= id_ < first + size]:
                raise InputError(
                    f"{path}: id {taken[0]} is what an item of {earlier}, which has no ids, "
                    f"gets; give {path} first, or ids in every file"
                )
        self._next_id = max(self._next_id, max(ids) + 1)

    def _pair(self, path: str, ids: Sequence[int], keys: Sequence[str]) -> None:
        """An id and a key that came together stay together."""
        for pair in zip(ids, keys, strict=False):
            for name in pair:
                if self._pairs.setdefault(name, pair) != pair:
                    raise InputError(
                        f"{path}: id {pair[0]} has key {pair[1]!r}, in an earlier file id "
                        f"{self._pairs[name][0]} has key {self._pairs[name][1]!r}; give each its own"
                    )


@contextmanager
def _of_file(path: str) -> Iterator[None]:
    """An InputError inside says which file it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
