"""A picture file, decoded with care: what it claims is compared with limits first; one frame, upright, RGB.

Pillow is imported in the functions that need it.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError, short

if TYPE_CHECKING:
    from PIL.Image import Image

#: What is decoded. Not all that Pillow can read: it runs Ghostscript on a file that says it is EPS.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
#: Names of picture files in a folder; a file that is given by itself may have any.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
)
#: What is decoded at most, in pixels: 300 MB as RGB, whatever a small file claims.
MOST_PIXELS = 100_000_000
#: How many times longer one side may be than the other: of more, a model would see next to nothing.
MOST_RATIO = 100
#: Keywords of a file that are taken, and letters of all of them.
_KEYWORDS, _LETTERS = 1000, 1 << 20
_SUBJECT = "{http://purl.org/dc/elements/1.1/}subject"
_LI = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"
#: First bytes of files of `FORMATS`; of JPEG 2000, AVIF and WebP behind their sizes.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"\xff\x4f\xff\x51")
_BOXES = {b"ftypavif": 4, b"ftypavis": 4, b"jP  \r\n\x87\n": 4, b"WEBP": 8}


def is_picture(start: bytes) -> bool:
    """Whether a file that starts so (16 bytes and more) may be a picture that is decoded."""
    portable = start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace()
    boxed = any(start[at:].startswith(name) for name, at in _BOXES.items())
    return bool(start) and (start.startswith(_STARTS) or boxed or portable)


@contextmanager
def opened(source: Path | IO[bytes]) -> Iterator[Image]:
    """The picture in a file, or in bytes that can be read, its pixels not yet decoded.

    Raises
    ------
    InputError
        There is no plain file, no picture of `FORMATS` in it, or it is too large or too narrow; the message
        is what is wrong, without the path. What goes wrong while pixels are decoded inside is one, too.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oddities in metadata; sizes are compared below
            held = plain_file(source) if isinstance(source, Path) else nullcontext(source)
            with held as file, Image.open(file, formats=readable()) as image:
                _check_size(*image.size)
                yield image
    except InputError:
        raise
    except (Image.DecompressionBombError, UnidentifiedImageError) as error:
        bomb = isinstance(error, Image.DecompressionBombError)
        raise InputError(
            "it claims more pixels than are decoded" if bomb else "no picture that can be read"
        ) from None
    except MemoryError:
        raise InputError("it needs more memory than there is") from None
    except OSError as error:
        raise InputError(display_text(error.strerror or error)[:200]) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on a damaged file
        raise InputError(f"it is damaged: {display_text(error)[:200]}") from None


def plain_file(path: Path) -> IO[bytes]:
    """A file opened for reading; OSError for a pipe or a device, which might never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a plain file")
    return os.fdopen(handle, "rb")


def _check_size(width: int, height: int) -> None:
    size = f"{width:,} x {height:,} pixels"
    if width * height > MOST_PIXELS:
        raise InputError(f"it has {size}, at most {MOST_PIXELS:,} are decoded")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise InputError(f"it has {size}; one side may be {MOST_RATIO} times the other at most")


def picture(given: Any) -> Image:
    """A path or a Pillow image as an upright RGB image.

    Raises
    ------
    InputError
        The path is no picture that can be read, or what is given is neither.
    """
    if isinstance(given, str | os.PathLike):
        path = Path(os.fsdecode(given))
        try:
            with opened(path) as image:
                return upright_rgb(image)
        except InputError as error:
            raise InputError(f"{display_path(path)}: {error}") from None
    if hasattr(given, "convert") and hasattr(given, "getexif"):
        return upright_rgb(given)
    raise InputError(f"a picture is {short(given)}, expected a path or a Pillow image")


def upright_rgb(image: Image, side: int | None = None) -> Image:
    """The first frame, turned as its EXIF says, as RGB on white; with `side` no side has more pixels."""
    from PIL import Image, ImageOps

    if image.mode in ("1", "P", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # else shrinking would take every other pixel, or miss what is clear
    elif image.mode[0] in "IF":
        image = image.convert("F")
    if side is not None:
        image.thumbnail((side, side))
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":  # 16 bits and more have no white of their own: take the lightest pixel's
        low, high = cast(tuple[float, float], image.getextrema())
        scale = 255 / ((high - low) or 1)
        image = image.point(lambda value: value * scale - low * scale).convert("L")
    if image.mode in ("RGB", "L"):
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")


def is_animated(image: Image) -> bool:
    """Whether a picture has several frames that follow each other in time."""
    return image.format in ("GIF", "PNG", "WEBP", "AVIF") and bool(getattr(image, "is_animated", False))


@lru_cache(1)
def readable() -> list[str]:
    """Those of FORMATS that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def keywords(image: Image) -> list[str]:
    """The keywords that people gave a picture, each once: IPTC (2:25) and XMP (dc:subject).

    Raises
    ------
    InputError
        The XMP of the file is damaged, or there are more keywords than anybody gives.
    """
    found = [*dict.fromkeys([*_iptc(image), *_xmp(image)])]
    if len(found) > _KEYWORDS or sum(map(len, found)) > _LETTERS:
        raise InputError(f"it has {len(found):,} keywords, at most {_KEYWORDS:,} are read")
    return found


def _iptc(image: Image) -> list[str]:
    from PIL import IptcImagePlugin

    try:
        # Pillow's types leave out that any image may have it.
        info: Any = IptcImagePlugin.getiptcinfo(image) or {}  # type: ignore[arg-type]
    except Exception:  # of damaged metadata; the pixels may be sound
        return []
    values = info.get((2, 25), [])
    return [
        text for value in (values if isinstance(values, list) else [values]) if (text := _text(value).strip())
    ]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")  # what cameras and old programs write


def _xmp(image: Image) -> list[str]:
    from xml.etree import ElementTree

    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
    data = packet.encode() if isinstance(packet, str) else bytes(packet)
    data = data.strip(b"\0 \r\n\t")
    if not data:
        return []
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data or len(data) > 16 * _LETTERS:
        raise InputError("its XMP has a document type or is larger than any is; take it away")
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 - no entity can be in it
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError):
        raise InputError("its XMP is damaged; take it away, or tags from elsewhere") from None
    items = (li for subject in root.iter(_SUBJECT) for li in subject.iter(_LI))
    return [text for li in items if (text := (li.text or "").strip())]
