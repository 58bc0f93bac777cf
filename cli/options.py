"""Options that several commands share."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from woh_faiss.learner.config import PRESETS

from .errors import QUIET, is_set, on_interrupt

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

#: Whatever holds chunks: files of several formats, and folders of them.
chunks_argument = click.argument(
    "chunks", nargs=-1, required=True, metavar="CHUNK...", type=click.Path(path_type=Path, readable=False)
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")

word_vectors_option = click.option(
    "--word-vectors",
    type=click.Path(path_type=Path, readable=False),
    help="Word vectors of the tags' words: word2vec, GloVe or fastText .vec, plain or .gz, or a saved .npz.",
)

#: Of word vectors beside an index that has others.
OTHER_VECTORS = (
    "the index's tags have other vectors than --word-vectors: from its first chunk, or from another file; "
    "new tags do not compare with them: give that file, or build again with this one"
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
    help="What to do with items whose id or key another one has.",
)


timeout_option = click.option(
    "--timeout",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for another process that is writing; inf waits forever.",
)


def bad_rows_options(command: Callable[..., None]) -> Callable[..., None]:
    """--on-bad and --bad-report, gathered into one argument: report, where bad rows are to be listed."""

    @wraps(command)
    def run(*args: Any, on_bad: str, bad_report: Path | None, **kwargs: Any) -> None:
        if (on_bad == "skip") != (bad_report is not None):
            raise click.UsageError("--on-bad skip and --bad-report FILE, which lists the rows, go together")
        command(*args, report=bad_report, **kwargs)

    run = click.option(
        "--bad-report",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Lists the rows that --on-bad skip leaves out, a JSON line each: file, row, fault.",
    )(run)
    return click.option(
        "--on-bad",
        type=click.Choice(["stop", "skip"]),
        default="stop",
        show_default=True,
        help="Rows with features that are missing or not finite, or without the id or key that others have.",
    )(run)


skip_option = click.option(
    "--no-skip",
    is_flag=True,
    help="Take in chunks that are in the index already; without it they are skipped.",
)


def _set_max_memory(_context: click.Context, _parameter: click.Parameter, size: str) -> None:
    from woh_faiss.budget import set_max_memory
    from woh_faiss.errors import InputError

    try:
        set_max_memory(size)
    except InputError:
        raise click.BadParameter(f"{size!r} is not a size of at least 1M, such as 500M or 8G") from None


#: For every command that reads files of others.
max_memory_option = click.option(
    "--max-memory",
    metavar="SIZE",
    default="4G",
    show_default=True,
    expose_value=False,
    callback=_set_max_memory,
    help="Memory that one input file may take (a chunk, if it is read in chunks).",
)

tag_separator_option = click.option(
    "--tag-separator",
    metavar="CHAR",
    help="Between tags in a text.  [default: ';' where there is one, else blanks, or as the first tell]",
)

chunk_size_option = click.option(
    "--chunk-size",
    type=click.IntRange(min=1),
    help="Items of a chunk.  [default: 2000; all of an .npz or .npy]",
)

_COLUMNS = {
    "features": "lists of numbers",
    "tags": "lists of text, text, or a caption; '' for none",
    "id": "whole numbers; '' for none",
    "key": "text; '' for none",
    "labels": "class numbers, lists of 0 and 1, or text; '' for none",
}


def column_options(*roles: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--features-column and the like, gathered into one argument: columns, by role."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: Any, **kwargs: Any) -> None:
            command(*args, columns={role: kwargs.pop(f"{role}_column") for role in roles}, **kwargs)

        for role in reversed(roles):
            told = f"Column (dataset, variable) of {role}: {_COLUMNS[role]}.  [default: by its name]"
            run = click.option(f"--{role}-column", metavar="NAME", help=told)(run)
        return run

    return decorate


where_option = click.option(
    "--where",
    metavar="FILTER",
    help="Only items of which this holds, such as \"price < 20 and 'beach' in tags\": docs/filters.md.",
)

metadata_option = click.option(
    "--metadata",
    multiple=True,
    metavar="COLUMN",
    help="Column (dataset, variable, array) of what to filter by: numbers, text, true and false, dates or "
    "times. May be given many times.",
)

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N items only."
)


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """What a new index is made with, gathered into one argument: config, for `WOHIndex.create`."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        names = ("bits", "instance_bits", "preset", "anchors", "min_count", "seed", "keep_models")
        command(*args, config={name: kwargs.pop(name) for name in names}, **kwargs)

    options = [
        click.option(
            "--bits",
            type=int,
            default=64,
            show_default=True,
            help="Bits learned from tags, a multiple of 8: what kind of item it is. 0 without tags.",
        ),
        click.option(
            "--instance-bits",
            type=int,
            default=64,
            show_default=True,
            help="Bits of the features alone, a multiple of 8: which item it is. 0 for none.",
        ),
        word_vectors_option,
        preset_option,
        click.option(
            "--anchors",
            type=int,
            default=1000,
            show_default=True,
            help="Items the features are compared with.",
        ),
        click.option(
            "--min-count", type=int, default=2, show_default=True, help="Uses before a tag is learned from."
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Decides every random draw."),
        click.option(
            "--keep-models",
            type=int,
            default=2,
            show_default=True,
            help="Newest models to keep: how far rollback can go.",
        ),
    ]
    for option in reversed(options):
        run = option(run)
    return run


def print_json(record: Any) -> None:
    """One JSON line; what stdout's encoding may not have, or a terminal would obey, is escaped."""
    from woh_faiss.display import display_json

    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    click.echo(display_json(json.dumps(record, ensure_ascii=codecs.lookup(encoding).name != "utf-8")))


def print_line(line: str) -> None:
    """A line of results on stdout, names in it shown as text."""
    from woh_faiss.display import display_text

    click.echo(display_text(line))


def say(line: str) -> None:
    """A line on stderr, names in it shown as text; nothing with --quiet."""
    if is_set(QUIET):
        return
    from woh_faiss.display import display_text

    click.echo(display_text(line), err=True)


def noted(line: str) -> None:
    """A note on stderr."""
    say(f"note: {line}")


def say_split(line: str) -> None:
    """A note about how texts are split into tags, which the first ones tell."""
    noted(f"{line}; --tag-separator says otherwise")


def bits_list(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    """A comma-separated list of code lengths, for a click callback."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 16,64") from None


first_sample_option = click.option(
    "--first-sample",
    type=click.IntRange(min=0),
    default=2000,
    show_default=True,
    metavar="N",
    help="Items of round 1, a random sample of all: ordered data then teach as shuffled ones do; 0 for none.",
)


def progress(
    work: Iterable[T], total: int, what: str = "chunks", items: Callable[[T], int] | None = None
) -> Iterator[T]:
    """The pieces of work as they come, with a bar on stderr when there are several and it is a terminal.

    `items` of a piece are what the rate counts; without it pieces are.
    """
    with bar(total, what) as step:
        for piece in work:
            yield piece
            step(1 if items is None else items(piece))


@contextmanager
def bar(total: int, what: str) -> Iterator[Callable[[int], object]]:
    """A function to call after each of `total` pieces, with the items in it; see `progress`."""
    if total < 2 or not sys.stderr.isatty() or is_set(QUIET):
        yield lambda _items: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    started, done = time.monotonic(), 0
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total, rate="")

        def step(items: int) -> None:
            nonlocal done
            done += items
            rate = done / max(time.monotonic() - started, 1e-3)
            shown.update(task, advance=1, rate=f"{rate:,.0f}/s")

        yield step


def committed_state(index_path: Path, otherwise: str, then: str = "the same command continues") -> None:
    """After an interrupt say at which round the index is, or `otherwise` where there is none."""

    def state() -> str:
        from woh_faiss import WOHIndex

        if not index_path.exists():
            return otherwise
        with WOHIndex.open(index_path) as index:
            number = index.rounds()[-1].round if index.rounds() else 0
            return f"{index_path} is at round {number}, {index.ntotal:,} items in all are committed; {then}"

    on_interrupt(state)
