"""Array checks at the public boundary; inner modules trust their arguments."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import budget
from .errors import InputError
from .errors import short as short

#: Rows checked at a time, so that a memory-mapped array is never read whole.
BLOCK = 8192
#: Bytes that Python takes for a text besides its letters, and for a place in a list.
TEXT = 64


def features(X: ArrayLike, d: int | None = None, name: str = "features") -> NDArray[Any]:
    """X as a finite, real (n, d) array in its own dtype; nothing is copied that need not be.

    Parameters
    ----------
    X : (n, d) array_like of a real dtype
        Bool, integer or floating, any byte order and any strides.
    d : int, optional
        The width the model was fitted with; None accepts any.
    name : str
        What to call the array in a message.

    Raises
    ------
    InputError
        X is not 2-D, not real, has another width than `d`, or holds NaN or infinite values (the
        message names the first bad row).
    """
    if hasattr(X, "tocsr"):
        raise InputError(f"{name} are a sparse {type(X).__name__}, expected a dense array; call .toarray()")
    X = array(X, name, np.asanyarray)
    if isinstance(X, np.matrix):  # whose rows are never 1-D
        X = np.asarray(X)
    if X.dtype.kind not in "fiub":
        raise InputError(f"{name} have dtype {X.dtype}, expected real numbers (float16/32/64 or integers)")
    if X.ndim != 2:
        hint = "; for one item pass X[None, :]" if X.ndim == 1 else ""
        raise InputError(f"{name} have shape {X.shape}, expected 2-D (n items, d numbers each){hint}")
    if X.shape[1] == 0:
        raise InputError(f"{name} have no columns (shape {X.shape}), expected at least one number an item")
    if d is not None and X.shape[1] != d:
        raise InputError(f"{name} have {X.shape[1]} columns, the model was fitted with {d}")
    if X.dtype.kind == "f" and not _surely_finite(X):
        for start in range(0, len(X), BLOCK):
            finite = np.isfinite(X[start : start + BLOCK]).all(axis=1)
            if not finite.all():
                row = start + int(np.flatnonzero(~finite)[0])
                raise InputError(
                    f"{name} of row {row} are not finite (NaN or infinite); repair or leave it out"
                )
    return X


def _surely_finite(X: NDArray[Any]) -> bool:
    """Whether the sum of squares is finite, which takes BLAS half as long as to look at every number.

    False says nothing: squares of large numbers overflow, and BLAS takes no strides.
    """
    if not X.flags.c_contiguous or X.dtype.char not in "fd" or not X.dtype.isnative:
        return False
    flat = X.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(flat @ flat))


def item_ids(ids: ArrayLike, n: int, once: bool = True) -> NDArray[np.int64]:
    """Ids of n items as int64, each `once` unless that is false.

    Raises
    ------
    InputError
        Not 1-D integers, another number than `n`, a negative id, one beyond int64, or a repeated one.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"ids have shape {ids.shape} and dtype {ids.dtype}, expected 1-D integers")
    if len(ids) != n:
        raise InputError(f"there are {len(ids)} ids for {n} items; give one an item")
    if ids.dtype.kind == "u" and n and ids.max() > np.iinfo(np.int64).max:
        raise InputError(f"id {ids.max()} does not fit in 64 signed bits")
    ids = ids.astype(np.int64)
    if n and ids.min() < 0:
        row = int(np.flatnonzero(ids < 0)[0])
        raise InputError(f"id {ids[row]} of row {row} is negative; ids are 0 or more")
    unique, first = np.unique(ids, return_index=True)
    if once and len(unique) != n:
        again = np.setdiff1d(np.arange(n), first)[0]
        raise InputError(
            f"id {ids[again]} of row {again} is given twice in one chunk; keep one "
            "(--on-duplicate skip or replace)"
        )
    return ids


