"""Options that several commands share."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from woh_faiss.config import PRESETS

T = TypeVar("T")

#: Where the index is.
index_option = click.option(
    "--index",
    "index_path",
    type=click.Path(path_type=Path, readable=False),
    envvar="WOH_INDEX",
    default="index.woh",
    show_default=True,
    show_envvar=True,
    help="Folder of the index.",
)

#: Chunk files: .npz, or folders of .npy.
chunks_argument = click.argument(
    "chunks", nargs=-1, required=True, metavar="CHUNK...", type=click.Path(path_type=Path, readable=False)
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")

word_vectors_option = click.option(
    "--word-vectors",
    type=click.Path(path_type=Path, readable=False),
    help="Word vectors of the tags' words: word2vec, GloVe, fastText .vec or gensim .kv, plain or .gz.",
)

preset_option = click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="adaptive",
    show_default=True,
    help="adaptive calibrates itself; paper has the published constants.",
)

on_duplicate_option = click.option(
    "--on-duplicate",
    type=click.Choice(["error", "skip", "replace"]),
    default="error",
    show_default=True,
    help="What to do with items whose id or key is in the index.",
)


def print_json(record: Any) -> None:
    """One JSON line; what stdout's encoding may not have is escaped, which means the same."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    click.echo(json.dumps(record, ensure_ascii=codecs.lookup(encoding).name != "utf-8"))


def bits_list(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    """A comma-separated list of code lengths, for a click callback."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 16,64") from None


def progress(work: Iterable[T], total: int, what: str = "chunks") -> Iterator[T]:
    """The pieces of work as they come, with a bar on stderr when there are several and it is a terminal."""
    if total < 2 or not sys.stderr.isatty():
        yield from work
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(work, what, total=total, console=Console(stderr=True), transient=True)
