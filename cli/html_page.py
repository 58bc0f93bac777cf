"""The page of answers: one HTML file without scripts or anything to fetch, written query by query.

Keys and tags come from strangers: all text goes through `text`, and nothing else of theirs reaches the page.
"""

from __future__ import annotations

import html
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError
from woh_faiss.io.atomic_write import write_whole

from .thumbnails import SIDE, Thumbnails

if TYPE_CHECKING:
    from .answers import Answer

SUFFIXES = (".html", ".htm")

_STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #f3f4f6;
  --line: #b9c0c9; --dim: #57606a }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --ink: #e6e8eb; --soft: #20252b; --line: #4b545f; --dim: #a3acb7 }
}
* { box-sizing: border-box }
body { max-width: 90rem; margin: 0 auto; padding: 1rem; font: 1rem/1.4 system-ui, sans-serif;
  background: var(--paper); color: var(--ink); overflow-wrap: anywhere }
h1 { margin: 0; font-size: 1.4rem }
h2 { margin: 0; font-size: 1.1rem }
p, ul, ol, dl, dd { margin: 0; padding: 0 }
section { margin-top: 1.5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  content-visibility: auto; contain-intrinsic-size: auto 40rem }
.asked { display: flex; gap: 1rem; align-items: center; margin-bottom: 1rem }
.asked > div + div { min-width: 0 }
.asked .picture { flex: none; width: 8rem }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem;
  list-style: none }
.card { padding: .6rem; border: 1px solid var(--line); border-radius: .4rem; font-size: .85rem;
  break-inside: avoid }
.picture { display: grid; grid-template: 100% / 100%; place-items: center; height: 8rem; overflow: hidden;
  border-radius: .25rem; background: var(--soft); color: var(--dim) }
.picture img { width: 100%; height: 100%; object-fit: scale-down }
.picture span { max-height: 100%; padding: .5rem; overflow: hidden; text-align: center; font-size: .85rem }
.nearness { display: flex; flex-wrap: wrap; gap: 0 .6rem; margin-top: .4rem }
.nearness :last-child { margin-inline-start: auto; color: var(--dim) }
.key { max-height: 9em; overflow: auto; white-space: pre-wrap }
dt { margin-top: .4rem; color: var(--dim); font-size: .75rem }
.tags { display: flex; flex-wrap: wrap; gap: .2rem; list-style: none }
.tags li { max-width: 100%; padding: 0 .35rem; border: 1px solid var(--line); border-radius: .6rem;
  font-size: .8rem }
.predicted li { border-style: dashed }
.dim { color: var(--dim) }
"""


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

    `about` is a sentence on what was asked, `measure` "distance" or "score". Answers are written as they
    come, so that many queries need the memory of one.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    path = Path(os.path.realpath(path))  # else a link would be replaced, not what it points to
    try:
        with write_whole(path, "page") as file:
            for part in _parts(answers, about, measure, thumbnails):
                file.write(part.encode())
            size = file.tell()
    except OSError as error:
        raise InputError(
            f"cannot write {display_path(path)}: {error.strerror or error}; choose another name"
        ) from error
    return size


def text(value: object) -> str:
    """What a stranger typed, as HTML that shows just that, in an element or a quoted attribute."""
    return html.escape(display_text(value))


def _parts(answers: Iterable[Answer], about: str, measure: str, thumbnails: Thumbnails) -> Iterator[str]:
    nearness = (
        "Distance is bits of two codes that differ: fewer is nearer."
        if measure == "distance"
        else "Scores: higher is nearer."
    )
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Nothing here needs a script or the network; this says so to the browser as well.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Nearest items: {text(about)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>Nearest items</h1>\n<p>{_bdi(about)}</p>\n<p class="dim">{nearness} '
        "Predicted tags are what an item’s code says, whether or not anyone typed them.</p>\n"
        "</header>\n<main>\n"
    )
    for number, answer in enumerate(answers, start=1):
        yield _section(number, answer, measure, thumbnails)
    yield "</main>\n</body>\n</html>\n"


def _section(number: int, answer: Answer, measure: str, thumbnails: Thumbnails) -> str:
    asked, cards = answer.asked, []
    for rank, hit in enumerate(answer.found, start=1):
        how_near = f"score {hit.distance:.4g}" if measure == "score" else _bits(hit.distance)
        name = f'<p class="key">{_bdi(hit.key)}</p>\n' if hit.key is not None else ""
        cards.append(
            f'<li class="card">\n{_picture(hit.key, f"id {hit.id}", thumbnails)}'
            f'<p class="nearness"><b>{rank}</b> <span>{how_near}</span> <span>id {hit.id}</span></p>\n{name}'
            f"<dl>\n<dt>Tags</dt><dd>{_tags([(tag, None) for tag in hit.tags])}</dd>\n"
            f"<dt>Predicted</dt><dd>{_tags(answer.predicted[hit.id], 'tags predicted')}</dd>\n</dl>\n</li>\n"
        )
    heading = f"query-{number}"
    tags = "" if asked.tags is None else f"{_tags([(tag, None) for tag in asked.tags])}\n"
    listed = f'<ol class="cards" role="list">\n{"".join(cards)}</ol>' if cards else "<p>No neighbours.</p>"
    return (
        f'<section aria-labelledby="{heading}">\n<div class="asked">\n'
        f"{_picture(asked.key, asked.name, thumbnails)}"
        f'<div>\n<p class="dim">Query {number:,}</p>\n<h2 id="{heading}">{_bdi(asked.name)}</h2>\n'
        f"{tags}</div>\n</div>\n{listed}\n</section>\n"
    )


def _picture(key: str | None, name: str, thumbnails: Thumbnails) -> str:
    """The thumbnail of a key; else a box with its file's name (or `name`), which is beside it in full."""
    thumbnail = thumbnails.of(key)
    if thumbnail is None:
        label = name if key is None else PurePath(key).stem or key
        inside = f'<span aria-hidden="true">{_bdi(label[:SIDE])}</span>'
    else:
        uri, width, height = thumbnail
        inside = f'<img src="{uri}" width="{width}" height="{height}" dir="auto" alt="{text(key)}">'
    return f'<div class="picture">{inside}</div>\n'


def _tags(tags: Sequence[tuple[str, float | None]], kind: str = "tags") -> str:
    """A list of tags, with their scores if they have any."""
    if not tags:
        return '<span class="dim">none</span>'
    items = (f"<li>{_bdi(tag)}{'' if score is None else f' {score:.2f}'}</li>" for tag, score in tags)
    return f'<ul class="{kind}" role="list">{"".join(items)}</ul>'


def _bdi(value: str) -> str:
    """Text of any direction that leaves what is around it in place, and may break at its slashes."""
    return f"<bdi>{text(value).replace('/', '/<wbr>')}</bdi>"


def _bits(distance: float) -> str:
    return "1 bit" if distance == 1 else f"{distance:.6g} bits"
