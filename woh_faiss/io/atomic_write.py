"""User files, written whole or not at all; `store/files.py` has those of an index folder."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def write_whole(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """A file for bytes that gets the name `path` once the block is through; on any error `path` is as it was.

    It is on the disk then; until then it lies beside `path`, with `kind` in its name, which nobody can guess.
    A link is written through: what it leads to is replaced. Mode and, where that may be, owner of a file that
    is replaced are kept. Raises OSError where it cannot be written.
    """
    final = Path(os.path.realpath(path))
    # A short name of its own: `path` may have as many letters as a name may have.
    temporary = final.with_name(f".woh-index-{kind}-{secrets.token_hex(8)}.tmp")
    try:
        with exclusive(temporary, like=final) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else a power cut may bring the old file back
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def exclusive(path: Path, like: Path) -> IO[bytes]:
    """A new file for reading and writing bytes, with the mode and owner of `like` if that is there.

    FileExistsError where anything has the name, a link too: nothing that was planted is opened.
    """
    try:
        old = like.stat()
    except FileNotFoundError:
        old = None
    mode = 0o666 if old is None else 0o600  # the umask applies; never wider than what is replaced
    file = open(path, "x+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode))  # noqa: SIM115
    try:
        if old is not None:
            with suppress(PermissionError):  # only root gives a file away
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
    except BaseException:
        file.close()
        raise
    return file
