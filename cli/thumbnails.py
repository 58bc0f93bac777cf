"""Small pictures for the page of answers: from keys that are paths of pictures to data: URIs.

Pillow is imported only when a key names a file. Keys may come from strangers: nothing outside
the folder that a user names is read, and whatever a file holds, there is a thumbnail or none, never an error.
"""

from __future__ import annotations

import base64
import io
import os
import stat
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, NamedTuple

from woh_faiss.encoders.picture import readable, upright_rgb

#: Longest side of a thumbnail, in pixels.
SIDE = 128
#: Thumbnails that are kept: the same item often answers several queries.
KEPT = 1000
#: What is decoded at most, in pixels: 400 MB, whatever a small file claims.
MOST_PIXELS = 50_000_000


class Thumbnail(NamedTuple):
    """A JPEG as a data: URI, with its size in pixels."""

    uri: str
    width: int
    height: int


class Thumbnails:
    """The pictures in `folder` that keys are paths of, and those at paths that were `given` as queries."""

    def __init__(self, folder: Path | None = None, given: Sequence[Path] = ()) -> None:
        self._given = {str(path): os.path.realpath(path) for path in given}
        self._root = None if folder is None else os.path.realpath(folder)
        self._has_pillow = find_spec("PIL") is not None
        self._drawn = lru_cache(KEPT)(_drawn)
        self._files = self._shown = 0

    def of(self, key: str | None) -> Thumbnail | None:
        """The thumbnail of a key, or None: no such file, no picture, damaged, or too large to decode."""
        place = None if key is None else self._place(key)
        if self._root is None or place is None:
            return None
        return self._shown_from(self._root, place)

    def of_query(self, key: str | None) -> Thumbnail | None:
        """The same for a query's key: that of a picture that was asked with, wherever it is."""
        if key not in self._given:
            return self.of(key)
        return self._shown_from(*map(str, os.path.split(self._given[key])))

    def _shown_from(self, root: str, place: str) -> Thumbnail | None:
        self._files += 1
        thumbnail = self._drawn(root, place) if self._has_pillow else None
        self._shown += thumbnail is not None
        return thumbnail

    def note(self) -> str:
        """What to say, if anything, when no picture could be shown: why, and what to do."""
        if self._shown:
            return ""
        if not self._files:
            where = "here" if self._root is None else f"in {self._root}"
            return f"; no key is a picture's path {where}: --images FOLDER says where pictures are"
        if not self._has_pillow:
            return "; pictures need Pillow, which is not installed: pip install 'woh-faiss[html]'"
        return "; the files that keys are paths of hold no picture that can be read"

    def _place(self, key: str) -> str | None:
        """The path below the folder, without links, of the file that a key names; None if it is elsewhere."""
        if self._root is None or ".." in PurePath(key).parts:
            return None
        try:
            path = os.path.realpath(os.path.join(self._root, key))  # noqa: PTH118 - an absolute key stays
            inside = os.path.commonpath([self._root, path]) == self._root
            return os.path.relpath(path, self._root) if inside and Path(path).is_file() else None
        except (OSError, ValueError):  # a key of any length, with any character, is asked for
            return None


def _opened(root: str, place: str) -> IO[bytes]:
    """The plain file at a path without links, opened so that none put there since is followed."""
    *folders, name = PurePath(place).parts
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(file).st_mode):  # a pipe or a device might never end
        os.close(file)
        raise OSError(f"{place} is not a plain file")
    return os.fdopen(file, "rb")


def _drawn(root: str, place: str) -> Thumbnail | None:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oddities in metadata are not the reader's business
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with _opened(root, place) as file, Image.open(file, formats=readable()) as image:
                image.draft(None, (2 * SIDE, 2 * SIDE))  # a JPEG can be read at a fraction of its size
                if image.width * image.height > MOST_PIXELS:
                    return None
                small = upright_rgb(image, SIDE)
            out = io.BytesIO()
            small.save(out, "JPEG", quality=82, optimize=True)  # a new image: no metadata goes along
    except Exception:  # Pillow's decoders raise nearly anything on a damaged file
        return None
    return Thumbnail("data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode(), *small.size)
