"""woh-index push: the codes of an index into a database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from .errors import QUIET, is_set, on_interrupt, one_line_errors
from .options import index_option, json_option, print_json, say


@click.command()
@click.argument("url")
@index_option
@click.option("--with-tags", is_flag=True, help="Send tags and metadata, too, where the table is new.")
@click.option(
    "--approximate",
    is_flag=True,
    help="Where the table is new: search it by HNSW (PostgreSQL) or IVF (Milvus), which may miss neighbours.",
)
@click.option("--force", is_flag=True, help="Replace a table that is not this index's.")
@json_option
@one_line_errors
def push(url: str, index_path: Path, with_tags: bool, approximate: bool, force: bool, as_json: bool) -> None:
    """Make a table in a database equal to the index, sending only what changed since the last push.

    URL is postgresql://user@host:5432/db?table=items (with pgvector), milvus://host:19530/collection, or
    milvus+file:///path/codes.db/collection. A password is better kept out of it: PostgreSQL's client reads
    ~/.pgpass and $PGPASSWORD; for Milvus set $MILVUS_TOKEN to user:password. `query --database URL` searches
    there.

    \b
    Example:
        woh-index push "postgresql://me@localhost/pictures?table=items"
        woh-index push milvus://localhost:19530/items --with-tags
    """
    from woh_faiss import WOHIndex
    from woh_faiss.integrations.push import push as send

    on_interrupt(lambda: "the same command continues")
    with WOHIndex.open(index_path) as index, _bar() as report:
        done = send(index, url, with_tags=with_tags, approximate=approximate, force=force, report=report)
    rows = "1 row" if done.sent == 1 else f"{done.sent:,} rows"
    say(f"{rows} sent, {done.deleted:,} deleted; {done.place} is at round {done.round}")
    if as_json:
        print_json(asdict(done))


@contextmanager
def _bar() -> Iterator[Callable[[int, int], object]]:
    """What shows how far it is: a bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty() or is_set(QUIET):
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows")
        yield lambda done, of: bar.update(task, completed=done, total=of)
