"""`woh-index evaluate`: how well codes learned from a labelled stream rank, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import one_line_errors
from .options import (
    bits_list,
    chunks_argument,
    json_option,
    max_memory_option,
    preset_option,
    print_json,
    progress,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss.evaluation.streaming import Result

#: With more rounds than this the table shows the first, the middle and the last: it must fit in 80 columns.
MOST_ROUNDS = 3


@click.command("evaluate")
@chunks_argument
@click.option("--bits", default="16,64", show_default=True, callback=bits_list, help="Code lengths to try.")
@click.option(
    "--chunks",
    "n_chunks",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Equal parts to stream.",
)
@click.option(
    "--queries",
    type=click.IntRange(1),
    help="Items held out as queries, at most half.  [default: a quarter, at most 1000]",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Decides every random draw."
)
@preset_option
@word_vectors_option
@json_option
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw MAP by round, e.g. map.png."
)
@max_memory_option
@one_line_errors
def evaluate(
    chunks: Sequence[Path],
    bits: list[int],
    n_chunks: int,
    queries: int | None,
    seed: int,
    preset: str,
    word_vectors: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure learned codes on the labelled items of all CHUNKs, round by round.

    Holds queries out at random, streams the rest in equal parts, and prints the mean average precision (MAP)
    after each: Hamming distance, the whole database so far, relevant = a shared label. Database items keep
    the code they got when their part came. Uncompressed search on the same split is printed beside it.
    Every item needs tags, which are learned from, and labels (0/1 or class numbers), which are not.

    \b
    Example:
        woh-index evaluate examples/data/chunk-*.npz --word-vectors examples/data/glove-100d-tags.w2v.txt
    """
    from woh_faiss import budget
    from woh_faiss.evaluation import plots
    from woh_faiss.evaluation.streaming import stream
    from woh_faiss.inputs.chunk import concatenate, read_chunk
    from woh_faiss.learner.config import WOHConfig
    from woh_faiss.tags.word_vectors import WordVectors

    if plot is not None:
        plots.check(plot)
    configs = [WOHConfig(bits=b, preset=preset, seed=seed) for b in dict.fromkeys(bits)]
    vectors = WordVectors.open(word_vectors) if word_vectors else None
    with budget.reading("all CHUNKs together"):
        data = concatenate([read_chunk(path) for path in chunks], [str(path) for path in chunks])
    steps = stream(data, configs, chunks=n_chunks, queries=queries, seed=seed, word_vectors=vectors)
    results = []
    for result in progress(steps, total=n_chunks * len(configs) + 2):
        results.append(result)
        if as_json:
            line = asdict(result)
            line["map"], line["seconds"] = round(result.map, 6), round(result.seconds, 4)
            print_json(line)
    if not as_json:
        _print_table(results, n_chunks)
    if plot is not None:
        plots.map_by_round(results, plot)


def _print_table(results: list[Result], chunks: int) -> None:
    """One row a method and code length; a column a round, or three of them."""
    from rich import box

    from .tables import Table, console

    rounds = range(1, chunks + 1)
    shown = list(rounds) if chunks <= MOST_ROUNDS else [1, (chunks + 1) // 2, chunks]
    last = results[-1]
    table = Table(
        title="MAP after a round",
        box=box.SIMPLE,
        caption=f"{last.queries} queries against up to {last.database} items in {chunks} parts; "
        "training seconds a round",
    )
    for name in ("method", "preset"):
        table.add_column(name, no_wrap=True)
    for name in ("bits", *(f"round {t}" for t in shown), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for method, preset, bits in dict.fromkeys((r.method, r.preset, r.bits) for r in results):
        row = {r.round: r for r in results if (r.method, r.preset, r.bits) == (method, preset, bits)}
        learned = bits is not None
        table.add_row(
            method,
            preset or "",
            str(bits) if learned else "",
            *(f"{row[t].map:.4f}" if t in row else "" for t in shown),
            f"{sum(r.seconds for r in row.values()) / len(row):.2f}" if learned else "",
        )
    console().print(table)
