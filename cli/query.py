"""woh-index query: the nearest items of feature rows, or of an item that is indexed."""

from __future__ import annotations

from pathlib import Path

import click

from .errors import one_line_errors
from .options import index_option, json_option, print_json


@click.command()
@click.argument("queries", required=False, type=click.Path(path_type=Path))
@index_option
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Neighbours a query.")
@click.option("--id", "item_id", type=int, help="Query with the code of the item that has this id.")
@click.option("--key", help="Query with the code of the item that has this key.")
@click.option(
    "--rerank",
    type=click.IntRange(min=1),
    help="Order this many nearest items anew by score (higher is nearer), say 1000.",
)
@json_option
@one_line_errors
def query(
    queries: Path | None,
    index_path: Path,
    k: int,
    item_id: int | None,
    key: str | None,
    rerank: int | None,
    as_json: bool,
) -> None:
    """Print the K nearest items of each row of QUERIES (.npz, folder of .npy, or a 2-D .npy).

    With --id or --key instead: the nearest other items of an item in the index. A JSON line is one
    neighbour: query, rank, id, key, distance (bits that differ) and tags.

    \b
    Example:
        woh-index query queries.npz -k 5
        woh-index query --id 1234 -k 5 --json
    """
    if sum(value is not None for value in (queries, item_id, key)) != 1:
        raise click.UsageError("give one of QUERIES, --id and --key")
    if rerank is not None and queries is None:
        raise click.UsageError("--rerank goes with QUERIES: an indexed item has only its code")
    from woh_faiss import WOHIndex, read_chunk

    with WOHIndex.open(index_path) as index:
        held = index.ntotal
        some = min(k, max(held, 1))  # memory for the neighbours there are, not for those asked for
        if queries is not None:
            chunk = read_chunk(queries)
            names = list(range(len(chunk))) if chunk.keys is None else chunk.keys.tolist()
            D, I = index.search(chunk.features, some, rerank=rerank)
        else:
            names = [item_id if key is None else key]
            D, I = index.search_ids([item_id if item_id is not None else index.id_of(str(key))], some)
        found = index.describe(D, I)
        if held < k:
            what = f"holds only {held} items" if held else "is empty; 'woh-index update' appends items"
            click.echo(f"note: {index_path} {what}", err=True)
    if as_json:
        for name, neighbours in zip(names, found, strict=True):
            for rank, neighbour in enumerate(neighbours, start=1):
                record = {"query": name, "rank": rank, **neighbour._asdict()}
                if rerank is not None:
                    record["score"] = record.pop("distance")
                print_json(record)
    else:
        from .render import print_neighbours

        print_neighbours(names, found, "distance" if rerank is None else "score")
