"""Matrices in .npy, .npz and .mat files, told apart by their first bytes.

Knows files, not hashing papers: `chunks.py` says what the variables are. None of the formats needs a
pickle; of MATLAB's objects and functions nothing is read.
"""

from __future__ import annotations

import os
from pathlib import Path

from numpy.lib import format as npy

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import Npz, damage, npy_of
from woh_faiss.validate import listed

from .mat5 import Mat5
from .mat73 import Mat73
from .variables import NUMBERS, Mat, MatRows, full_matrix, told


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
            f"{display_path(file)} is HDF5 but not MATLAB's, so which way its matrices lie is not known; "
            "save them as .npy"
        )
    return Mat73(file) if start.startswith(b"MATLAB 7.3") else Mat5(file)


def open_rows(path: str | os.PathLike[str], variable: str | None = None) -> MatRows:
    """The matrix in an .npy file (memory-mapped if it is large), an .npz or a .mat file, by content.

    Parameters
    ----------
    variable : str, optional
        Which one; not needed where there is only one matrix (.mat) or one called 'features' (.npz).

    Raises
    ------
    InputError
        The file is missing or damaged, or which matrix is meant is not clear: the message lists them.
    """
    with budget.reading(display_path(path)):
        return _rows_of(Path(os.fsdecode(path)), variable)


def _rows_of(file: Path, variable: str | None) -> MatRows:
    start = _start(file)
    if start.startswith(npy.MAGIC_PREFIX):
        with damage(display_path(file)), file.open("rb") as stream:
            return full_matrix(npy_of(stream, display_path(file), mapped=True), display_path(file))
    if start.startswith(b"PK"):
        with damage(display_path(file)), file.open("rb") as stream:
            key = "features" if variable is None else variable
            npz = Npz(stream, display_path(file), [key])
            if key not in npz.names:
                raise InputError(
                    f"{display_path(file)} has no key {key!r}; it holds {listed(sorted(npz.names), 12)}"
                )
            return full_matrix(npz.read(key), f"{display_path(file)}: key {key!r}")
    mat = open_mat(file)
    if variable is None:
        matrices = [name for name, kind in mat.variables.items() if kind.split()[-1] in NUMBERS]
        if len(matrices) != 1:
            raise InputError(f"{mat.where} holds {told(mat)}; say which is the features: variable='...'")
        variable = matrices[0]
    return mat.rows(variable)


def _start(file: Path) -> bytes:
    with damage(display_path(file)):
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise InputError(f"{display_path(file)} {what}; give an .npy, .npz or .mat file")
        with file.open("rb") as stream:
            return stream.read(128)
