"""One chunk of the stream: features, and what is known about each item; its reader.

Everything a user may hand in is checked here, once; inner modules trust a `Chunk`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, MemoryBudgetError
from woh_faiss.io.npz import read_arrays
from woh_faiss.metadata import MetadataColumn, joined, metadata_of
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists, tag_lists

from .bad_rows import BadRows, of_features

__all__ = ["Chunk", "TagLists", "gathered", "concatenate", "read_chunk"]

#: What to do with an item whose id or key another one has.
OnDuplicate = Literal["error", "skip", "replace"]
POLICIES = ("error", "skip", "replace")
#: More classes than this need a multi-hot matrix.
MOST_CLASSES = 1 << 16

_CSR = ("tags_data", "tags_indices", "tags_indptr", "tags_shape")
#: Arrays that a chunk file may have beside its features.
OPTIONAL = ("tags", "tag_names", *_CSR, "ids", "keys", "labels", "groups")


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """n items of the stream; make one with `Chunk.of` or `read_chunk`, which check everything.

    Attributes
    ----------
    features : (n, d) real, finite
        In their own dtype; may be a read-only memory map.
    tags : TagLists of n items, optional
    ids : (n,) int64, optional
        The user's numbers, 0 or more, each once.
    keys : (n,) str, optional
        The user's names for the items, not empty, each once.
    labels : (n, L) bool, optional
        True classes; only evaluation looks at them.
    groups : (n,), optional
        What belongs together (an album, a product), of any plain dtype.
    left_out : int
        Items that were left out because others have their id or key.
    metadata : dict of str to MetadataColumn, optional
        Columns by name, n cells each.
    """

    features: NDArray[Any]
    tags: TagLists | None
    ids: NDArray[np.int64] | None
    keys: NDArray[np.str_] | None
    labels: NDArray[np.bool_] | None
    groups: NDArray[Any] | None
    left_out: int = 0
    metadata: dict[str, MetadataColumn] | None = None

    @classmethod
    def of(
        cls,
        features: ArrayLike,
        tags: Any = None,
        *,
        ids: ArrayLike | None = None,
        keys: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> Chunk:
        """A checked chunk; features are not copied.

        Parameters
        ----------
        features : (n, d) array_like of a real dtype, n >= 1
        tags : optional
            `TagLists`; n strings (see `TagLists.from_strings`); n lists of str; an (n, c) array of 0
            and 1; or a SciPy sparse matrix of them. For names of columns use `TagLists.from_dense`.
        ids : (n,) integers, optional
            Strings here are taken as `keys`.
        keys : (n,) strings, optional
        labels : (n, L) array of 0 and 1, or (n,) class numbers from 0, optional
        groups : (n,) array, optional
        metadata : dict of str to (n,) array_like, optional
            Numbers, text, bools, dates or times by name, to filter by: see `metadata.metadata_of`.
        on_duplicate : "error", "skip" or "replace"
            Items that have another's id or key are refused, or left out but for the first ("skip") or the
            last ("replace"). One that has the id of another and not its key is refused in any case.

        Raises
        ------
        InputError
            Anything is not as described; the message names the array and, where it can, the row.
        """
        X = validate.features(
            features
            if isinstance(features, np.memmap) or hasattr(features, "tocsr")
            else validate.array(features, "features")
        )
        n = len(X)
        if n == 0:
            raise InputError(f"features have shape {X.shape}: a chunk needs at least one row")
        lists = None if tags is None else tag_lists(tags)
        if ids is not None and validate.holds_text(ids):
            if keys is not None:
                raise InputError("ids are strings and there are keys too; give the strings as keys only")
            ids, keys = None, ids
        _same_length(n, tags=lists)
        once = check_policy(on_duplicate) == "error"
        chunk = cls(
            features=X,
            tags=lists,
            ids=None if ids is None else validate.item_ids(validate.plain(ids, "ids"), n, once),
            keys=None if keys is None else _item_keys(keys, n, once),
            labels=None if labels is None else _multi_hot(labels, n),
            groups=None if groups is None else _item_groups(groups, n),
            metadata=None if metadata is None else metadata_of(metadata, n) or None,
        )
        if once:
            return chunk
        kept = Distinct(on_duplicate).rows(chunk)
        if len(kept) == n:
            return chunk
        part = chunk.rows(kept)
        own = None if part.tags is None else part.tags.own()
        return replace(part, tags=own, left_out=n - len(kept))

    def __len__(self) -> int:
        return len(self.features)

    def digest(self) -> str:
        """SHA-256, in hex, of features, tags, ids and keys, whatever file they come from; that of metadata
        follows, where there are any, behind a ``+``.

        It covers only shape and dtype of features that are on other machines.
        """
        X = self.features
        sha = hashlib.sha256(repr((X.shape, X.dtype.str)).encode())
        for start in range(0, len(X), validate.BLOCK) if isinstance(X, np.ndarray) else ():
            sha.update(np.ascontiguousarray(X[start : start + validate.BLOCK]).data)
        if self.tags is not None:
            sha.update("\0".join(self.tags.names).encode())
            sha.update(np.ascontiguousarray(self.tags.indptr).data)
            sha.update(np.ascontiguousarray(self.tags.indices).data)
        for names in (self.ids, self.keys):
            sha.update(repr(None if names is None else names.tolist()).encode())
        if self.metadata is None:
            return sha.hexdigest()
        columns = [(name, column.type, column.cells) for name, column in sorted(self.metadata.items())]
        return f"{sha.hexdigest()}+{hashlib.sha256(repr(columns).encode()).hexdigest()}"

    def rows(self, select: slice | NDArray[Any]) -> Chunk:
        """The items of a slice, an int array or an (n,) bool mask; a slice copies no features."""
        return Chunk(
            features=self.features[select],
            tags=None if self.tags is None else self.tags.rows(select),
            ids=None if self.ids is None else self.ids[select],
            keys=None if self.keys is None else self.keys[select],
            labels=None if self.labels is None else self.labels[select],
            groups=None if self.groups is None else self.groups[select],
            metadata=None
            if self.metadata is None
            else {name: column.rows(select) for name, column in self.metadata.items()},
        )


def read_chunk(
    path: str | os.PathLike[str], *, split_as: TagTexts | None = None, on_duplicate: OnDuplicate = "error"
) -> Chunk:
    """The chunk in an .npz file, a folder of .npy files, or one .npy file of features.

    Keys are as in `Chunk.of`; unknown ones are ignored. `tags` may be strings, or 0/1 with
    `tag_names`, or the CSR parts `tags_data`, `tags_indices`, `tags_indptr`, `tags_shape` with
    `tag_names`; columns without names are called tag0, tag1, ... A folder's features.npy and a
    single .npy are read-only, and memory-mapped if they are large.

    Parameters
    ----------
    path : path
    split_as : TagTexts, optional
        As in `TagLists.from_strings`.
    on_duplicate : "error", "skip" or "replace"
        As in `Chunk.of`.

    Raises
    ------
    InputError
        The file is missing or damaged, or an array in it is not as described; one line with the
        file, the key and, where it can, the row.
    """
    found = read_good_rows(path, None, split_as, on_duplicate)
    assert found is not None  # noqa: S101 - no row is left out
    return found


def read_good_rows(
    path: str | os.PathLike[str],
    bad: BadRows | None,
    split_as: TagTexts | None = None,
    on_duplicate: OnDuplicate = "error",
    metadata: Sequence[str] = (),
) -> Chunk | None:
    """As `read_chunk`, of the rows without a fault if `bad` takes the others; None where none is left.

    `metadata` are the arrays that are its columns of metadata.
    """
    where = display_path(path)
    with budget.reading(where):
        arrays = read_arrays(path, "features", (*OPTIONAL, *metadata))
        try:
            X, tags = arrays["features"], stored_tags(arrays, split_as)
            more: dict[str, Any] = {
                name: arrays[name] for name in ("ids", "keys", "labels", "groups") if name in arrays
            }
            if missing := [name for name in metadata if name not in arrays]:
                raise InputError(f"has no array {validate.short(missing[0])} for --metadata")
            if metadata:
                more["metadata"] = metadata_of({name: arrays[name] for name in metadata}, len(X))
            kept = None if bad is None else bad.kept(where, 0, len(X), of_features(X))
            if kept is None or kept.all():
                return Chunk.of(X, tags, on_duplicate=on_duplicate, **more)
            if not kept.any():
                return None
            columns = more.pop("metadata", None)
            _same_length(len(X), tags=tags, **more)
            tags = None if tags is None else tags.rows(kept).own()
            good = {name: values[kept] for name, values in more.items()}
            if columns is not None:
                good["metadata"] = {name: column.rows(kept) for name, column in columns.items()}
            return Chunk.of(X[kept], tags, on_duplicate=on_duplicate, **good)
        except MemoryBudgetError:
            raise
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


class Distinct:
    """Which items of chunk after chunk are kept, where only one may have an id or key.

    Parameters
    ----------
    policy : "skip" or "replace"
        Whether the first or the last one is kept.
    """

    def __init__(self, policy: OnDuplicate) -> None:
        self._last = policy == "replace"
        self._held: dict[int | str, tuple[int, int | None, str | None]] = {}  # place, id and key
        self._n = 0
        self.dropped: list[int] = []

    def take(self, chunk: Chunk) -> None:
        """Note the items of the next chunk, and in `dropped` the places of those that are not kept.

        Raises
        ------
        InputError
            An item has the id of another and another key, or the other way round.
        """
        n = len(chunk)
        ids = [None] * n if chunk.ids is None else chunk.ids.tolist()
        keys = [None] * n if chunk.keys is None else chunk.keys.tolist()
        for row, (id_, key) in enumerate(zip(ids, keys, strict=True)):
            names = [name for name in (id_, key) if name is not None]
            before = [self._held[name] for name in names if name in self._held]
            for place, other_id, other_key in before:
                if (other_id, other_key) != (id_, key):
                    raise InputError(
                        f"row {row} has id {id_} and key {key!r}, an earlier item (number {place}) has id "
                        f"{other_id} and key {other_key!r}; give each its own"
                    )
            here = self._n + row
            if before:
                self.dropped.append(before[0][0] if self._last else here)
            if self._last or not before:
                self._held |= dict.fromkeys(names, (here, id_, key))
        self._n += n

    def rows(self, chunk: Chunk) -> NDArray[np.int64]:
        """The rows of one chunk alone that are kept."""
        self.take(chunk)
        return np.setdiff1d(np.arange(len(chunk)), self.dropped)


def check_policy(on_duplicate: OnDuplicate) -> OnDuplicate:
    """InputError unless it is one of `POLICIES`."""
    if on_duplicate not in POLICIES:
        raise InputError(f"on_duplicate is {on_duplicate!r}, expected one of {', '.join(POLICIES)}")
    return on_duplicate


def concatenate(
    chunks: Sequence[Chunk],
    names: Sequence[str] | None = None,
    *,
    own_names: bool = False,
    on_duplicate: OnDuplicate = "error",
) -> Chunk:
    """One data set out of chunks stored apart; it has tags, labels or groups only if every chunk has.

    `names` say in a message which chunk it is; without them their numbers do. Ids and keys are left out
    unless `own_names`: then every chunk has them, or none.

    Raises
    ------
    InputError
        There is none, or their features or labels differ in width.
    """
    if not chunks:
        raise InputError("there are no chunks to join, expected at least one")
    if len(chunks) == 1:
        return chunks[0]

    names = [f"chunk {i}" for i in range(len(chunks))] if names is None else names

    def stacked(name: str) -> NDArray[Any] | None:
        arrays = [getattr(chunk, name) for chunk in chunks]
        if any(a is None for a in arrays):
            return None
        for where, a in zip(names, arrays, strict=True):
            if a.shape[1:] != arrays[0].shape[1:]:
                raise InputError(
                    f"{name} of {where} have {a.shape[1]} columns, those of {names[0]} {arrays[0].shape[1]}; "
                    "give chunks of one data set, labels as 0/1 matrices"
                )
        budget.take(sum(a.nbytes for a in arrays), f"{name} of all chunks")
        return np.concatenate(arrays)

    tags = [chunk.tags for chunk in chunks if chunk.tags is not None]
    lists = [t.of_row(i) for t in tags for i in range(len(t))] if len(tags) == len(chunks) else None
    features = stacked("features")
    assert features is not None  # noqa: S101 - every chunk has them; this tells mypy
    joined = Chunk.of(
        features,
        lists,
        ids=stacked("ids") if own_names else None,
        keys=stacked("keys") if own_names else None,
        labels=stacked("labels"),
        groups=stacked("groups"),
        metadata=_joined_metadata(chunks, names) if own_names else None,
        on_duplicate=on_duplicate,
    )
    return replace(joined, left_out=joined.left_out + sum(chunk.left_out for chunk in chunks))


def gathered(chunks: Iterable[Chunk], least: int) -> Iterator[list[Chunk]]:
    """The chunks one by one, but for the first ones, which are together until they have `least` items.

    Those that name items otherwise than the first are not put to it.
    """
    waiting: list[Chunk] = []
    rest = iter(chunks)
    for chunk in rest:
        if waiting and naming(chunk) != naming(waiting[0]):
            yield waiting
            waiting = []
            yield [chunk]
            break
        waiting.append(chunk)
        if sum(map(len, waiting)) >= least:
            break
    if waiting:
        yield waiting
    yield from ([chunk] for chunk in rest)


def _joined_metadata(chunks: Sequence[Chunk], names: Sequence[str]) -> dict[str, MetadataColumn] | None:
    parts = [chunk.metadata for chunk in chunks if chunk.metadata is not None]
    return joined(parts, names) if len(parts) == len(chunks) else None


def naming(chunk: Chunk) -> tuple[Any, ...]:
    """What the chunk has of ids, keys, tags and metadata: chunks are joined only where these are equal."""
    columns = None if chunk.metadata is None else sorted(chunk.metadata)
    return chunk.ids is None, chunk.keys is None, chunk.tags is None, columns and tuple(columns)


def stored_tags(arrays: dict[str, NDArray[Any]], split_as: TagTexts | None = None) -> TagLists | None:
    """The tags of an .npz or a folder, in whatever form its arrays have them; None for none."""
    names = arrays.get("tag_names")
    parts = [key for key in _CSR if key in arrays]
    if "tags" in arrays:
        if parts:
            raise InputError(f"tags are given twice, as 'tags' and as {', '.join(parts)}; keep one form")
        tags = arrays["tags"]
        if tags.dtype.kind in "US":
            return TagLists.from_strings(tags, split_as)
        return TagLists.from_dense(tags, names)
    if not parts:
        return None
    if missing := [key for key in _CSR if key not in arrays]:
        raise InputError(f"{', '.join(parts)} need {', '.join(missing)} beside them; save all four CSR parts")
    data, indices, indptr, shape = (arrays[key] for key in _CSR)
    return TagLists.from_csr(data, indices, indptr, shape, names)


def _item_keys(keys: Any, n: int, once: bool) -> NDArray[np.str_]:
    texts = validate.texts(keys, "keys")
    _same_length(n, keys=texts)
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        if not text:
            raise InputError(f"keys: row {row} is empty; give every item a key, or none (--key-column '')")
        if once and first.setdefault(text, row) != row:
            raise InputError(
                f"keys: {validate.short(text)} of row {row} was row {first[text]}'s already; keep one "
                "(--on-duplicate skip or replace), or give no keys (--key-column '')"
            )
    return text_array(texts, "keys")


def text_array(texts: list[str], name: str) -> NDArray[np.str_]:
    """NumPy gives every text the room of the longest."""
    budget.take(4 * len(texts) * max(map(len, texts), default=0), name)
    return np.array(texts, dtype=np.str_)


def _multi_hot(labels: ArrayLike, n: int) -> NDArray[np.bool_]:
    array = validate.plain(labels, "labels")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        array = validate.zero_one(
            array, "labels", "expected a 0/1 matrix (n, L) or n class numbers (integers from 0)"
        )
        _same_length(n, labels=array)
        return array
    _same_length(n, labels=array)
    if (bad := np.flatnonzero((array < 0) | (array >= MOST_CLASSES))).size:
        raise InputError(f"labels: class {array[bad[0]]} of row {bad[0]}, expected 0 to {MOST_CLASSES - 1}")
    budget.take(n * (int(array.max()) + 1), "labels")
    hot = np.zeros((n, int(array.max()) + 1), dtype=bool)
    hot[np.arange(n), array.astype(np.intp)] = True
    return hot


def _item_groups(groups: Any, n: int) -> NDArray[Any]:
    array = (
        text_array(validate.texts(groups, "groups"), "groups")
        if validate.holds_text(groups)
        else validate.plain(groups, "groups")
    )
    if array.ndim != 1 or array.dtype.kind in "OV":
        raise InputError(
            f"groups have shape {array.shape} and dtype {array.dtype}, expected 1-D numbers or strings"
        )
    _same_length(n, groups=array)
    return array


def _same_length(n: int, **others: Any) -> None:
    for name, values in others.items():
        if values is not None and len(values) != n:
            raise InputError(f"there are {len(values)} {name} for {n} rows of features; give one a row")