def whole_floats(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids of a file, as int64 where they are floats: one missing value makes floats of integers.

    Raises
    ------
    InputError
        One is not whole, or so large that a float may stand for another.
    """
    if ids.dtype.kind != "f":
        return ids
    exact = 2.0 ** (np.finfo(ids.dtype).nmant + 1)
    values = ids.astype(np.float64)
    bad = np.flatnonzero(~((values == np.floor(values)) & (np.abs(values) <= exact)))
    if bad.size:
        raise InputError(
            f"id {ids[bad[0]]} of row {bad[0]} is no whole number that a float holds exactly; give integers, "
            "or names as keys (--key-column)"
        )
    return ids.astype(np.int64)


def positive_int(k: Any, name: str = "k") -> int:
    """A count such as k as a Python int of at least 1: `whole_number`."""
    number = whole_number(k, name, 1)
    if number >= 2**31 - 1:
        raise InputError(f"{name} is {short(number)}, expected less than {2**31 - 1}")
    return number


#: Empty places that an answer may have: 3 GB of them.
_MOST_EMPTY = 2**28


def empty_places(n: int, k: int, held: int) -> None:
    """InputError where n queries for k of `held` items would answer with little else than empty places."""
    if n * (k - held) > _MOST_EMPTY:
        raise InputError(f"k is {k}, and there are {held} items for {n} queries; ask for fewer")


def selector(params: Any, allow: Any) -> Any:
    """What Faiss's search parameters allow: their `sel`, or `allow` where there is none.

    Raises
    ------
    InputError
        They are none of Faiss's, ask for more than a selector, or stand beside an `allow`.
    """
    if params is None:
        return allow
    if not hasattr(params, "sel"):
        raise InputError(
            f"params is {short(params)}, expected faiss.SearchParameters(sel=...) or nothing; "
            "allow= takes ids as they are"
        )
    if more := sorted({name for name in dir(params) if name[0] != "_"} - _OF_SELECTORS):
        raise InputError(
            f"params is {type(params).__name__} with {listed(more)}, which a flat scan does not have; "
            "give faiss.SearchParameters(sel=...)"
        )
    if params.sel is not None and allow is not None:
        raise InputError("params has a selector and allow is given, too; give one of them")
    return allow if params.sel is None else params.sel


#: What faiss.SearchParameters has, names of SWIG and of any version of Faiss among it.
_OF_SELECTORS = {"sel", "this", "thisown", "original_init", "referenced_objects"}


def whole_number(value: Any, name: str, least: int) -> int:
    """A whole number of at least `least` as a Python int; numpy integers are welcome.

    Raises
    ------
    InputError
        Not an integer, or less.
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = int(value.__index__())
    except (AttributeError, TypeError):
        raise InputError(f"{name} is {short(value)}, expected a whole number of at least {least}") from None
    if number < least:
        raise InputError(f"{name} is {short(number)}, expected at least {least}")
    return number


#: Seconds that stand for all waits without an end; what SQLite and the system take at most is not far above.
_FOREVER = 2e6


def seconds(value: Any, name: str = "timeout", also: str = "") -> float:
    """A time to wait as a float, infinity as 23 days.

    Raises
    ------
    InputError
        Not a real number of at least 0.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    if not (real and value >= 0):
        raise InputError(f"{name} is {short(value)}, expected seconds, 0 or more{also}")
    return float(min(value, _FOREVER))


def stored(arrays: Mapping[str, NDArray[Any]], name: str, ndim: int) -> NDArray[Any]:
    """An array of a model file, if it is real, finite and of `ndim` dimensions; KeyError if it is absent."""
    M = np.asarray(arrays[name])
    if M.ndim != ndim or M.dtype.kind not in "fiub" or not np.isfinite(M).all():
        raise InputError(f"{name} has dtype {M.dtype} and shape {M.shape}, or is not finite")
    return M


def holds_text(values: Any) -> bool:
    """Whether a 1-D array_like holds any string, and so was meant as strings."""
    if not isinstance(values, (list, tuple)):
        values = array(values, "values")
        if values.dtype != object or values.ndim != 1:
            return values.ndim == 1 and values.dtype.kind in "UST"
    return any(isinstance(value, (str, bytes)) for value in values)


def _storable(text: str) -> bool:
    """Whether UTF-8 and SQLite can hold it."""
    try:
        text.encode()
    except UnicodeError:
        return False
    return "\0" not in text


def texts(values: Any, name: str, place: str = "row") -> list[str]:
    """A 1-D array_like of text as Python strings that UTF-8 and SQLite can hold."""
    if not isinstance(values, (list, tuple)):
        values = array(values, name)
        if values.ndim != 1 or values.dtype.kind not in "USTO":
            raise InputError(
                f"{name} have shape {values.shape} and dtype {values.dtype}, expected 1-D strings"
            )
        if values.dtype.kind == "U" and values.nbytes:
            # Python cannot even print a string array with a number that is no character.
            codes = np.ascontiguousarray(values).view(values.dtype.byteorder + "u4").reshape(len(values), -1)
            if (bad := np.flatnonzero((codes > 0x10FFFF).any(axis=1))).size:
                raise InputError(f"{name}: {place} {bad[0]} is not Unicode text; the array is damaged")
        budget.take(values.nbytes + TEXT * len(values), name)
        values = values.tolist()
    if all(type(value) is str for value in values) and _storable("".join(values)):
        return list(values)
    texts = []
    for row, value in enumerate(values):
        try:
            text = str(value, "utf-8") if isinstance(value, bytes) else value
            if not isinstance(text, str):
                raise InputError(f"{name}: {place} {row} is {short(value)}, expected a str")
            text.encode()
        except UnicodeError:
            raise InputError(
                f"{name}: {place} {row} is {short(value)}, not UTF-8 text; decode it first"
            ) from None
        if "\0" in text:
            raise InputError(
                f"{name}: {place} {row} is {short(value)}, which holds a NUL character; remove it"
            )
        texts.append(str(text))  # np.str_ to str
    return texts


def zero_one(matrix: ArrayLike, name: str, expected: str) -> NDArray[np.bool_]:
    """A 2-D array of 0 and 1 as bool; `expected` ends the message about anything else."""
    M = plain(matrix, name)
    if M.ndim != 2 or M.dtype.kind not in "fiub":
        raise InputError(f"{name} have shape {M.shape} and dtype {M.dtype}, {expected}")
    budget.take(3 * M.size, name)
    ones: NDArray[np.bool_] = M == 1
    if not (good := ones | (M == 0)).all():
        row, column = np.argwhere(~good)[0]
        raise InputError(f"{name} of row {row}, column {column} is {M[row, column]}, expected 0 or 1")
    return ones


def whole_numbers(values: ArrayLike, name: str, length: int | None) -> NDArray[np.int64]:
    """1-D integers, `length` of them if given, as int64."""
    M = array(values, name)
    if M.size == 0:
        M = M.astype(np.int64)  # numpy makes [] float64
    if M.ndim != 1 or M.dtype.kind not in "iu" or (length is not None and len(M) != length):
        many = "" if length is None else f"{length} "
        raise InputError(f"{name} have shape {M.shape} and dtype {M.dtype}, expected {many}1-D integers")
    return M.astype(np.int64)


def plain(values: ArrayLike, name: str) -> NDArray[Any]:
    """An array of numbers even if it comes as Python objects (as pandas columns often do)."""
    M = array(values, name)
    return array(M.tolist(), name) if M.dtype == object else M


def array(values: ArrayLike, name: str, made: Callable[..., NDArray[Any]] = np.asarray) -> NDArray[Any]:
    """An array of what numpy makes one of; InputError where it does not."""
    try:
        return made(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} are not an array ({' '.join(str(error).split())[:160]})") from error


def listed(names: Sequence[str], most: int = 5) -> str:
    """A few of the names, for a message: all of many would fill the screen."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
