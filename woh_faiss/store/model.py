"""Model files: a deterministic .npz of named arrays, and its lazy reader."""

from __future__ import annotations

import io
import os
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


class _Held:
    """A file that stays open: a writer that removes it takes nothing from a reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()  # one file position for all threads


class Model(_Held, Mapping[str, NDArray[Any]]):
    """The arrays of one model file by name; each is read, and its CRC checked, when asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._zip: zipfile.ZipFile | None = None

    def _archive(self) -> zipfile.ZipFile:
        if self._zip is None:
            try:
                self._zip = zipfile.ZipFile(self._file)
            except Exception as error:  # on damaged bytes zipfile and NumPy raise anything
                raise self.damaged(error) from error
        return self._zip

    def __getitem__(self, name: str) -> NDArray[Any]:
        with self._lock:
            archive = self._archive()
            if name not in self._names(archive):
                raise KeyError(name)
            try:
                # Whole first: a damaged header that asks for less would end before the CRC is compared.
                member = io.BytesIO(archive.read(f"{name}.npy"))
                array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
            except Exception as error:  # on damaged bytes zipfile and NumPy raise anything
                raise self.damaged(error) from error
            return array

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(self._names(self._archive()))

    def __len__(self) -> int:
        with self._lock:
            return len(self._names(self._archive()))

    @staticmethod
    def _names(archive: zipfile.ZipFile) -> list[str]:
        return [name.removesuffix(".npy") for name in archive.namelist()]

    def damaged(self, error: Exception) -> StoreError:
        """What to say of the file where its content, or an array's absence, raised `error`."""
        return StoreError(
            f"{self.path} is damaged ({_one_line(error)}); "
            "restore it from a backup, or roll back to an earlier round"
        )


class Npy(_Held):
    """A .npy file, memory-mapped when asked for."""

    def read(self) -> NDArray[Any]:
        """The array; StoreError if the file is damaged."""
        try:
            with self._lock:
                self._file.seek(0)
                if (version := np.lib.format.read_magic(self._file)) != (1, 0):
                    raise ValueError(f"version {version}")
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(self._file)
                if dtype.hasobject:
                    raise ValueError("Python objects")
                order: Any = "F" if fortran else "C"
                array = np.memmap(self._file, dtype, "r", self._file.tell(), shape, order)
                size = os.fstat(self._file.fileno()).st_size
                if size != array.offset + array.nbytes:
                    raise ValueError(f"shape {shape} and dtype {dtype} do not make {size} bytes")
                return array
        except Exception as error:  # on damaged bytes zipfile and NumPy raise anything
            raise StoreError(
                f"{self.path} cannot be read ({_one_line(error)}); restore it from a backup"
            ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
