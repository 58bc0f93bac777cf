"""MATLAB files of version 7.3, by h5py: HDF5 behind a header."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import text_array
from woh_faiss.io.npz import damage

from .variables import MatRows, check_expansion, kind_of, not_there, sparse_of


class Mat73:
    """Version 7.3: HDF5, which holds every matrix transposed. Open only while something is read."""

    def __init__(self, file: Path) -> None:
        try:
            import h5py
        except ImportError:
            raise InputError(
                f"{display_path(file)} is a .mat file of version 7.3, which h5py reads: install "
                "woh-faiss[mat], or save it with -v7"
            ) from None
        self._path, self._h5py, self.where = file, h5py, display_path(file)
        with self._opened(self.where) as root:
            # Links may lead to other files, which nobody named; #refs# are the cells of others.
            own = [n for n in root if isinstance(root.get(n, getlink=True), h5py.HardLink) and n[0] != "#"]
            self.variables: dict[str, str] = {name: _told73(root[name]) for name in own}

    def read(self, name: str) -> Any:
        """A variable, as `Mat.read`; cells only of text."""
        if name not in self.variables:
            raise not_there(self, name)
        here = f"{self.where}: variable {name!r}"
        with self._opened(here) as root:
            node = root[name]
            if "MATLAB_sparse" in node.attrs:
                return _sparse73(node, here)
            if self.variables[name].endswith(" cell"):
                refs = np.ravel(_whole(node, here))
                return text_array([_text73(root[ref], here) for ref in refs], "cells of text")
            return _whole(node, here).T

    def rows(self, name: str) -> MatRows:
        """Rows of a full matrix; each slice is read when it is asked for."""
        if name not in self.variables:
            raise not_there(self, name)
        here = f"{self.where}: variable {name!r}"
        with self._opened(here) as root:
            node = root[name]
            if getattr(node, "ndim", 0) != 2 or node.dtype.kind not in "fiub":
                raise InputError(
                    f"{here} is {self.variables[name]}, expected a full matrix of real numbers, a row an item"
                )
            checked_storage(node, here)
            return _Turned(self, name, tuple(node.shape)[::-1])

    def slice(self, name: str, rows: slice) -> NDArray[Any]:
        """Rows of a matrix that `rows` has checked."""
        with self._opened(f"{self.where}: variable {name!r}") as root:
            start, stop, _ = rows.indices(root[name].shape[1])
            budget.take(2 * (stop - start) * root[name].shape[0] * root[name].dtype.itemsize, "rows")
            return np.ascontiguousarray(root[name][:, rows].T)

    @contextmanager
    def _opened(self, where: str) -> Iterator[Any]:
        with damage(where), self._h5py.File(self._path, "r") as root:
            yield root


@dataclass(frozen=True, slots=True)
class _Turned:
    """Rows of a matrix that the file holds as columns."""

    mat: Mat73
    name: str
    shape: tuple[int, ...]

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        return self.mat.slice(self.name, rows)


def _told73(node: Any) -> str:
    if "MATLAB_sparse" in node.attrs:
        return kind_of((int(node.attrs["MATLAB_sparse"]), len(node["jc"]) - 1), "sparse")
    matlab = node.attrs.get("MATLAB_class", b"unknown")
    name = matlab.decode("ascii", "replace") if isinstance(matlab, bytes) else str(matlab)
    return kind_of(tuple(getattr(node, "shape", ()))[::-1], name)


def _sparse73(node: Any, here: str) -> Any:
    # Without entries MATLAB writes neither of the two.
    ir, data = (_whole(node[part], here) if part in node else np.empty(0) for part in ("ir", "data"))
    jc = _whole(node["jc"], here)
    return sparse_of(data, ir, jc, (int(node.attrs["MATLAB_sparse"]), len(jc) - 1))


def _text73(node: Any, here: str) -> str:
    if "MATLAB_empty" in node.attrs:
        return ""
    return np.ravel(_whole(node, here)).astype("<u2").tobytes().decode("utf-16-le")


def _whole(node: Any, here: str) -> NDArray[Any]:
    checked_storage(node, here)
    budget.take(math.prod(node.shape) * node.dtype.itemsize, "a variable")
    return np.asarray(node[()])


def checked_storage(node: Any, here: str) -> None:
    """InputError for data that lie in other files, or that claim far more than is stored."""
    if node.external is not None or node.is_virtual:
        raise InputError(f"{here} lies in other files; save it whole")
    if node.chunks is not None:  # HDF5 unpacks a chunk at a time, whole
        budget.take(math.prod(node.chunks) * node.dtype.itemsize, "a chunk of HDF5")
    check_expansion(here, math.prod(node.shape) * node.dtype.itemsize, node.id.get_storage_size())
