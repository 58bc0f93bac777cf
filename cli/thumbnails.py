"""Small pictures for the page of answers: from keys that are paths of pictures to data: URIs.

Pillow is imported only here, and only when a key names a file. Keys may come from strangers: nothing outside
the folder that a user names is read, and whatever a file holds, there is a thumbnail or none, never an error.
"""

from __future__ import annotations

import base64
import io
import os
import stat
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from PIL import Image as PillowImage

#: Longest side of a thumbnail, in pixels.
SIDE = 128
#: Thumbnails that are kept: the same item often answers several queries.
KEPT = 1000
#: What is decoded. Not all that Pillow can read: it runs Ghostscript on a file that says it is EPS.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")


#: What is decoded at most, in pixels: 400 MB, whatever a small file claims.
MOST_PIXELS = 50_000_000


class Thumbnail(NamedTuple):
    """A JPEG as a data: URI, with its size in pixels."""

    uri: str
    width: int
    height: int


class Thumbnails:
    """The pictures in `folder` that keys are paths of; without a folder there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._root = None if folder is None else os.path.realpath(folder)
        self._has_pillow = find_spec("PIL") is not None
        self._drawn = lru_cache(KEPT)(_drawn)
        self._files = self._shown = 0

    def of(self, key: str | None) -> Thumbnail | None:
        """The thumbnail of a key, or None: no such file, no picture, damaged, or too large to decode."""
        place = None if key is None else self._place(key)
        if self._root is None or place is None:
            return None
        self._files += 1
        thumbnail = self._drawn(self._root, place) if self._has_pillow else None
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
            with _opened(root, place) as file, Image.open(file, formats=_readable()) as image:
                image.draft(None, (2 * SIDE, 2 * SIDE))  # a JPEG can be read at a fraction of its size
                if image.width * image.height > MOST_PIXELS:
                    return None
                small = _on_white(image)
            out = io.BytesIO()
            small.save(out, "JPEG", quality=82, optimize=True)  # a new image: no metadata goes along
    except Exception:  # Pillow's decoders raise nearly anything on a damaged file
        return None
    return Thumbnail("data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode(), *small.size)


def _on_white(image: PillowImage.Image) -> PillowImage.Image:
    """The first frame, upright, at most SIDE a side, as RGB on white."""
    from PIL import Image, ImageOps

    if image.mode in ("1", "P", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # else shrinking would take every other pixel, or miss what is clear
    elif image.mode[0] in "IF":
        image = image.convert("F")
    image.thumbnail((SIDE, SIDE))
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":  # 16 bits and more have no white of their own: take the lightest pixel's
        low, high = cast(tuple[float, float], image.getextrema())
        scale = 255 / ((high - low) or 1)
        image = image.point(lambda value: value * scale - low * scale).convert("L")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")


@lru_cache(1)
def _readable() -> list[str]:
    """Those of FORMATS that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]
