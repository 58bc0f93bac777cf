"""Tags of items, from strings, lists, 0/1 matrices or CSR parts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import budget, validate
from woh_faiss.errors import InputError, MemoryBudgetError

from .splitting import TagTexts, split

#: More columns than this need written names.
MOST_UNNAMED_TAGS = 1 << 20

_FORMS = "a 1-D string array, a list of lists of str, or a 0/1 matrix (n, c), dense or sparse"


@dataclass(frozen=True, slots=True, eq=False)
class TagLists:
    """Who carries which tag, as typed: the CSR pattern of an (n, c) 0/1 matrix.

    Attributes
    ----------
    names : tuple of c str
        Column -> tag as the user wrote it, each once; `vocabulary.py` normalises.
    indptr : (n + 1,) int64
        Item i's tags are ``indices[indptr[i]:indptr[i + 1]]``.
    indices : (nnz,) int64
        Columns, in the order the user wrote the tags; no column twice in an item.
    """

    names: tuple[str, ...]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def rows(self, select: slice | NDArray[Any]) -> TagLists:
        """The items of a slice, an int array or an (n,) bool mask; all names stay, so columns keep theirs."""
        picked = np.arange(len(self))[select]
        starts, lengths = self.indptr[picked], np.diff(self.indptr)[picked]
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        where = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return TagLists(self.names, indptr, self.indices[where])

    def own(self) -> TagLists:
        """The same lists as if they had come alone: with their names only, numbered as they first appear."""
        return TagLists.from_lists([self.of_row(i) for i in range(len(self))])

    def of_row(self, i: int) -> list[str]:
        """The tags of item i, 0 <= i < n, in the order they were written."""
        return [self.names[column] for column in self.indices[self.indptr[i] : self.indptr[i + 1]]]

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[str]]) -> TagLists:
        """Tags of n items, a list of str each.

        Outer blanks go, and so do blank tags and a tag's second mention in the same item; columns
        are numbered as tags first appear.

        Raises
        ------
        InputError
            An item is not a list, or a tag in it is not text (the message names the row).
        """
        columns: dict[str, int] = {}
        indices: list[int] = []
        indptr = [0]
        for row, tags in enumerate(lists):
            if not isinstance(tags, (list, tuple, np.ndarray)):
                raise InputError(
                    f"tags of row {row} are {validate.short(tags)}, expected a list of str; [] for none"
                )
            tidy = (tag.strip() for tag in validate.texts(tags, f"tags of row {row}", "entry"))
            known = len(columns)
            indices += [columns.setdefault(tag, len(columns)) for tag in dict.fromkeys(tidy) if tag]
            budget.take(48 * (len(indices) - indptr[-1]) + 200 * (len(columns) - known), "tags")
            indptr.append(len(indices))
        return cls(tuple(columns), np.array(indptr, np.int64), np.array(indices, np.int64))

    @classmethod
    def from_strings(cls, strings: ArrayLike, split_as: TagTexts | None = None) -> TagLists:
        """Tags of n items, one string each: split on ``;`` where it has one, else on white space.

        So ``"golden gate;"`` is one tag and ``"golden gate"`` two. A list that is written as text, in JSON or
        Python, is that list, and quotes keep a tag whole. If all of the first 100 texts that can be split
        have commas, or pipes, they are split there. Otherwise as `from_lists`.

        Parameters
        ----------
        strings : (n,) array_like of str
        split_as : TagTexts, optional
            How the texts of all of an input are split; without it these texts tell.

        Raises
        ------
        InputError
            Not 1-D text, text that is not UTF-8, or a list of something else (the message names the row).
        """
        texts = validate.texts(strings, "tags", "row")
        marks = (split_as or TagTexts()).separators(texts)

        def lists() -> Iterator[list[str]]:
            for row, text in enumerate(texts):
                try:
                    yield split(text, marks)
                except MemoryBudgetError:
                    raise
                except InputError as error:
                    raise InputError(str(error).replace("tags are", f"tags of row {row} are", 1)) from None

        return cls.from_lists(lists())

    @classmethod
    def from_dense(cls, matrix: ArrayLike, names: ArrayLike | None = None) -> TagLists:
        """Tags of an (n, c) array of 0 and 1, bool or any real dtype; an item's tags are in column order.

        Raises
        ------
        InputError
            Another shape, another value (the message names the row), or `names` are not c different tags.
        """
        marks = validate.zero_one(matrix, "tags", f"expected {_FORMS}")
        budget.take(32 * int(np.count_nonzero(marks)), "tags")
        rows, columns = np.nonzero(marks)
        ends = row_ends(rows, len(marks))
        return cls(_tag_names(names, marks.shape[1]), ends, columns.astype(np.int64))

    @classmethod
    def from_csr(
        cls,
        data: ArrayLike,
        indices: ArrayLike,
        indptr: ArrayLike,
        shape: ArrayLike,
        names: ArrayLike | None = None,
    ) -> TagLists:
        """Tags of the parts of an (n, c) CSR matrix.

        Parameters
        ----------
        data, indices : (nnz,) array_like
            Entries, 1 or 0 (no tag), and their columns.
        indptr : (n + 1,) array_like of integers
            Where each row starts.
        shape : (2,) array_like
            n and c.
        names : (c,) array_like of str, optional
            The tags; without it they are tag0, tag1, ...

        Raises
        ------
        InputError
            The parts do not fit each other, an entry is neither 0 nor 1 or is given twice, or
            `names` are not c different tags.
        """
        budget.take(100 * np.size(indices) + 32 * np.size(indptr), "tags")
        n, c = validate.whole_numbers(shape, "tags_shape", 2).tolist()
        if n < 0 or c < 0:
            raise InputError(f"tags_shape is ({n}, {c}), expected numbers of items and of tags, 0 or more")
        pointers = validate.whole_numbers(indptr, "tags_indptr", n + 1)
        columns = validate.whole_numbers(indices, "tags_indices", None)
        values = validate.plain(data, "tags_data")
        if values.shape != columns.shape:
            raise InputError(
                f"tags_data have shape {values.shape}, tags_indices {columns.shape}; expected equal"
            )
        if (step := np.flatnonzero(pointers[1:] < pointers[:-1])).size:
            raise InputError(f"tags_indptr decreases after row {step[0]}; expected CSR row ends in order")
        if pointers[0] != 0 or pointers[-1] != len(columns):
            raise InputError(
                f"tags_indptr runs from {pointers[0]} to {pointers[-1]}, expected 0 to {len(columns)}, "
                "the length of tags_indices"
            )
        rows = np.repeat(np.arange(n), np.diff(pointers))
        if (bad := np.flatnonzero((columns < 0) | (columns >= c))).size:
            raise InputError(
                f"tags_indices has {columns[bad[0]]} in row {rows[bad[0]]}, expected 0 to {c - 1}"
            )
        if values.dtype.kind not in "fiub":
            raise InputError(f"tags_data have dtype {values.dtype}, expected 0 and 1")
        if (bad := np.flatnonzero((values != 0) & (values != 1))).size:
            raise InputError(f"tags_data has {values[bad[0]]} in row {rows[bad[0]]}, expected 0 or 1")
        named = _tag_names(names, c)  # bounds c, so that the cell number below fits in 64 bits
        cells, first = np.unique(rows * c + columns, return_index=True)
        if len(cells) != len(rows):
            again = np.setdiff1d(np.arange(len(rows)), first)[0]
            raise InputError(
                f"tags give column {columns[again]} twice in row {rows[again]}; sum duplicates first"
            )
        kept = values != 0
        return cls(named, row_ends(rows[kept], n), columns[kept])


def row_ends(rows: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """CSR row pointers (n + 1,) of entries in these rows."""
    return np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n)))).astype(np.int64)


def tag_lists(tags: Any) -> TagLists:
    """`TagLists` from any of the forms that `Chunk.of` takes; InputError names what does not fit."""
    if isinstance(tags, TagLists):
        return tags
    if hasattr(tags, "tocsr"):
        csr = tags.tocsr()
        end = int(csr.indptr[-1])  # SciPy allows room behind the last entry
        return TagLists.from_csr(csr.data[:end], csr.indices[:end], csr.indptr, csr.shape)
    if not isinstance(tags, (list, tuple)):
        tags = validate.array(tags, "tags")
    if validate.holds_text(tags):
        return TagLists.from_strings(tags)
    # Before numpy sees them: it would make one string matrix of ["a", 1] and ["b", "c"].
    if (isinstance(tags, (list, tuple)) or (tags.dtype == object and tags.ndim == 1)) and any(
        isinstance(row, (list, tuple, np.ndarray)) and (np.size(row) == 0 or validate.holds_text(row))
        for row in tags
    ):
        return TagLists.from_lists(tags)
    return TagLists.from_dense(tags)


def class_tags(y: Any) -> Any:
    """1-D whole numbers as the tags that a 0/1 matrix of these classes has; anything else as it is.

    An estimator's second argument may be labels, as scikit-learn has them. A chunk's tags may not: there
    numbers are more often ids, counts, or a matrix that lost its shape.

    Raises
    ------
    InputError
        A number is not whole.
    """
    if isinstance(y, (TagLists, str, bytes)) or hasattr(y, "tocsr"):
        return y
    values = list(y) if isinstance(y, (list, tuple)) else validate.array(y, "tags")
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "fiubO":
            return y
        values = values.tolist()
    if not values or not all(isinstance(value, (numbers.Real, np.bool_)) for value in values):
        return y
    for row, value in enumerate(values):
        if value != value or value in (math.inf, -math.inf) or value != int(value):
            raise InputError(
                f"y of row {row} is {value}, expected tags or class numbers, which are whole numbers"
            )
    return TagLists.from_lists([[f"tag{int(value)}"] for value in values])


def _tag_names(names: Any, c: int) -> tuple[str, ...]:
    if names is None:
        if c > MOST_UNNAMED_TAGS:
            raise InputError(f"tags have {c} columns without names; give tag_names")
        return tuple(f"tag{column}" for column in range(c))
    texts = validate.texts(names, "tag_names", "column")
    if len(texts) != c:
        raise InputError(f"there are {len(texts)} tag_names for {c} columns of tags; give one a column")
    first: dict[str, int] = {}
    for column, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"tag_names: column {column} is blank; name it or leave the column out")
        if first.setdefault(text, column) != column:
            raise InputError(
                f"tag_names: {validate.short(text)} names columns {first[text]} and {column}; merge them"
            )
    return tuple(texts)
