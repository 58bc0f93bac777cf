"""Durable file steps: append, truncate, write-then-rename, fsync of files and of their folder."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError

from . import schema

#: Suffix of a file that has not been renamed to its own name yet.
TEMPORARY = ".tmp"


def _nothing(name: str) -> None:
    pass


#: Called with "before NAME" and "after NAME" around every step that changes the disk; tests put a
#: process's death here.
on_step: Callable[[str], None] = _nothing


@contextmanager
def step(name: str) -> Iterator[None]:
    """One change of the disk, announced to `on_step` before and after."""
    on_step(f"before {name}")
    yield
    on_step(f"after {name}")


@contextmanager
def failures(folder: Path, doing: str) -> Iterator[None]:
    """Operating-system errors inside (a full disk, no permission) as a one-line StoreError."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""  # a failing write does not name its file
        raise StoreError(
            f"cannot {doing} {folder}: {where}{error.strerror or error}; "
            "check free space and permissions, the index is as before"
        ) from error


def sync(file: IO[bytes], name: str) -> None:
    """Everything written to `file` is on the disk when this returns."""
    with step(f"fsync {name}"):
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """New names in `folder` survive a power cut once this returns."""
    with step("fsync folder"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def publish(unfinished: Path, final: Path) -> None:
    """The folder `unfinished` under its own name, which survives a power cut once this returns."""
    with failures(final, "create"):
        with step(f"rename {final.name}"):
            unfinished.rename(final)
        sync_folder(final.parent)


def append(path: Path, end: int, array: NDArray[Any]) -> None:
    """The bytes of a C-contiguous array written at offset `end`, and fsynced."""
    with path.open("r+b") as file:
        file.seek(end)
        with step(f"write {path.name}"):
            file.write(array.data if array.size else b"")
            file.flush()
        sync(file, path.name)


def write(path: Path, head: bytes, blocks: Iterable[NDArray[Any]]) -> None:
    """A whole new file, fsynced: `head`, then the arrays' bytes."""
    with path.open("wb") as file:
        with step(f"write {path.name}"):
            file.write(head)
            for block in blocks:
                file.write(np.ascontiguousarray(block).data if block.size else b"")
            file.flush()
        sync(file, path.name)


def truncate(path: Path, end: int) -> None:
    """Cut what an update that died left behind offset `end`; StoreError if the file ends before it."""
    size = file_size(path)
    if size < end:
        raise short(path, size, end)
    if size > end:
        with path.open("r+b") as file:
            with step(f"truncate {path.name}"):
                file.truncate(end)
            sync(file, path.name)


def replace(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a whole file under a temporary name, fsync it, and rename it to `path`."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        with step(f"write {path.name}"):
            write(file)
            file.flush()
        sync(file, path.name)
    with step(f"rename {path.name}"):
        temporary.replace(path)


def file_size(path: Path) -> int:
    """Bytes of a file; StoreError if it is missing, or a pipe, which would be waited on for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; restore it from a backup, or build the index again") from None
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file; put the file there that belongs to the index")
    return found.st_size


class _Unshared(io.FileIO):
    """A file for reading whose position is the object's: a forked child's reads do not move its parent's."""

    _at = 0

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self.fileno(), [buffer], self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: os.fstat(self.fileno()).st_size}
        self._at = max(0, start[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    read = io.RawIOBase.read  # type: ignore[assignment]  # made of readinto, as readall
    readall = io.RawIOBase.readall


def open_regular(path: Path) -> io.BufferedReader:
    """A file for reading; StoreError if it is no regular file, FileNotFoundError if it is missing."""
    if path.exists():
        file_size(path)
    return io.BufferedReader(_Unshared(path))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short(path: Path, size: int, expected: int) -> StoreError:
    """The error for a file that ends before the committed end."""
    return StoreError(
        f"{path} has {size} bytes, the catalogue counts {expected}: the file was cut; "
        "restore it from a backup, or build the index again"
    )


def newest(folder: Path, name: str, generation: int) -> Path:
    """Where codes or ids of `generation` are: still pending, or in place of the ones before.

    Which generation is in place no name says: ask the catalogue again once the file is open.
    """
    waiting = folder / schema.pending(name, generation)
    return waiting if generation and waiting.exists() else folder / name
