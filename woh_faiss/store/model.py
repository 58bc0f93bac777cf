"""Model files: an .npz of named arrays, read lazily."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, MemoryBudgetError, StoreError
from woh_faiss.io import npz

from . import files, fork_safety


def check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """InputError unless every value is an array that can be written without pickle."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(
                f"model array {name!r} is {found}, expected a NumPy array without Python objects"
            )


def write_npy(file: IO[bytes], array: NDArray[Any]) -> None:
    """A plain .npy file."""
    np.lib.format.write_array(file, array, allow_pickle=False)


class _Held:
    """A file that stays open: a writer that removes it takes nothing from a reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = files.open_regular(path)
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()  # one file position for all threads

    def check(self, digest: str | None) -> None:
        """StoreError unless the SHA-256 of the file is `digest`."""
        with fork_safety.gate, self._lock, files.failures(self.path.parent, "read"):
            self._file.seek(0)
            if hashlib.file_digest(self._file, "sha256").hexdigest() != digest:
                raise self._another()

    def _another(self) -> StoreError:
        return StoreError(
            f"{self.path} is damaged (its SHA-256 is not the one in the catalogue); restore it from a backup"
        )


class Model(_Held, Mapping[str, NDArray[Any]]):
    """The arrays of one model file by name; each is read, and its CRC checked, when asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._npz: npz.Npz | None = None

    def _archive(self) -> npz.Npz:
        if self._npz is None:
            with self.damage():
                self._npz = npz.Npz(self._file, "the archive")
        return self._npz

    @property
    def digest(self) -> str:
        """What tells this file from any other, its arrays not read: `Npz.digest`."""
        with fork_safety.gate, self._lock, self.damage():
            return self._archive().digest()

    def check_identity(self, digest: str | None) -> None:
        """StoreError unless this is the file that was committed, each array as far as it is read."""
        if self.digest != digest:
            raise self._another()

    def check(self, digest: str | None) -> None:
        """StoreError unless this is the file that was committed, every array of it."""
        self.check_identity(digest)
        with fork_safety.gate, self._lock, self.damage():
            self._archive().check()

    def __getitem__(self, name: str) -> NDArray[Any]:
        with fork_safety.gate, self._lock:
            archive = self._archive()
            if name not in archive.names:
                raise KeyError(name)
            with self.damage():
                return archive.read(name)

    def __iter__(self) -> Iterator[str]:
        with fork_safety.gate, self._lock:
            return iter(self._archive().names)

    def __len__(self) -> int:
        with fork_safety.gate, self._lock:
            return len(self._archive().names)

    @contextmanager
    def damage(self) -> Iterator[None]:
        """What goes wrong inside for want of an array, or with one, as a StoreError about this file."""
        try:
            yield
        except MemoryBudgetError as error:
            raise StoreError(f"{self.path}: {error}") from error
        except (OSError, MemoryError) as error:  # which say nothing of its bytes
            raise StoreError(
                f"{self.path} cannot be read ({_reason(error)}); check its disk and the memory that is free, "
                "'woh-index verify' tells whether it is damaged"
            ) from error
        except (InputError, *_FAULTS) as error:
            raise StoreError(
                f"{self.path} is damaged ({_reason(error)}); "
                "restore it from a backup, or roll back to an earlier round"
            ) from error


#: What arrays of unexpected names, shapes and types make Python and NumPy raise.
_FAULTS = (KeyError, IndexError, TypeError, ValueError, ArithmeticError)


class Npy(_Held):
    """A .npy file, memory-mapped if it is large."""

    def check(self, digest: str | None) -> None:
        """As the base class; a file that is longer than its header says is not read to its end."""
        self.read()
        super().check(digest)

    def read(self) -> NDArray[Any]:
        """The array; StoreError if the file is damaged."""
        try:
            with fork_safety.gate, self._lock:
                return npz.npy_of(self._file, "the array", mapped=True)
        except InputError as error:
            raise StoreError(
                f"{self.path} cannot be read ({_reason(error)}); restore it from a backup"
            ) from error


def _reason(error: Exception) -> str:
    """What is wrong, without the advice, which is for chunk files."""
    if isinstance(error, KeyError):
        return f"it has no array {error}"
    text = str(error).split("; ")[0]
    return text or type(error).__name__
