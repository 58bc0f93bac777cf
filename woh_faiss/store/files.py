"""Durable file steps: append, truncate, write-then-rename, fsync of files and of their folder."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError
from woh_faiss.io import atomic_write

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
    """The folder `unfinished` under its own name, which survives a power cut once this returns.

    An empty folder of that name gives its place, mode and, where that may be, owner.
    """
    with failures(final, "create"):
        if final.exists():
            old = final.stat()
            with suppress(PermissionError):  # only root gives a folder away
                os.chown(unfinished, old.st_uid, old.st_gid)
            unfinished.chmod(stat.S_IMODE(old.st_mode))
        with step(f"rename {final.name}"):
            unfinished.rename(final)
        sync_folder(final.parent)


def plain(path: Path | str) -> bool:
    """Whether there is a file of that name; StoreError if it is a link, a folder, a pipe or a device."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise _not_plain(path, found.st_mode)
    return True


def _not_plain(path: Path | str, mode: int) -> StoreError:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
    what = kinds.get(stat.S_IFMT(mode), "a socket or a device")
    return StoreError(
        f"{path} is {what}, expected a plain file; move it elsewhere, "
        "and put the file there that belongs to the index, if one does"
    )


def descriptor(path: Path | str, flags: int) -> int:
    """A plain file opened by `os.open`; whatever takes its name after `plain` has looked is refused, too."""
    plain(path)
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_plain(path, mode)
    return handle


def open_member(path: Path, mode: str = "rb") -> IO[bytes]:
    """A file of an index folder, opened once and never through a link: all of the store opens files so.

    Parameters
    ----------
    path : Path
        The folder may be reached through links, the file may not.
    mode : "rb", "r+b" or "xb"
        A file that is to be written whole is a new one: see `open_new`.

    Raises
    ------
    StoreError
        It is not a plain file.
    OSError
        It is missing, or may not be opened.
    """
    return open(path, mode, opener=descriptor)


def open_new(path: Path, like: Path) -> IO[bytes]:
    """A new file of an index folder with the mode of `like`; what has its name is unlinked first."""
    with _naming(path):
        path.unlink(missing_ok=True)
    return atomic_write.exclusive(path, like)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is wrong with a name that cannot be given away: there may be a folder."""
    try:
        yield
    except OSError:
        plain(path)
        raise


def append(path: Path, end: int, array: NDArray[Any]) -> None:
    """The bytes of a C-contiguous array written at offset `end`, and fsynced."""
    with open_member(path, "r+b") as file:
        file.seek(end)
        with step(f"write {path.name}"):
            file.write(array.data if array.size else b"")
            file.flush()
        sync(file, path.name)


def write(path: Path, head: bytes, blocks: Iterable[NDArray[Any]], like: Path) -> None:
    """A whole new file with the mode of `like`, fsynced: `head`, then the arrays' bytes."""
    with open_new(path, like) as file:
        with step(f"write {path.name}"):
            file.write(head)
            for block in blocks:
                file.write(np.ascontiguousarray(block).data if block.size else b"")
            file.flush()
        sync(file, path.name)


def truncate(path: Path, end: int) -> None:
    """Cut what an update that died left behind offset `end`; StoreError if the file ends before it."""
    with existing(path), open_member(path, "r+b") as file:
        cut(file, path, end)


def cut(file: IO[bytes], path: Path, end: int) -> None:
    """`truncate` of a file that is open already."""
    size = os.fstat(file.fileno()).st_size
    if size < end:
        raise short(path, size, end)
    if size > end:
        with step(f"truncate {path.name}"):
            file.truncate(end)
        sync(file, path.name)


def replace(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a whole file under a temporary name, fsync it, and rename it to `path`."""
    temporary = path.with_name(path.name + TEMPORARY)
    with open_new(temporary, like=path) as file:
        with step(f"write {path.name}"):
            write(file)
            file.flush()
        sync(file, path.name)
    with step(f"rename {path.name}"), _naming(path):
        temporary.replace(path)


@contextmanager
def existing(path: Path) -> Iterator[None]:
    """A StoreError in place of FileNotFoundError, for a file that has to be there."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; restore it from a backup, or build the index again") from None


def file_size(path: Path) -> int:
    """Bytes of a file; StoreError if it is missing or not a plain file."""
    with existing(path), open_member(path) as file:
        return os.fstat(file.fileno()).st_size


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
    """`open_member` for reading, with a position that a forked child does not share."""
    return io.BufferedReader(_Unshared(path, opener=descriptor))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open_regular(path) as file:
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
    return waiting if generation and plain(waiting) else folder / name
