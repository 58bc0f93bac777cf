"""woh-index query: the nearest items of feature rows, or of an item that is indexed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .answers import answers, asked, predicted_tags
from .errors import one_line_errors
from .options import index_option, json_option, print_json, word_vectors_option

if TYPE_CHECKING:
    from woh_faiss import Chunk, WOHIndex


@click.command()
@click.argument("queries", required=False, type=click.Path(path_type=Path, readable=False))
@index_option
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Neighbours a query.")
@click.option("--id", "item_id", type=int, help="Query with the code of the item that has this id.")
@click.option("--key", help="Query with the code of the item that has this key.")
@click.option("--tags", help='Query by tags, apart by spaces or ";"; with QUERIES each row counts, too.')
@word_vectors_option
@click.option(
    "--explain", is_flag=True, help="Show the tags that the neighbours' codes predict, with scores."
)
@click.option(
    "--rerank",
    type=click.IntRange(min=1),
    help="Order this many nearest items anew by score (higher is nearer), say 1000.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of pictures, e.g. out.html.")
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    help="With --html: folder that keys are paths of pictures in.  [default: the current one]",
)
@json_option
@one_line_errors
def query(
    queries: Path | None,
    index_path: Path,
    k: int,
    item_id: int | None,
    key: str | None,
    tags: str | None,
    word_vectors: Path | None,
    explain: bool,
    rerank: int | None,
    html: Path | None,
    images: Path | None,
    as_json: bool,
) -> None:
    """Print the K nearest items of each row of QUERIES (.npz, folder of .npy, or a 2-D .npy).

    With --id or --key instead: the nearest other items of an item in the index. With --tags: the items that
    those tags ask for, by score; tags the index does not know need --word-vectors. A JSON line is one
    neighbour: query, rank, id, key, distance (bits that differ) or score, and tags. With --html a page takes
    the table's place: one file that shows each query and its neighbours, with the pictures that keys are
    paths of.

    \b
    Example:
        woh-index query queries.npz -k 5
        woh-index query --id 1234 -k 5 --json
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
    if images is not None and html is None:
        raise click.UsageError("--images goes with --html")
    from woh_faiss import WOHIndex, read_chunk
    from woh_faiss.chunk_files import shown

    if html is not None:
        from . import page, thumbnails

        page.check(html, images)
    measure = "distance" if rerank is None and tags is None else "score"
    with WOHIndex.open(index_path) as index:
        held = index.ntotal
        some = min(k, max(held, 1))  # memory for the neighbours there are, not for those asked for
        chunk = None if queries is None else read_chunk(queries)
        if tags is not None:
            names, D, I = _by_tags(index, tags, chunk, some, rerank, word_vectors)
        elif chunk is not None:
            names = _names(chunk)
            D, I = index.search(chunk.features, some, rerank=rerank)
        else:
            names = [item_id if key is None else key]
            item_id = index.id_of(str(key)) if item_id is None else item_id
            D, I = index.search_ids([item_id], some)
        listed = as_json or html is None
        found = index.describe(D, I) if listed else []
        predicted = predicted_tags(index, found) if explain and listed else {}
        if held < k:
            what = f"holds only {held} items" if held else "is empty; 'woh-index update' appends items"
            click.echo(f"note: {index_path} {what}", err=True)
        if html is not None:
            pictures = thumbnails.Thumbnails(images)
            subjects = asked(index, names, chunk, item_id, tags)
            about = f"{len(names):,} {'query' if len(names) == 1 else 'queries'}"
            about += f" from {queries}" if queries else ""
            about += f" with the tags {tags}" if queries and tags else ""
            about += f": the {k:,} nearest of {held:,} items in {index_path}"
            size = page.write(
                html, answers(index, subjects, D, I), about=about, measure=measure, thumbnails=pictures
            )
            click.echo(f"note: {shown(html)} is the page, {size / 1000:,.0f} kB{pictures.note()}", err=True)
    if as_json:
        for name, neighbours in zip(names, found, strict=True):
            for rank, neighbour in enumerate(neighbours, start=1):
                record = {"query": name, "rank": rank, **neighbour._asdict()}
                if measure == "score":
                    record["score"] = record.pop("distance")
                if explain:
                    record["predicted"] = predicted[neighbour.id]
                print_json(record)
    elif html is None:
        from .render import print_neighbours

        print_neighbours(names, found, measure, predicted)


def _names(chunk: Chunk) -> list[Any]:
    """What to call the queries: their keys, else their rows."""
    return list(range(len(chunk))) if chunk.keys is None else chunk.keys.tolist()


def _by_tags(
    index: WOHIndex, tags: str, chunk: Chunk | None, k: int, rerank: int | None, word_vectors: Path | None
) -> tuple[list[Any], Any, Any]:
    """Names, scores and ids of a query by tags, or by tags and each row of features."""
    from woh_faiss import WordVectors

    vectors = WordVectors.open(word_vectors) if word_vectors else None
    words = tags.split(";") if ";" in tags else tags.split()
    lists = [words] * (1 if chunk is None else len(chunk))
    xq = None if chunk is None else chunk.features
    S, I = index.search_tags(lists, k, xq=xq, rerank=max(rerank or 1000, k), word_vectors=vectors)
    return [tags] if chunk is None else _names(chunk), S, I
