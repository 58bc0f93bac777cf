"""woh-index build, update and add: what makes an index grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import one_line_errors
from .options import (
    chunks_argument,
    index_option,
    on_duplicate_option,
    preset_option,
    progress,
    word_vectors_option,
)  # fmt: skip

if TYPE_CHECKING:
    from woh_faiss.naming import OnDuplicate
    from woh_faiss.store import Round


@click.command()
@chunks_argument
@index_option
@click.option("--bits", type=int, default=64, show_default=True, help="Code length, a multiple of 8.")
@word_vectors_option
@preset_option
@click.option(
    "--anchors", type=int, default=1000, show_default=True, help="Items the features are compared with."
)
@click.option(
    "--min-count", type=int, default=2, show_default=True, help="Uses before a tag is learned from."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides every random draw.")
@click.option(
    "--keep-models",
    type=int,
    default=2,
    show_default=True,
    help="Newest models to keep: how far rollback can go.",
)
@one_line_errors
def build(
    chunks: Sequence[Path],
    index_path: Path,
    bits: int,
    word_vectors: Path | None,
    preset: str,
    anchors: int,
    min_count: int,
    seed: int,
    keep_models: int,
) -> None:
    """Make a new index and learn each CHUNK; the first ones together, until round 1 has 2,000 items.

    A CHUNK is an .npz file, or a folder of .npy files, with features and tags. Without --word-vectors the
    vectors of tags are learned from the first chunk. On any error no index is left behind.

    \b
    Example:
        woh-index build chunk-000.npz --bits 64 --word-vectors glove.txt
    """
    from woh_faiss import WOHConfig, WOHIndex, WordVectors, read_chunk
    from woh_faiss.index import FIRST_ROUND

    config = WOHConfig(
        bits=bits, preset=preset, anchors=anchors, min_count=min_count, seed=seed, keep_models=keep_models
    )
    vectors = WordVectors.open(word_vectors) if word_vectors else None
    chunks_read = progress(map(read_chunk, chunks), len(chunks))
    with WOHIndex.build(index_path, chunks_read, config, word_vectors=vectors) as index:
        rounds = index.rounds()
    for round_ in rounds:
        report(round_)
    if config.start == "semantic" and rounds[0].n < FIRST_ROUND:
        click.echo(
            f"note: round 1 had {rounds[0].n:,} items; codes get better from {FIRST_ROUND:,} on",
            err=True,
        )


@click.command()
@chunks_argument
@index_option
@word_vectors_option
@on_duplicate_option
@one_line_errors
def update(
    chunks: Sequence[Path], index_path: Path, word_vectors: Path | None, on_duplicate: OnDuplicate
) -> None:
    """Learn each CHUNK as one more round and append its codes.

    The vectors of known tags are kept in the index: --word-vectors is needed only for tags that are new,
    and without it those take the mean vector of the tags they occur with.

    \b
    Example:
        woh-index update chunk-001.npz chunk-002.npz
    """
    from woh_faiss import WOHIndex, WordVectors

    vectors = WordVectors.open(word_vectors) if word_vectors else None
    with WOHIndex.open(index_path) as index:
        done = index.extend(chunks, word_vectors=vectors, on_duplicate=on_duplicate)
        for round_ in progress(done, len(chunks)):
            report(round_)


@click.command()
@chunks_argument
@index_option
@on_duplicate_option
@one_line_errors
def add(chunks: Sequence[Path], index_path: Path, on_duplicate: OnDuplicate) -> None:
    """Encode each CHUNK with the newest hash function and append its codes; no tags are needed.

    \b
    Example:
        woh-index add rest.npz
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        for round_ in progress(index.extend(chunks, learn=False, on_duplicate=on_duplicate), len(chunks)):
            report(round_)


def report(round_: Round) -> None:
    """One line on stderr about a committed round."""
    health = round_.health or {}
    done = f"round {round_.round}: {round_.n:,} items appended"
    if round_.removed:
        done += f", {round_.removed:,} of them replace older ones"
    if health.get("skipped"):
        done += f", {health['skipped']:,} skipped"
    if round_.kind == "trained":
        done += f", {round_.trained:,} learned from in {round_.seconds:.1f} s"
    if "tags_new" in health:
        done += f"; {health['tags_total']:,} tags known"
        if health["tags_new"]:
            done += f", {health['tags_with_vector']:,} of {health['tags_new']:,} new ones with a word vector"
    click.echo(f"{done}; {round_.ntotal:,} items in all", err=True)
