"""Checks of several chunks before the first is learned: nothing is written before everything is checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.store.write_transaction import WriteTransaction

from .item_ids import OnDuplicate, free_ids, match, names, refuse_removed


class Preflight:
    """What chunk after chunk would bring: widths, tags, keys, ids given or not.

    Keeps names, not features, so that it needs the memory of one chunk.

    Parameters
    ----------
    writing : Writing
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
