"""The writers' lock of an index folder, and whether a COMMIT is in doubt: docs/design.md, "The commit".

`catalog.db-writer` exists while somebody writes, and after a writer that died. The one process that
writes holds its lock (`flock`); its one line says which process that is, and whether a COMMIT is under way.
If it still says so when the lock is free, the COMMIT is in doubt: its frames may be in SQLite's log without
being counted, and SQLite counts them when it recovers the log. Nobody may rely on the state before, or cut a
file to it, until another COMMIT has taken the place of those frames.

Two locks decide who resolves that. The writers' lock is held for a whole update. The turn, a lock on the
folder, is held for moments: by whoever tries to get the writers' lock, and until what was in doubt is
resolved. So whoever has the turn and finds the writers' lock taken knows that a COMMIT under way is its
holder's own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from woh_faiss.errors import StoreError

from . import files, schema

#: Exists while an update is made. What it says of a process is a hint for a message.
NAME = f"{schema.CATALOG}-writer"
_IDLE, _COMMITTING = "writing", "committing"
#: Bytes of its line, always: it is overwritten by one write.
_SIZE = 96
#: Seconds between two tries for a lock.
_RETRY = 0.01

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """The writers' lock, held; `free` gives it back.

    Attributes
    ----------
    in_doubt : bool
        Whether a COMMIT, this writer's or that of one who died, may or may not have happened.
    writable : bool
        False for a reader that may not write: it can see what is in doubt, not resolve it.
    """

    def __init__(self, folder: Path, file: int, writable: bool) -> None:
        self._folder, self._file, self.writable = folder, file, writable
        line = _line(file)
        self.in_doubt = bool(line) and line[2:3] != [_IDLE]
        if writable and not self.in_doubt:
            self._write(_IDLE)
        _held.add(self)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """What is inside is one COMMIT: in doubt until it has returned."""
        # A reader resolves what is in doubt here, not in a copy of this folder.
        catalogue = (self._folder / schema.CATALOG).lstat()
        self._write(f"{_COMMITTING} {catalogue.st_dev} {catalogue.st_ino}")
        self.in_doubt = True
        yield
        self.resolved()

    def resolved(self) -> None:
        """The log counts all of its frames: the newest state is certain."""
        self.in_doubt = False
        with suppress(OSError):  # left as it is, it costs the next one a COMMIT
            self._write(_IDLE)

    def _write(self, text: str) -> None:
        line = f"{os.getpid()} {int(time.time())} {text}".encode("ascii").ljust(_SIZE - 1) + b"\n"
        os.pwrite(self._file, line, 0)

    def free(self) -> None:
        """Give the lock back; the file goes, too, unless something is in doubt."""
        if self._file < 0:  # in a child that was forked meanwhile
            return
        if self.writable and not self.in_doubt:
            with suppress(OSError):
                (self._folder / NAME).unlink()
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)  # a lock of flock goes with the last descriptor


def _forget() -> None:
    """In a forked child: the lock is its parent's alone."""
    for lock in list(_held):
        if lock._file >= 0:
            lock._close()


os.register_at_fork(after_in_child=_forget)


def take(folder: Path, timeout: float, resolve: Callable[[WriterLock], None]) -> WriterLock | None:
    """The lock, what was left in doubt resolved; None if another writer held it for `timeout` seconds.

    Raises
    ------
    OSError
        The file cannot be made or locked.
    StoreError
        It is not a plain file; or what `resolve` raises, then the lock is free again.
    """
    end = time.monotonic() + timeout
    while True:
        with _turn(folder, end) as mine:
            lock = _tried(folder, os.O_RDWR | os.O_CREAT) if mine else None
            if lock is not None:
                return _resolved(lock, resolve)
        if time.monotonic() >= end:
            return None
        time.sleep(min(_RETRY, max(0, end - time.monotonic())))


def settle_doubt(folder: Path, patience: float, resolve: Callable[[WriterLock], None]) -> None:
    """For a reader: if a writer died inside COMMIT, have it resolved; else next to nothing.

    A COMMIT under way in a process that lives is none of a reader's business. StoreError where the lock
    cannot be opened, as on a full disk.
    """
    try:
        file = files.descriptor(folder / NAME, os.O_RDONLY)
    except OSError:  # there is none, or it is not for us
        return
    try:
        doubtful = _is_in_doubt_here(folder, _line(file))
    finally:
        os.close(file)
    if not doubtful:
        return
    with (
        files.failures(folder, "resolve the last commit of"),
        _turn(folder, time.monotonic() + patience) as mine,
    ):
        lock = _reader_tried(folder) if mine else None
        if lock is not None:
            _resolved(lock, resolve).free()


@contextmanager
def no_writer(folder: Path, patience: float) -> Iterator[bool]:
    """Whether nobody writes; if so, nobody begins to while the block runs. Nothing is written for it."""
    with _turn(folder, time.monotonic() + patience) as mine:
        yield mine and not _is_held(folder)


def _is_held(folder: Path) -> bool:
    try:
        file = files.descriptor(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _resolved(lock: WriterLock, resolve: Callable[[WriterLock], None]) -> WriterLock:
    try:
        if lock.in_doubt:
            resolve(lock)
    except BaseException:
        lock.free()
        raise
    return lock


def holder(folder: Path) -> tuple[int, int] | None:
    """Process id, and seconds since 1970, of who says to be writing; it may be of one who died."""
    try:
        file = files.descriptor(folder / NAME, os.O_RDONLY)
    except (OSError, StoreError):
        return None
    try:
        pid, since, doing, *_ = _line(file)
        return (int(pid), int(since)) if doing in (_IDLE, _COMMITTING) else None
    except ValueError:
        return None
    finally:
        os.close(file)


def _reader_tried(folder: Path) -> WriterLock | None:
    """The lock for a reader, which may have no right to write; the file must be there."""
    try:
        return _tried(folder, os.O_RDWR)
    except PermissionError:
        return _tried(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno == errno.EROFS:
            return _tried(folder, os.O_RDONLY)
        if error.errno == errno.ENOENT:  # whoever was in doubt is through
            return None
        raise


def _tried(folder: Path, flags: int) -> WriterLock | None:
    """The lock, if it is free and the file it is of is still there under its name."""
    file = files.descriptor(folder / NAME, flags)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = (folder / NAME).lstat()
        if os.path.samestat(there, os.fstat(file)):
            return WriterLock(folder, file, flags & os.O_RDWR != 0)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _line(file: int) -> list[str]:
    return os.pread(file, _SIZE, 0).decode("ascii", "replace").split()


def _is_in_doubt_here(folder: Path, line: list[str]) -> bool:
    """Whether the line speaks of a COMMIT in this folder's catalogue, not in the one it was copied from."""
    if line[2:3] != [_COMMITTING]:
        return False
    catalogue = (folder / schema.CATALOG).lstat()
    return line[3:] == [str(catalogue.st_dev), str(catalogue.st_ino)]


@contextmanager
def _turn(folder: Path, end: float) -> Iterator[bool]:
    """The turn, waited for until `end`; False if it was not to be had by then."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(min(_RETRY, max(0, end - time.monotonic())))
            else:
                yield True
                return
    finally:
        os.close(handle)
