"""The page of answers: one HTML file without scripts or anything to fetch, written query by query."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.html_template import html_template
from woh_faiss.io.atomic_write import write_whole
from woh_faiss.thumbnails import SIDE, Thumbnails

if TYPE_CHECKING:
    from .answers import Answer

SUFFIXES = (".html", ".htm")


def check(path: Path, images: Path | None = None) -> None:
    """Refuse, before anything is searched, what `write` could not write at the end.

    Raises
    ------
    InputError
        The name does not end in .html, something other than a file has it, its folder is missing or
        cannot be written to, or there is no folder `images`.
    """
    folder = Path(os.path.realpath(path)).parent  # a link is written through
    refused = f"cannot write a page to {display_path(path)}"
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{refused}: expected a name ending in {' or '.join(SUFFIXES)}")
    if not _is_folder(folder):
        raise InputError(f"{refused}: its folder does not exist; make it first")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise InputError(f"{refused}: {error.strerror}; choose another name") from error
    if not stat.S_ISREG(mode):
        raise InputError(f"{refused}: it is no file; choose another name")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{refused}: its folder is not yours to write to; choose another")
    if images is not None and not _is_folder(images):
        raise InputError(
            f"--images {display_path(images)} is no folder; give the one that the keys are paths in"
        )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that no folder can have
        return False


def write(path: Path, answers: Iterable[Answer], *, about: str, measure: str, thumbnails: Thumbnails) -> int:
    """Write the page and return its bytes; on any error `path` is as it was.

    `about` is a sentence on what was asked, `measure` "distance", "score" or "cosine". Answers are
    written as they come, so that many queries need the memory of one.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    return write_template(
        path,
        "answers.html",
        title=f"Nearest items: {about}",
        about=about,
        measure=measure,
        answers=answers,
        thumbnail_of=thumbnails.of,
        query_thumbnail_of=thumbnails.of_query,
        nearness=_bits if measure == "distance" else _cosine if measure == "cosine" else _score,
    )


def write_template(path: Path, template: str, **values: Any) -> int:
    """Write a page of one of the templates, part by part, and return its bytes; errors as `write`."""
    made = html_template(Path(__file__).parent / "templates" / template)
    parts = made.generate(label=_label, **values)
    path = Path(os.path.realpath(path))  # else a link would be replaced, not what it points to
    try:
        with write_whole(path, "page") as file:
            for part in parts:
                file.write(part.encode())
            size = file.tell()
    except OSError as error:
        raise InputError(
            f"cannot write {display_path(path)}: {error.strerror or error}; choose another name"
        ) from error
    return size


def _label(key: str | None, name: str) -> str:
    """What stands in a picture's place: the name of a key's file, or `name`."""
    return (name if key is None else PurePath(key).stem or key)[:SIDE]


def _score(value: float) -> str:
    return f"score {value:.4g}"


def _cosine(value: float) -> str:
    return f"cosine {value:.4g}"


def _bits(distance: float) -> str:
    return "1 bit" if distance == 1 else f"{distance:.6g} bits"
