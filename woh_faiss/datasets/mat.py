"""Variables of a .mat file: up to version 7.2 by SciPy, version 7.3 (HDF5) by h5py.

Knows files, not hashing papers: `mat_chunks` says what the variables are. Rows are MATLAB's rows. Neither
format is a pickle; of objects and functions nothing is read.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from woh_faiss.chunk_files import BOMB_BYTES, BOMB_RATIO, Npz, npy_of, shown
from woh_faiss.errors import InputError
from woh_faiss.validate import listed

#: MATLAB's classes of plain numbers.
_NUMBERS = ("double", "single", "logical", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))


class Rows(Protocol):
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

    def rows(self, name: str) -> Rows:
        """A matrix of numbers, in slices where the format allows it."""


def open_mat(path: str | os.PathLike[str]) -> Mat:
    """The .mat file at `path`, by its first bytes.

    Raises
    ------
    InputError
        No such file, another format, a damaged one, or version 7.3 without h5py.
    """
    file = Path(os.fsdecode(path))
    start = _start(file)
    if start.startswith(b"\x89HDF"):
        raise InputError(
            f"{shown(file)} is HDF5 but not MATLAB's, so which way its matrices lie is not known; "
            "save them as .npy"
        )
    return _Mat73(file) if start.startswith(b"MATLAB 7.3") else _Mat5(file)


def open_rows(path: str | os.PathLike[str], variable: str | None = None) -> Rows:
    """The matrix in an .npy file (memory-mapped), an .npz or a .mat file, by content.

    Parameters
    ----------
    variable : str, optional
        Which one; not needed where there is only one matrix (.mat) or one called 'features' (.npz).

    Raises
    ------
    InputError
        The file is missing or damaged, or which matrix is meant is not clear: the message lists them.
    """
    file = Path(os.fsdecode(path))
    start = _start(file)
    if start.startswith(npy.MAGIC_PREFIX):
        with _read_errors(shown(file)), file.open("rb") as stream:
            return _matrix(npy_of(stream, shown(file), mapped=True), shown(file))
    if start.startswith(b"PK"):
        with _read_errors(shown(file)), file.open("rb") as stream:
            key = "features" if variable is None else variable
            npz = Npz(stream, shown(file), [key])
            if key not in npz.names:
                raise InputError(
                    f"{shown(file)} has no key {key!r}; it holds {listed(sorted(npz.names), 12)}"
                )
            return _matrix(npz.read(key), f"{shown(file)}: key {key!r}")
    mat = open_mat(file)
    if variable is None:
        matrices = [name for name, kind in mat.variables.items() if kind.split()[-1] in _NUMBERS]
        if len(matrices) != 1:
            raise InputError(f"{mat.where} holds {told(mat)}; say which is the features: variable='...'")
        variable = matrices[0]
    return mat.rows(variable)


def told(mat: Mat) -> str:
    """The variables of a file, for a message."""
    return listed([f"{name} ({kind})" for name, kind in mat.variables.items()], 12) or "no variables"


def _start(file: Path) -> bytes:
    with _read_errors(shown(file)):
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise InputError(f"{shown(file)} {what}; give an .npy, .npz or .mat file")
        with file.open("rb") as stream:
            return stream.read(16)


@contextmanager
def _read_errors(where: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error that follows a warning says enough
            yield
    except InputError:
        raise
    except Exception as error:  # SciPy and h5py raise nearly anything for bytes they did not expect
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise InputError(f"{where} cannot be read ({reason}); copy or write it again") from error


def _matrix(array: Any, where: str) -> NDArray[Any]:
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiub":
        found = f"{type(array).__name__} of shape {np.shape(array)}"
        raise InputError(f"{where} is {found}, expected a full matrix of real numbers, a row an item")
    return array


def _not_there(mat: Mat, name: str) -> InputError:
    return InputError(f"{mat.where} has no variable {name!r}; it holds {told(mat)}")


def _no_bomb(where: str, claimed: int, stored: int) -> None:
    """Before anything is allocated: deflate ends near 1032:1."""
    if claimed > max(BOMB_BYTES, BOMB_RATIO * stored):
        raise InputError(
            f"{where} claims {claimed} bytes and holds {stored}: it is damaged, or write it uncompressed"
        )


def _kind(shape: tuple[int, ...], name: str) -> str:
    return f"{' x '.join(map(str, shape))} {name}"


class _Mat5:
    """Version 4 to 7.2. A variable is read whole: SciPy can do no less."""

    def __init__(self, file: Path) -> None:
        from scipy.io import whosmat

        self._file, self.where = file, shown(file)
        with _read_errors(self.where):
            found = whosmat(file)
        names = [name for name, _, _ in found]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"{self.where} holds variable {min(twice)!r} twice; save it again")
        self._shapes = {name: shape for name, shape, _ in found}
        self._classes = {name: kind for name, _, kind in found}
        self.variables = {name: _kind(shape, kind) for name, shape, kind in found}

    def read(self, name: str) -> Any:
        from scipy.io import loadmat

        if name not in self.variables:
            raise _not_there(self, name)
        here = f"{self.where}: variable {name!r}"
        if self._classes[name] != "sparse":  # a number is at least a byte in the file
            _no_bomb(here, math.prod(self._shapes[name]), self._file.stat().st_size)
        with _read_errors(here):
            found = loadmat(self._file, variable_names=[name])[name]
            return _checked_sparse(found) if hasattr(found, "check_format") else found

    def rows(self, name: str) -> Rows:
        return _matrix(self.read(name), f"{self.where}: variable {name!r}")


class _Mat73:
    """Version 7.3: HDF5, which holds every matrix transposed. Open only while something is read."""

    def __init__(self, file: Path) -> None:
        try:
            import h5py
        except ImportError:
            raise InputError(
                f"{shown(file)} is a .mat file of version 7.3, which h5py reads: install woh-faiss[mat], or "
                "save it with -v7"
            ) from None
        self._path, self._h5py, self.where = file, h5py, shown(file)
        with self._opened(self.where) as root:
            # Links may lead to other files, which nobody named; #refs# are the cells of others.
            own = [n for n in root if isinstance(root.get(n, getlink=True), h5py.HardLink) and n[0] != "#"]
            self.variables: dict[str, str] = {name: _told73(root[name]) for name in own}

    def read(self, name: str) -> Any:
        if name not in self.variables:
            raise _not_there(self, name)
        here = f"{self.where}: variable {name!r}"
        with self._opened(here) as root:
            node = root[name]
            if "MATLAB_sparse" in node.attrs:
                return _sparse73(node, here)
            if self.variables[name].endswith(" cell"):
                refs = np.ravel(_whole(node, here))
                return np.array([_text73(root[ref], here) for ref in refs], dtype=np.str_)
            return _whole(node, here).T

    def rows(self, name: str) -> Rows:
        if name not in self.variables:
            raise _not_there(self, name)
        here = f"{self.where}: variable {name!r}"
        with self._opened(here) as root:
            node = root[name]
            if getattr(node, "ndim", 0) != 2 or node.dtype.kind not in "fiub":
                raise InputError(
                    f"{here} is {self.variables[name]}, expected a full matrix of real numbers, a row an item"
                )
            _checked_storage(node, here)
            return _Turned(self, name, tuple(node.shape)[::-1])

    def slice(self, name: str, rows: slice) -> NDArray[Any]:
        """Rows of a matrix that `rows` has checked."""
        with self._opened(f"{self.where}: variable {name!r}") as root:
            return np.ascontiguousarray(root[name][:, rows].T)

    @contextmanager
    def _opened(self, where: str) -> Iterator[Any]:
        with _read_errors(where), self._h5py.File(self._path, "r") as root:
            yield root


@dataclass(frozen=True, slots=True)
class _Turned:
    """Rows of a matrix that the file holds as columns."""

    mat: _Mat73
    name: str
    shape: tuple[int, ...]

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        return self.mat.slice(self.name, rows)


def _told73(node: Any) -> str:
    if "MATLAB_sparse" in node.attrs:
        return _kind((int(node.attrs["MATLAB_sparse"]), len(node["jc"]) - 1), "sparse")
    matlab = node.attrs.get("MATLAB_class", b"unknown")
    name = matlab.decode("ascii", "replace") if isinstance(matlab, bytes) else str(matlab)
    return _kind(tuple(getattr(node, "shape", ()))[::-1], name)


def _sparse73(node: Any, here: str) -> Any:
    from scipy.sparse import csc_matrix

    # Without entries MATLAB writes neither of the two.
    ir, data = (_whole(node[part], here) if part in node else np.empty(0) for part in ("ir", "data"))
    jc = _whole(node["jc"], here)
    shape = (int(node.attrs["MATLAB_sparse"]), len(jc) - 1)
    return _checked_sparse(csc_matrix((data, ir.astype(np.int64), jc.astype(np.int64)), shape=shape))


def _text73(node: Any, here: str) -> str:
    if "MATLAB_empty" in node.attrs:
        return ""
    return np.ravel(_whole(node, here)).astype("<u2").tobytes().decode("utf-16-le")


def _whole(node: Any, here: str) -> NDArray[Any]:
    _checked_storage(node, here)
    return np.asarray(node[()])


def _checked_sparse(matrix: Any) -> Any:
    """SciPy's own steps trust the indices, and write wherever damaged ones point."""
    matrix.check_format(full_check=True)
    return matrix


def _checked_storage(node: Any, here: str) -> None:
    if node.external is not None or node.is_virtual:
        raise InputError(f"{here} lies in other files; save it whole")
    _no_bomb(here, math.prod(node.shape) * node.dtype.itemsize, node.id.get_storage_size())
