""".mat files as inputs: variables with the names of hashing papers, or given ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss.errors import InputError, short
from woh_faiss.inputs.matlab.chunks import USUAL, labels_of, tags_of, usual_parts
from woh_faiss.inputs.matlab.mat import open_mat
from woh_faiss.inputs.matlab.variables import Mat, whole_numbers

from .chunk import Chunk
from .columns import KINDS, Columns, Offer, choose, choose_one, passed_over, told
from .source import ChunkSource, LabelColumn, Reading, at, good_chunk

_KINDS = {
    **KINDS,
    "features": {"vectors": "a matrix of numbers, a row an item"},
    "tags": {"vectors": "a matrix of 0 and 1", "sparse": "a sparse one"},
    "id": {"column": "a column of numbers"},
    "key": {"cell": "a cell array of text"},
    "labels": {
        "vectors": "a matrix of 0 and 1",
        "sparse": "a sparse one",
        "column": "a column of class numbers",
    },
}


def mat_source(path: Path, wanted: Columns, learn: bool, reading: Reading) -> ChunkSource:
    """The rows of one part of a .mat file.

    Raises
    ------
    InputError
        The file is damaged, or the variables are not there, not clear, or not of one length.
    """
    mat = open_mat(path)
    offered = [_offer(name, kind) for name, kind in mat.variables.items()]
    columns = choose(
        mat.where, offered, _of_papers(mat, wanted), ("features", "tags") if learn else ("features",), _KINDS
    )
    assert columns.features is not None  # noqa: S101 - it was needed; this tells mypy
    X = mat.rows(columns.features)
    n, d = X.shape
    more: dict[str, Any] = {}
    with at(mat.where, 0):
        if columns.tags is not None:
            more["tags"] = tags_of(mat, columns.tags, n)
        if columns.id is not None:
            more["ids"] = whole_numbers(np.ravel(mat.read(columns.id)))
        if columns.key is not None:
            more["keys"] = np.ravel(mat.read(columns.key))
        for name in reading.metadata:
            if name not in mat.variables:
                raise InputError(f"has no variable {short(name)} for --metadata; it has {told(offered)}")
            more[f"metadata {name}"] = np.ravel(mat.read(name))
        for name, values in more.items():
            if len(values) != n:
                raise InputError(f"there are {len(values)} {name} for {n} rows of features; give one a row")

    def read(size: int | None) -> Iterator[Chunk]:
        step = size or n
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            parts = {
                name: values.rows(rows) if name == "tags" else values[rows] for name, values in more.items()
            }
            if reading.metadata:
                parts["metadata"] = {name: parts.pop(f"metadata {name}") for name in reading.metadata}
            if (chunk := good_chunk(reading, mat.where, start, X[rows], **parts)) is not None:
                yield chunk

    def labels_named(name: str | None) -> str | None:
        if name is None:
            named = [names for part in USUAL.values() for names in part if names.features == columns.features]
            name = next((names.labels for names in named if names.labels in mat.variables), None)
        return choose_one(mat.where, "labels", offered, name, _KINDS["labels"])

    def labels(name: str) -> Any:
        with at(mat.where, 0):
            found = labels_of(mat, name, n)
            if len(found) != n:
                raise InputError(f"there are {len(found)} labels for {n} rows of features; give one a row")
            return found

    note = passed_over(mat.where, offered, wanted, columns, _KINDS)
    return ChunkSource(mat.where, n, d, columns, read, note=note, labels=LabelColumn(labels_named, labels))


def _of_papers(mat: Mat, wanted: Columns) -> Columns:
    """What papers call the variables, where the file has them and nothing else was said."""
    all_names = [names for part in USUAL.values() for names in part]
    if wanted.features is None:
        parts = usual_parts(mat)
        if len(parts) > 1:
            first = next(iter(parts.values()))
            raise InputError(
                f"{mat.where} has the parts {', '.join(parts)}; say which by its features: "
                f"--features-column {first.features}"
            )
        features = next(iter(parts.values())).features if parts else None
    else:
        features = wanted.features
    tags = wanted.tags
    if tags is None:
        usual = (n.tags for n in all_names if n.features == features and n.tags in mat.variables)
        tags = next(usual, None)
    return wanted._replace(features=features, tags=tags)


def _offer(name: str, kind: str) -> Offer:
    """`kind` is as MATLAB's whos has it: 2000 x 20 double."""
    *shape, class_ = kind.split(" ")
    sides = [part for part in shape if part != "x"]
    if class_ in ("sparse", "cell"):
        return Offer(name, class_, kind)
    if "1" in sides and len(sides) == 2:
        return Offer(name, "column", kind)
    return Offer(name, "vectors" if len(sides) == 2 else "other", kind)
