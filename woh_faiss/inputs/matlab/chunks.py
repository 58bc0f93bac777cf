"""The .mat files that hashing papers publish: features, tags and labels of each part as variables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget, validate
from woh_faiss.errors import InputError, MemoryBudgetError
from woh_faiss.inputs.chunk import MOST_CLASSES, Chunk, concatenate
from woh_faiss.tags.tag_lists import TagLists, tag_lists

from .mat import open_mat
from .variables import Mat, told, whole_numbers


class Names(NamedTuple):
    """The variables of one part; tags and labels may be absent from a file."""

    features: str
    tags: str | None
    labels: str | None


#: Part -> the names that papers give its variables; of those whose features are there the fullest counts.
USUAL: dict[str, tuple[Names, ...]] = {
    "train": (
        Names("I_tr", "T_tr", "L_tr"),
        Names("XTrain", "YTrain", "trainL"),
        Names("XTrain", "YTrain", "LTrain"),
    ),
    "test": (
        Names("I_te", "T_te", "L_te"),
        Names("XTest", "YTest", "testL"),
        Names("XTest", "YTest", "LTest"),
        Names("XQuery", "YQuery", "queryL"),
    ),
    "database": (
        Names("I_db", "T_db", "L_db"),
        Names("XDatabase", "YDatabase", "databaseL"),
        Names("XRetrieval", "YRetrieval", "retrievalL"),
    ),
    "all": (Names("IAll", "YAll", "LAll"), Names("XAll", "YAll", "LAll"), Names("X", "Y", "L")),
}


def read_mat(
    path: str | os.PathLike[str],
    part: str | None = None,
    *,
    features: str | None = None,
    tags: str | None = None,
    labels: str | None = None,
    tag_names: str | Sequence[str] | None = None,
) -> Chunk:
    """One part of a .mat file (any version; 7.3 needs the extra `mat`), a row an item.

    Give the names of the variables, or none: then they are the usual ones (`USUAL`) of the part.

    Parameters
    ----------
    path : path
        The file.
    part : {'train', 'test', 'database', 'all'}, optional
        Not needed where the file has one part only.
    features, tags, labels : str, optional
        Variables. Tags are 0/1, full or sparse; labels too, or a column of class numbers. With `features`
        given, tags and labels are read only if they are given too.
    tag_names : str or sequence of str, optional
        The tags' columns: a variable (a cell array of text), or the names.

    Raises
    ------
    InputError
        The file is missing or damaged, variables are missing or ambiguous (the message lists those that
        exist), or their lengths differ.
    """
    with budget.reading(os.fsdecode(path)):
        return _part(open_mat(path), part, features, tags, labels, tag_names)


def _part(
    mat: Mat,
    part: str | None,
    features: str | None,
    tags: str | None,
    labels: str | None,
    tag_names: str | Sequence[str] | None,
) -> Chunk:
    if features is None:
        if tags is not None or labels is not None:
            raise InputError(f"features is not given, but tags or labels are; {mat.where} holds {told(mat)}")
        names = usual(mat, part)
    elif part is not None:
        raise InputError(f"part is {validate.short(part)} and features is given too; give one of them")
    else:
        names = Names(features, tags, labels)
    X = mat.rows(names.features)
    n = X.shape[0]
    try:
        lists = None if names.tags is None else tags_of(mat, names.tags, n, tag_names)
        marks = None if names.labels is None else labels_of(mat, names.labels, n)
        return Chunk.of(X if isinstance(X, np.ndarray) else X[0:n], lists, labels=marks)
    except InputError as error:
        if str(error).startswith(mat.where) or isinstance(error, MemoryBudgetError):
            raise
        used = ", ".join(name for name in names if name is not None)
        raise InputError(f"{mat.where} ({used}): {error}") from error


def own_split(path: str | os.PathLike[str]) -> tuple[Chunk, int]:
    """All items of a file with the parts test and train, those of the test first, and how many they are.

    Tags of the test part, which papers leave out, are not needed.

    Raises
    ------
    InputError
        As `read_mat`, for either part.
    """
    test, train = read_mat(path, "test"), read_mat(path, "train")
    if test.tags is None and train.tags is not None:
        none = TagLists(train.tags.names, np.zeros(len(test) + 1, np.int64), np.empty(0, np.int64))
        test = replace(test, tags=none)
    return concatenate([test, train], [f"{os.fspath(path)} (test)", f"{os.fspath(path)} (train)"]), len(test)


def parts_of(path: str | os.PathLike[str]) -> set[str]:
    """The parts of a file that are there under usual names."""
    return set(usual_parts(open_mat(path)))


def usual_parts(mat: Mat) -> dict[str, Names]:
    """The variables of each part that a file has; of several usual names the fullest."""

    def there(names: Names) -> int:
        return sum(name in mat.variables for name in names)

    return {
        part: max((n for n in names if n.features in mat.variables), key=there)
        for part, names in USUAL.items()
        if any(n.features in mat.variables for n in names)
    }


def usual(mat: Mat, part: str | None) -> Names:
    """The variables of a part by their usual names; InputError where they are not there or not clear."""
    if part is not None and part not in USUAL:
        raise InputError(f"part is {validate.short(part)}, expected one of {', '.join(USUAL)}")
    found = usual_parts(mat)
    if part is None and len(found) > 1:
        raise InputError(
            f"{mat.where} has the parts {', '.join(found)}; say which: part='{next(iter(found))}'"
        )
    if not found or (part is not None and part not in found):
        of = "" if part is None else f" of part '{part}'"
        raise InputError(
            f"{mat.where} has no features{of} under a usual name; it holds {told(mat)}; name the variables: "
            "features='...', tags='...', labels='...'"
        )
    names = found[part if part is not None else next(iter(found))]
    return Names(names.features, *(name if name in mat.variables else None for name in names[1:]))


def tags_of(mat: Mat, name: str, n: int, tag_names: str | Sequence[str] | None = None) -> TagLists:
    """The tags that a 0/1 variable, full or sparse, gives n items."""
    matrix = mat.read(name)
    if matrix.shape[:1] != (n,):  # before anything that many is made of a sparse one
        raise InputError(f"tags have shape {matrix.shape} for {n} rows of features; give one a row")
    if tag_names is None:
        return tag_lists(matrix)
    names = _texts(mat, tag_names) if isinstance(tag_names, str) else tag_names
    if hasattr(matrix, "tocsr"):
        csr = matrix.tocsr()
        return TagLists.from_csr(csr.data, csr.indices, csr.indptr, csr.shape, names)
    return TagLists.from_dense(matrix, names)


def _texts(mat: Mat, name: str) -> list[str]:
    return [text.strip() for text in validate.texts(mat.read(name), f"variable {name!r}", "entry")]


def labels_of(mat: Mat, name: str, n: int) -> NDArray[Any]:
    """Labels of a variable: a matrix of 0 and 1, or class numbers (n,)."""
    L = mat.read(name)
    if hasattr(L, "toarray"):
        if L.shape[0] != n or L.shape[1] > MOST_CLASSES:
            raise InputError(
                f"labels have shape {L.shape}, expected {n} rows of at most {MOST_CLASSES} classes"
            )
        budget.take(8 * L.shape[0] * L.shape[1], "labels")
        L = L.toarray()
    L = np.asarray(L)
    if L.ndim == 2 and 1 in L.shape and L.size == n and L.dtype.kind in "fiu" and L.size and L.max() > 1:
        classes = whole_numbers(np.ravel(L))  # a column of class numbers
        if classes.dtype.kind != "f":
            return classes.astype(np.int64)
    return L
