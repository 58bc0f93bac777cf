"""The common part of readers of MATLAB's formats: file names and faults in messages."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.errors import InputError
from woh_faiss.io.npz import BOMB_BYTES, BOMB_RATIO
from woh_faiss.validate import listed

#: MATLAB's classes of plain numbers, and NumPy's types.
NUMBERS = {
    **{"double": "float64", "single": "float32", "logical": "bool"},
    **{(name := f"{u}int{bits}"): name for u in ("", "u") for bits in (8, 16, 32, 64)},
}


class MatRows(Protocol):
    """An (n, d) array, or what gives its rows a slice at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        """Rows of a slice."""


class Mat(Protocol):
    """An opened .mat file."""

    where: str
    variables: dict[str, str]  # name -> "2000 x 20 double"

    def read(self, name: str) -> Any:
        """A variable: an array, or a SciPy sparse matrix; InputError if it is not there or damaged."""

    def rows(self, name: str) -> MatRows:
        """A matrix of numbers, in slices where the format allows it."""


def told(mat: Mat) -> str:
    """The variables of a file, for a message."""
    return listed([f"{name} ({kind})" for name, kind in mat.variables.items()], 12) or "no variables"


def full_matrix(array: Any, where: str) -> NDArray[Any]:
    """The array, if it is 2-D and of real numbers."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiub":
        found = f"{type(array).__name__} of shape {np.shape(array)}"
        raise InputError(f"{where} is {found}, expected a full matrix of real numbers, a row an item")
    return array


def whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Floating numbers as int64 if all are whole: MATLAB keeps whole numbers as doubles."""
    if values.dtype.kind == "f" and ((np.abs(values) < 2**53) & (values == np.rint(values))).all():
        return values.astype(np.int64)
    return values


def not_there(mat: Mat, name: str) -> InputError:
    """The error for a variable that the file does not have."""
    return InputError(f"{mat.where} has no variable {name!r}; it holds {told(mat)}")


def check_expansion(where: str, claimed: int, stored: int) -> None:
    """Before anything is allocated: deflate ends near 1032:1."""
    if claimed > max(BOMB_BYTES, BOMB_RATIO * stored):
        raise InputError(
            f"{where} claims {claimed} bytes and holds {stored}: it is damaged, or write it uncompressed"
        )


def kind_of(shape: tuple[int, ...], name: str) -> str:
    """Shape and class, as MATLAB's `whos` tells them."""
    return f"{' x '.join(map(str, shape))} {name}"


def sparse_of(values: NDArray[Any], ir: NDArray[Any], jc: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """MATLAB's sparse matrix as SciPy's, checked here: SciPy writes wherever damaged indices point."""
    from scipy.sparse import csc_matrix

    n, c = shape
    budget.take(60 * len(ir) + 16 * len(jc), "a sparse matrix")  # as columns, then as rows
    ends, rows = jc.astype(np.int64), ir.astype(np.int64)
    if len(ends) != c + 1 or ends[0] != 0 or (np.diff(ends) < 0).any():
        raise ValueError(f"column ends of a sparse matrix of shape {shape} are not in order")
    nnz = int(ends[-1])
    rows, values = rows[:nnz], values[:nnz]  # there may be room behind the last
    if len(rows) != nnz or len(values) != nnz or (nnz and not 0 <= rows.min() <= rows.max() < n):
        raise ValueError(f"entries of a sparse matrix of shape {shape} are cut short or lie outside it")
    return csc_matrix((values.astype(np.float64), rows, ends), shape=(n, c))
