"""HDF5 files with a dataset each for features, tags, ids and keys. h5py is imported where it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.matlab.mat73 import checked_storage
from woh_faiss.io.npz import damage
from woh_faiss.tags.tag_lists import TagLists

from .arrow_values import key_text, label_names, tags_of
from .chunk import Chunk
from .columns import KINDS, Columns, Offer, check_metadata, choose, choose_one, passed_over
from .source import ChunkSource, LabelColumn, Reading, at, good_chunk

#: Tags may be 0/1 columns, too, whose names the dataset NAMES has.
_KINDS = {
    **KINDS,
    "features": {"vectors": "a matrix of numbers, a row an item"},
    "tags": {"text": "text, one an item", "vectors": "a matrix of 0 and 1"},
    "labels": {"ints": "class numbers", "vectors": "a matrix of 0 and 1", "text": "text"},
}
NAMES = "tag_names"
#: Rows of text that are read at once.
_TEXTS = 64


def hdf5_source(path: Path, wanted: Columns, learn: bool, reading: Reading) -> ChunkSource:
    """The rows of one file; a dataset in a group is named by its path, ``train/features``.

    Raises
    ------
    InputError
        The file is damaged, its datasets are not clear or differ in length, or h5py is not there.
    """
    where = display_path(path)
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise InputError(f"{where} is HDF5, which h5py reads: install woh-faiss[mat]") from None
    with _opened(path, where) as root:
        offered = [_offer(name, node) for name in root if (node := _dataset(root, name)) is not None]
        for name in (*wanted, *reading.metadata):
            if name and "/" in name and (node := _dataset(root, name)) is not None:
                offered.append(_offer(name, node))
        columns = choose(where, offered, wanted, ("features", "tags") if learn else ("features",), _KINDS)
        check_metadata(where, offered, reading.metadata)
        assert columns.features is not None  # noqa: S101 - it was needed; this tells mypy
        features = columns.features
        n, d = map(int, _dataset(root, features).shape)
        for name in filter(None, (*columns, *reading.metadata)):
            node = _dataset(root, name)
            checked_storage(node, f"{where}: dataset {name!r}")
            if node.shape[0] != n:
                raise InputError(
                    f"{where}: dataset {name!r} has {node.shape[0]} rows, {features!r} {n}; give one a row"
                )

    def read(size: int | None) -> Iterator[Chunk]:
        step = size or n
        for start in range(0, n, step):
            with _opened(path, where) as root:
                rows = slice(start, start + step)
                found = {
                    name: _rows(root, name, rows) for name in filter(None, (*columns, *reading.metadata))
                }
                names = _rows(root, NAMES, slice(None)) if _dataset(root, NAMES) is not None else None
            more: dict[str, Any] = {}
            with at(where, start):
                if columns.tags is not None:
                    marks = found[columns.tags]
                    if isinstance(marks, list):
                        more["tags"] = tags_of(marks, columns.tags, reading.split_as)
                    else:
                        more["tags"] = TagLists.from_dense(marks, names)
            if columns.id is not None:
                with at(where, start):
                    more["ids"] = validate.whole_floats(found[columns.id])
            if columns.key is not None:
                more["keys"] = [key_text(key) for key in found[columns.key]]
            if reading.metadata:
                more["metadata"] = {name: found[name] for name in reading.metadata}
            if (chunk := good_chunk(reading, where, start, found[features], **more)) is not None:
                yield chunk

    def labels_named(name: str | None) -> str | None:
        more = list(offered)
        if name and "/" in name:
            with _opened(path, where) as root:
                if (node := _dataset(root, name)) is not None:
                    more.append(_offer(name, node))
        return choose_one(where, "labels", more, name, _KINDS["labels"])

    def labels(name: str) -> Any:
        with _opened(path, where) as root, at(where, 0):
            found = _rows(root, name, slice(None))
            if len(found) != n:
                raise InputError(f"dataset {name!r} has {len(found)} rows, {features!r} {n}; give one a row")
            return label_names(found) if isinstance(found, list) else found

    note = passed_over(where, offered, wanted, columns, _KINDS)
    return ChunkSource(where, n, d, columns, read, note=note, labels=LabelColumn(labels_named, labels))


@contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    import h5py

    with damage(where), h5py.File(path, "r") as root:
        yield root


def _dataset(root: Any, name: str | None) -> Any:
    """A dataset of this file; None where there is none: a link may lead to a file that nobody named."""
    import h5py

    node = root
    for part in (name or "").split("/"):
        if not isinstance(node, h5py.Group) or not isinstance(node.get(part, getlink=True), h5py.HardLink):
            return None
        node = node[part]
    return node if isinstance(node, h5py.Dataset) else None


def _offer(name: str, node: Any) -> Offer:
    import h5py

    type_ = node.dtype
    text = h5py.check_string_dtype(type_) is not None
    kind = "other"
    if node.ndim == 2 and type_.kind in "fiub":
        kind = "vectors"
    elif node.ndim == 1 and text:
        kind = "text"
    elif node.ndim == 1 and type_.kind in "iu":
        kind = "ints"
    elif node.ndim == 1 and type_.kind == "f":
        kind = "floats"
    elif node.ndim == 1 and type_.kind == "b":
        kind = "bools"
    return Offer(name, kind, f"{' x '.join(map(str, node.shape)) or 'scalar'} {'text' if text else type_}")


def _rows(root: Any, name: str, rows: slice) -> Any:
    """Rows of a dataset: an array of numbers, or a list of text."""
    import h5py

    node = _dataset(root, name)
    checked_storage(node, f"dataset {name!r}")
    start, stop, _ = rows.indices(node.shape[0])
    budget.take((stop - start) * math.prod(node.shape[1:]) * node.dtype.itemsize, f"{name} of a chunk")
    if h5py.check_string_dtype(node.dtype) is None:
        return node[rows]
    texts: list[str] = []
    for at_ in range(start, stop, _TEXTS):  # many rows may be the same long text
        more = node.asstr()[at_ : min(at_ + _TEXTS, stop)].tolist()
        budget.take(sum(map(len, more)) + validate.TEXT * len(more), f"{name} of a chunk")
        texts += more
    return texts
