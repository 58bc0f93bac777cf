"""Files that people name, written whole or not at all. An index folder's own are `store/files.py`'s."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """A file for bytes that gets the name `path` once the block is through; on any error `path` is as it was.

    It is on the disk then; until then it lies beside `path`, with `kind` in its name. Raises OSError
    where that cannot be.
    """
    # A short name of its own: `path` may have as many letters as a name may have.
    temporary = path.with_name(f".woh-index-{kind}-{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else a power cut may bring the old file back
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)
