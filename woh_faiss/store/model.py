"""Model files: a deterministic .npz of named arrays, and its lazy reader."""

from __future__ import annotations

import threading
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, StoreError


def check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """InputError unless every value is an array that can be written without pickle."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(
                f"model array {name!r} is {found}, expected a NumPy array without Python objects"
            )


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """An uncompressed .npz whose bytes depend on the arrays only (np.savez stamps the time)."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, arrays[name], allow_pickle=False)


def write_npy(file: IO[bytes], array: NDArray[Any]) -> None:
    """A plain .npy file."""
    np.lib.format.write_array(file, array, allow_pickle=False)


class Model(Mapping[str, NDArray[Any]]):
    """The arrays of one model file by name; each is read, and its CRC checked, when asked for.

    The file stays open, so a writer that removes old models takes nothing from a reader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()  # one file position for all threads
        self._npz: np.lib.npyio.NpzFile | None = None

    def _archive(self) -> np.lib.npyio.NpzFile:
        if self._npz is None:
            try:
                self._npz = np.lib.npyio.NpzFile(self._file, own_fid=False, allow_pickle=False)
            except (zipfile.BadZipFile, ValueError, OSError) as error:
                raise self._damaged(error) from error
        return self._npz

    def __getitem__(self, name: str) -> NDArray[Any]:
        with self._lock:
            archive = self._archive()
            if name not in archive.files:
                raise KeyError(name)
            try:
                array: NDArray[Any] = archive[name]
            except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
                raise self._damaged(error) from error
            return array

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._archive().files))

    def __len__(self) -> int:
        with self._lock:
            return len(self._archive().files)

    def _damaged(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.path} is damaged ({_one_line(error)}); "
            "restore it from a backup, or roll back to an earlier round"
        )


def read_npy(path: Path) -> NDArray[Any]:
    """A .npy file, memory-mapped; StoreError if it is missing or damaged."""
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise StoreError(f"{path} cannot be read ({_one_line(error)}); restore it from a backup") from error
    return mapped


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
