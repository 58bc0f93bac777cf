"""Small pictures for pages: from keys that are paths of pictures to JPEGs.

Pillow is imported only when a picture is drawn. Keys may come from strangers: nothing outside
the folder that a user names is read, and whatever a file holds, there is a thumbnail or none, never an error.
"""

from __future__ import annotations

import base64
import io
import os
import stat
import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, NamedTuple

from .encoders.picture import readable, upright_rgb

#: Longest side of a thumbnail, in pixels, where nothing else is asked for.
SIDE = 128
#: Thumbnails that are kept: the same item often answers several queries.
KEPT = 1000
#: What is decoded at most, in pixels: 400 MB, whatever a small file claims.
MOST_PIXELS = 50_000_000


class Thumbnail(NamedTuple):
    """A JPEG with its size in pixels."""

    jpeg: bytes
    width: int
    height: int

    @property
    def uri(self) -> str:
        """The JPEG as a data: URI."""
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode()


class PictureFile(NamedTuple):
    """The plain file that a key names: its path in the folder, without links, and what changes with it."""

    root: str
    place: str
    modified: int
    size: int


class Thumbnails:
    """The pictures in `folder` that keys are paths of, and those at paths that were `given` as queries.

    Threads may share it. A file that changes is drawn again.

    Parameters
    ----------
    folder : Path, optional
    given : sequence of Path
    side : int
        Pixels of the longest side.
    """

    def __init__(self, folder: Path | None = None, given: Sequence[Path] = (), side: int = SIDE) -> None:
        self._given = {str(path): os.path.realpath(path) for path in given}
        self._root = None if folder is None else os.path.realpath(folder)
        self._has_pillow = find_spec("PIL") is not None
        self._drawn = lru_cache(KEPT)(partial(_drawn, side))
        self._files = self._shown = 0

    def of(self, key: str | None) -> Thumbnail | None:
        """The thumbnail of a key, or None: no such file, no picture, damaged, or too large to decode."""
        return self.drawn(self.file(key))

    def of_query(self, key: str | None) -> Thumbnail | None:
        """The same for a query's key: that of a picture that was asked with, wherever it is."""
        if key not in self._given:
            return self.of(key)
        return self.drawn(_file(*map(str, os.path.split(self._given[key]))))

    def drawn(self, file: PictureFile | None) -> Thumbnail | None:
        """The thumbnail of a file, or None, as `of`."""
        if file is None:
            return None
        self._files += 1
        thumbnail = self._drawn(file) if self._has_pillow else None
        self._shown += thumbnail is not None
        return thumbnail

    def file(self, key: str | None) -> PictureFile | None:
        """The plain file in the folder that a key names, links resolved; None if there is none in it."""
        if self._root is None or key is None or ".." in PurePath(key).parts:
            return None
        try:
            path = os.path.realpath(os.path.join(self._root, key))  # noqa: PTH118 - an absolute key stays
            if os.path.commonpath([self._root, path]) != self._root:
                return None
            return _file(self._root, os.path.relpath(path, self._root))
        except (OSError, ValueError):  # a key of any length, with any character, is asked for
            return None

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


def _file(root: str, place: str) -> PictureFile | None:
    try:
        found = os.stat(os.path.join(root, place))  # noqa: PTH116, PTH118 - of texts, and often
    except (OSError, ValueError):
        return None
    return PictureFile(root, place, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


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


def _drawn(side: int, source: PictureFile) -> Thumbnail | None:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oddities in metadata are not the reader's business
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with _opened(source.root, source.place) as file, Image.open(file, formats=readable()) as image:
                image.draft(None, (2 * side, 2 * side))  # a JPEG can be read at a fraction of its size
                if image.width * image.height > MOST_PIXELS:
                    return None
                small = upright_rgb(image, side)
            out = io.BytesIO()
            small.save(out, "JPEG", quality=82, optimize=True)  # a new image: no metadata goes along
    except Exception:  # Pillow's decoders raise nearly anything on a damaged file
        return None
    return Thumbnail(out.getvalue(), *small.size)
