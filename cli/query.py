"""woh-index query: the nearest items of feature rows, of an item that is indexed, or of tags."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import click
from click.core import ParameterSource

from . import id_files, tsv
from .answers import Answer, QueryBatch, SearchOptions, answers
from .errors import one_line_errors
from .options import (
    index_option,
    json_option,
    max_memory_option,
    print_json,
    progress,
    say,
    word_vectors_option,
)


@click.command()
@click.argument("queries", required=False, type=click.Path(path_type=Path, readable=False))
@index_option
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Neighbours a query.")
@click.option(
    "--radius",
    type=click.IntRange(min=0),
    help="All items at most so many bits away, instead of the K nearest.",
)
@click.option("--id", "item_id", type=int, help="Query with the code of the item that has this id.")
@click.option("--key", help="Query with the code of the item that has this key.")
@click.option("--tags", help='Query by tags, apart by spaces or ";"; with QUERIES each row counts, too.')
@word_vectors_option
@click.option("--allow", type=click.File(encoding="utf-8"), help="Only these ids answer: a file, one a line.")
@click.option("--deny", type=click.File(encoding="utf-8"), help="These ids never answer: a file, one a line.")
@click.option(
    "--explain", is_flag=True, help="Show the tags that the neighbours' codes predict, with scores."
)
@click.option(
    "--rerank",
    type=click.IntRange(min=1),
    help="Order this many nearest items anew by score (higher is nearer), say 1000.",
)
@click.option("--database", metavar="URL", help="Search where `push` sent the codes to.")
@click.option(
    "--ann",
    help="Look at a part of the codes only, by what build-ann made: ivf, hnsw or multihash; QUERIES only.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of pictures, e.g. out.html.")
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    help="With --html: the folder that keys are paths of pictures in; no other is read.",
)
@json_option
@max_memory_option
@click.pass_context
@one_line_errors
def query(
    context: click.Context,
    queries: Path | None,
    index_path: Path,
    k: int,
    radius: int | None,
    item_id: int | None,
    key: str | None,
    tags: str | None,
    word_vectors: Path | None,
    allow: TextIO | None,
    deny: TextIO | None,
    explain: bool,
    rerank: int | None,
    database: str | None,
    ann: str | None,
    html: Path | None,
    images: Path | None,
    as_json: bool,
) -> None:
    """Print the K nearest items of each row of QUERIES (.npz, folder of .npy, or a 2-D .npy).

    With --id or --key instead: the nearest other items of an item in the index. With --tags: the items that
    those tags ask for, by score; tags the index does not know need --word-vectors. A JSON line is one
    neighbour: query, rank, id, key, distance (bits that differ) or score, and tags. With --html a page takes
    the table's place: one file that shows each query and its neighbours, with the pictures that keys are
    paths of in the folder --images. With --database a database searches; all else stays the same. Answers
    come as they are found, some queries at a time; Ctrl-C ends them.

    \b
    Example:
        woh-index query queries.npz -k 5
        woh-index query queries.npz --radius 8 --json
        woh-index query --id 1234 -k 5 --deny seen.txt
        woh-index query --tags "sunset beach"
        woh-index query queries.npz --html out.html --images photos
    """
    if (
        sum(value is not None for value in (queries, item_id, key)) + (tags is not None and queries is None)
        != 1
    ):
        raise click.UsageError("give one of QUERIES, --id, --key and --tags, or QUERIES with --tags")
    if rerank is not None and (item_id is not None or key is not None):
        raise click.UsageError("--rerank goes with QUERIES or --tags: an indexed item has only its code")
    if radius is not None and (rerank is not None or tags is not None):
        raise click.UsageError("--radius is in bits; --rerank and --tags order by score")
    if radius is not None and context.get_parameter_source("k") is not ParameterSource.DEFAULT:
        raise click.UsageError("give -k or --radius, not both")
    filtered = allow is not None or deny is not None
    if database is not None and (rerank or radius is not None or tags is not None or filtered or ann):
        raise click.UsageError("--database finds the K nearest to QUERIES, --id or --key, nothing else")
    if ann is not None and (queries is None or tags is not None or radius is not None):
        raise click.UsageError("--ann finds the K nearest of QUERIES: not with --radius, --id, --key, --tags")
    if images is not None and html is None:
        raise click.UsageError("--images goes with --html")
    from woh_faiss import WOHIndex, WordVectors, read_chunk

    if html is not None:
        from . import html_page, thumbnails

        html_page.check(html, images)
    measure = "distance" if rerank is None and tags is None else "score"
    only = None if allow is None else id_files.ids(allow)
    never = None if deny is None else id_files.ids(deny)
    with WOHIndex.open(index_path) as index, ExitStack() as opened:
        held = index.ntotal
        some = min(k, max(held, 1))  # memory for the neighbours there are, not for those asked for
        vectors = WordVectors.open(word_vectors) if word_vectors and tags is not None else None
        remote = None
        if database is not None:
            from woh_faiss.integrations.remote import Remote

            remote = opened.enter_context(Remote(index, database))
            if note := remote.note():
                say(f"note: {note}")
        how = SearchOptions(some, radius, rerank, vectors, only, never, remote, ann)
        chunk = None if queries is None else read_chunk(queries)
        if key is not None:
            item_id = index.id_of(key)
        item = None if item_id is None else index.items([item_id])[0]
        words = None if tags is None else tags.split(";") if ";" in tags else tags.split()
        asked = QueryBatch(chunk, item, words, tags if key is None else key)
        if held < k and radius is None:
            what = f"holds only {held} items" if held else "is empty; 'woh-index update' appends items"
            say(f"note: {index_path} {what}")
        found = answers(index, asked, how, explain or html is not None)
        if html is not None or not sys.stdout.isatty():  # else the answers themselves show it
            found = progress(found, len(asked), "queries")
        if as_json:
            found = _lines(found, measure, explain)
        if html is not None:
            about = f"{len(asked):,} {'query' if len(asked) == 1 else 'queries'}"
            about += f" from {queries}" if queries else ""
            about += f" with the tags {tags}" if queries and tags else ""
            which = f"the {k:,} nearest" if radius is None else f"all at most {radius:,} bits away"
            about += f": {which} of {held:,} items in {index_path}"
            pictures = thumbnails.Thumbnails(images)
            size = html_page.write(html, found, about=about, measure=measure, thumbnails=pictures)
            say(f"note: {html} is the page, {size / 1000:,.0f} kB{pictures.note()}")
        elif as_json:
            deque(found, maxlen=0)
        elif sys.stdout.isatty():
            from .tables import print_neighbours

            print_neighbours(found, measure, explain)
        else:
            tsv.print_neighbours(found, measure, explain)


def _lines(found: Iterator[Answer], measure: str, explain: bool) -> Iterator[Answer]:
    """The answers, each printed as JSON lines on its way."""
    for answer in found:
        for rank, neighbour in enumerate(answer.found, start=1):
            record = {"query": answer.asked.query, "rank": rank, **neighbour._asdict()}
            if measure == "score":
                record["score"] = record.pop("distance")
            if explain:
                record["predicted"] = answer.predicted[neighbour.id]
            print_json(record)
        yield answer
