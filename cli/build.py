"""woh-index build, update and add."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import one_line_errors
from .options import (
    OTHER_VECTORS,
    chunk_size_option,
    chunks_argument,
    column_options,
    config_options,
    first_sample_option,
    index_option,
    max_memory_option,
    on_duplicate_option,
    progress,
    say,
    say_split,
    skip_option,
    tag_separator_option,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss.index.item_ids import OnDuplicate
    from woh_faiss.inputs import Inputs
    from woh_faiss.store import Round


#: Share of tags that do not fit from which a round is told about.
DOUBTED = 0.05


@click.command()
@chunks_argument
@index_option
@config_options
@chunk_size_option
@column_options("features", "tags", "id", "key")
@tag_separator_option
@click.option(
    "--max-chunks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Learn the first N chunks only; 'update' with the same inputs continues.",
)
@first_sample_option
@on_duplicate_option
@max_memory_option
@one_line_errors
def build(
    chunks: Sequence[Path],
    index_path: Path,
    config: dict[str, Any],
    word_vectors: Path | None,
    chunk_size: int | None,
    columns: dict[str, str | None],
    tag_separator: str | None,
    first_sample: int,
    on_duplicate: OnDuplicate,
    max_chunks: int | None,
) -> None:
    """Create an index of a random sample of all CHUNKs, then learn the rest in its order.

    A CHUNK is an .npz file or a folder of .npy files with features and tags. Or it is a Parquet, Arrow,
    Feather, HDF5 or .mat file, a folder of Parquet files, or one of embeddings (img_emb with metadata), read
    --chunk-size items at a time. Without --word-vectors the vectors of tags are learned from the
    first chunk. On any error no index is left behind.

    \b
    Example:
        woh-index build chunk-000.npz --bits 64 --word-vectors glove.txt
        woh-index build photos.parquet --max-chunks 1 && woh-index update photos.parquet
    """
    inputs = opened(chunks, columns, chunk_size, tag_separator, on_duplicate, bool(config["bits"]))
    learn_anew(inputs, index_path, config, word_vectors, first_sample, on_duplicate, max_chunks)


def opened(
    chunks: Sequence[Path],
    columns: dict[str, str | None],
    chunk_size: int | None,
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    learn: bool,
) -> Inputs:
    """The inputs, and a note about each whose columns were guessed."""
    from woh_faiss.inputs import Columns, open_inputs

    inputs = open_inputs(
        chunks,
        columns=Columns(**columns),
        chunk_size=chunk_size,
        learn=learn,
        tag_separator=tag_separator,
        on_duplicate=on_duplicate,
        note=say_split,
    )
    for line in inputs.guessed(Columns(**columns)):
        say(f"note: {line}")
    return inputs


def learn_anew(
    inputs: Inputs,
    index_path: Path,
    hyper: dict[str, Any],
    word_vectors: Path | None,
    first_sample: int,
    on_duplicate: OnDuplicate,
    max_chunks: int | None = None,
) -> None:
    """A new index that has learned the inputs, and a line about each round."""
    from woh_faiss import WOHIndex, WordVectors
    from woh_faiss.index.index import FIRST_ROUND

    vectors = WordVectors.open(word_vectors) if word_vectors else None
    with WOHIndex.build(
        index_path,
        inputs,
        word_vectors=vectors,
        first_sample=first_sample,
        max_chunks=max_chunks,
        on_duplicate=on_duplicate,
        progress=progress,
        **hyper,
    ) as index:
        config, rounds = index.config, index.rounds()
    first = rounds[0].health or {}
    if "sampled_from" in first:
        say(
            f"note: round 1 is a sample of {first['sampled']:,} of {first['sampled_from']:,} items; "
            "the others follow in their order"
        )
    for round_ in rounds:
        report(round_)
    if config.start == "semantic" and rounds[0].n < FIRST_ROUND:
        say(f"note: round 1 had {rounds[0].n:,} items; codes get better from {FIRST_ROUND:,} on")


@click.command()
@chunks_argument
@index_option
@word_vectors_option
@chunk_size_option
@column_options("features", "tags", "id", "key")
@tag_separator_option
@on_duplicate_option
@skip_option
@max_memory_option
@one_line_errors
def update(
    chunks: Sequence[Path],
    index_path: Path,
    word_vectors: Path | None,
    chunk_size: int | None,
    columns: dict[str, str | None],
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    no_skip: bool,
) -> None:
    """Learn each CHUNK as one more round and append its codes; CHUNKs are as for build.

    A chunk that is in the index already is skipped: repeat an interrupted update, and it continues. The index
    keeps the vectors of known tags, so that only new tags need --word-vectors. Without it a new tag takes the
    mean vector of the tags it occurs with.

    \b
    Example:
        woh-index update chunk-001.npz chunk-002.npz
        woh-index update photos/ --tags-column keywords
    """
    from woh_faiss import WOHIndex, WordVectors

    vectors = WordVectors.open(word_vectors) if word_vectors else None
    with WOHIndex.open(index_path) as index:
        inputs = opened(chunks, columns, chunk_size, tag_separator, on_duplicate, bool(index.config.bits))
        done = index.extend(
            inputs, word_vectors=vectors, on_duplicate=on_duplicate, skip_known=not no_skip, note=say
        )
        for round_ in progress(done, len(inputs)):
            report(round_)


@click.command()
@chunks_argument
@index_option
@chunk_size_option
@column_options("features", "tags", "id", "key")
@tag_separator_option
@on_duplicate_option
@skip_option
@max_memory_option
@one_line_errors
def add(
    chunks: Sequence[Path],
    index_path: Path,
    chunk_size: int | None,
    columns: dict[str, str | None],
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    no_skip: bool,
) -> None:
    """Encode each CHUNK with the newest hash function and append its codes; no tags are needed.

    CHUNKs are as for build; one that is in the index already is skipped.

    \b
    Example:
        woh-index add rest.npz
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        inputs = opened(chunks, columns, chunk_size, tag_separator, on_duplicate, learn=False)
        done = index.extend(inputs, learn=False, on_duplicate=on_duplicate, skip_known=not no_skip, note=say)
        for round_ in progress(done, len(inputs)):
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
    say(f"{done}; {round_.ntotal:,} items in all")
    if health.get("vectors_differ"):
        say(f"note: {OTHER_VECTORS}")
    if health.get("adapted"):
        say(
            f"note: {health['novelty']:.0%} of the tags of round {round_.round} are of kinds of items that "
            "were not there before; it adapted to them"
        )
    doubted = 1 - health.get("trusted", 1.0)
    if doubted >= DOUBTED:
        say(
            f"note: about {doubted:.0%} of the tags of round {round_.round} do not fit the features and "
            "count less; 'woh-index info' lists the items where they fit least"
        )
