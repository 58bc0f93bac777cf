"""woh-index build, update and add."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .encoders import PictureFlags, picture_options
from .errors import VERBOSE, is_set, one_line_errors
from .options import (
    OTHER_VECTORS,
    bad_rows_options,
    bar,
    chunk_size_option,
    chunks_argument,
    column_options,
    committed_state,
    config_options,
    first_sample_option,
    index_option,
    json_option,
    max_memory_option,
    metadata_option,
    noted,
    on_duplicate_option,
    print_json,
    progress,
    say,
    say_split,
    skip_option,
    tag_separator_option,
    timeout_option,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss import WOHIndex
    from woh_faiss.index.item_ids import OnDuplicate
    from woh_faiss.inputs import BadRows, Inputs, PictureOptions
    from woh_faiss.store import Round


@click.command()
@chunks_argument
@index_option
@config_options
@chunk_size_option
@column_options("features", "tags", "id", "key")
@metadata_option
@tag_separator_option
@click.option(
    "--max-chunks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Learn the first N chunks only; 'update' with the same inputs continues.",
)
@first_sample_option
@json_option
@bad_rows_options
@on_duplicate_option
@picture_options
@max_memory_option
@one_line_errors
def build(
    chunks: Sequence[Path],
    index_path: Path,
    config: dict[str, Any],
    word_vectors: Path | None,
    chunk_size: int | None,
    columns: dict[str, str | None],
    metadata: Sequence[str],
    tag_separator: str | None,
    first_sample: int,
    on_duplicate: OnDuplicate,
    max_chunks: int | None,
    as_json: bool,
    report: Path | None,
    pictures: PictureFlags,
) -> None:
    """Create an index of a random sample of all CHUNKs, then learn the rest in its order.

    A CHUNK is an .npz file or a folder of .npy files with features and tags. Or it is a Parquet, Arrow,
    Feather, HDF5 or .mat file, a folder of Parquet files, or one of embeddings (img_emb with metadata), read
    --chunk-size items at a time. With --encoder it may be a folder of pictures, whose tags --tags-from
    finds. Without --word-vectors the vectors of tags are learned from the first chunk. On any error no index
    is left behind.

    \b
    Example:
        woh-index build chunk-000.npz --bits 64 --word-vectors glove.txt
        woh-index build photos.parquet --max-chunks 1 && woh-index update photos.parquet
        woh-index build photos/ --encoder onnx:model.onnx --tags-from folders
    """
    with bad_rows(report) as bad:
        inputs = opened(
            *(chunks, columns, chunk_size, tag_separator, on_duplicate, metadata),
            learn=bool(config["bits"]),
            bad=bad,
            pictures=pictures.options(chunk_size),
        )
        if pictures.encoder_name is not None and inputs.encoder is None:  # of features made elsewhere
            config["encoder"] = pictures.record()
        learn_anew(inputs, index_path, config, word_vectors, first_sample, on_duplicate, as_json, max_chunks)


def opened(
    chunks: Sequence[Path],
    columns: dict[str, str | None],
    chunk_size: int | None,
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    metadata: Sequence[str] = (),
    *,
    learn: bool,
    bad: BadRows | None = None,
    pictures: PictureOptions | None = None,
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
        metadata=metadata,
        note=say_split,
        bad=bad,
        pictures=pictures,
    )
    for line in inputs.notes(Columns(**columns)):
        noted(line)
    return inputs


@contextmanager
def bad_rows(report: Path | None) -> Iterator[BadRows | None]:
    """What takes bad rows, listed in the file `report` at the end, whatever that is; None without one."""
    if report is None:
        yield None
        return
    from woh_faiss.inputs import BadRows
    from woh_faiss.io.atomic_write import write_whole

    bad = BadRows()
    try:
        yield bad
    finally:
        try:
            with write_whole(report, "report") as file:
                file.writelines(json.dumps(record).encode() + b"\n" for record in bad.records())
        except OSError as error:
            raise click.ClickException(f"cannot write {report}: {error.strerror or error}") from error
        if n := len(bad.found):
            rows, them = ("row was", "it") if n == 1 else ("rows were", "them")
            say(f"note: {n:,} {rows} left out; {report} lists {them}")


def learn_anew(
    inputs: Inputs,
    index_path: Path,
    hyper: dict[str, Any],
    word_vectors: Path | None,
    first_sample: int,
    on_duplicate: OnDuplicate,
    as_json: bool,
    max_chunks: int | None = None,
) -> None:
    """A new index that has learned the inputs, and a line about each round."""
    from woh_faiss import WOHIndex, WordVectors
    from woh_faiss.index.index import FIRST_ROUND

    committed_state(index_path, "nothing is kept; build --max-chunks 1, then update, can be continued")
    vectors = WordVectors.open(word_vectors) if word_vectors else None
    with WOHIndex.build(
        index_path,
        inputs,
        word_vectors=vectors,
        first_sample=first_sample,
        max_chunks=max_chunks,
        on_duplicate=on_duplicate,
        progress=lambda work, total: progress(work, total, items=len),
        **hyper,
    ) as index:
        config, rounds = index.config, index.rounds()
    first = rounds[0].health or {}
    if "sampled_from" in first:
        say(
            f"note: round 1 is a sample of {first['sampled']:,} of {first['sampled_from']:,} items; "
            "the others follow in their order"
        )
    told = Reports(word_vectors, as_json)
    for round_ in rounds:
        told.round(round_)
    if config.start == "semantic" and rounds[0].n < FIRST_ROUND:
        say(f"note: round 1 had {rounds[0].n:,} items; codes get better from {FIRST_ROUND:,} on")


@click.command()
@chunks_argument
@index_option
@word_vectors_option
@chunk_size_option
@column_options("features", "tags", "id", "key")
@metadata_option
@tag_separator_option
@on_duplicate_option
@skip_option
@timeout_option
@json_option
@bad_rows_options
@picture_options
@max_memory_option
@one_line_errors
def update(
    chunks: Sequence[Path],
    index_path: Path,
    word_vectors: Path | None,
    chunk_size: int | None,
    columns: dict[str, str | None],
    metadata: Sequence[str],
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    no_skip: bool,
    timeout: float,
    as_json: bool,
    report: Path | None,
    pictures: PictureFlags,
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
    committed_state(index_path, "there is no index")
    with WOHIndex.open(index_path) as index, bad_rows(report) as bad:
        inputs = opened(
            *(chunks, columns, chunk_size, tag_separator, on_duplicate, metadata),
            learn=bool(index.config.bits),
            bad=bad,
            pictures=pictures.options(chunk_size, index, skip=on_duplicate == "skip"),
        )
        told = Reports(word_vectors, as_json)
        extended(
            index,
            inputs,
            told,
            timeout=timeout,
            word_vectors=vectors,
            on_duplicate=on_duplicate,
            skip_known=not no_skip,
        )


@click.command()
@chunks_argument
@index_option
@chunk_size_option
@column_options("features", "tags", "id", "key")
@metadata_option
@tag_separator_option
@on_duplicate_option
@skip_option
@timeout_option
@json_option
@bad_rows_options
@picture_options
@max_memory_option
@one_line_errors
def add(
    chunks: Sequence[Path],
    index_path: Path,
    chunk_size: int | None,
    columns: dict[str, str | None],
    metadata: Sequence[str],
    tag_separator: str | None,
    on_duplicate: OnDuplicate,
    no_skip: bool,
    timeout: float,
    as_json: bool,
    report: Path | None,
    pictures: PictureFlags,
) -> None:
    """Encode each CHUNK with the newest hash function and append its codes; no tags are needed.

    CHUNKs are as for build; one that is in the index already is skipped.

    \b
    Example:
        woh-index add rest.npz
    """
    from woh_faiss import WOHIndex

    committed_state(index_path, "there is no index")
    with WOHIndex.open(index_path) as index, bad_rows(report) as bad:
        inputs = opened(
            *(chunks, columns, chunk_size, tag_separator, on_duplicate, metadata),
            learn=False,
            bad=bad,
            pictures=pictures.options(chunk_size, index, skip=on_duplicate == "skip"),
        )
        told = Reports(None, as_json)
        extended(
            index,
            inputs,
            told,
            timeout=timeout,
            learn=False,
            on_duplicate=on_duplicate,
            skip_known=not no_skip,
        )


def extended(index: WOHIndex, inputs: Inputs, told: Reports, **how: Any) -> None:
    """Take in the inputs, `how` as `WOHIndex.extend` has it, and tell of each round as it is committed."""
    with bar(len(inputs), "chunks") as step:

        def skipped(line: str) -> None:
            told.skipped(line)
            step(0)

        for round_ in index.extend(inputs, note=skipped, **how):
            told.round(round_)
            step(round_.n)
    told.end()


class Reports:
    """Lines on stderr about rounds and skipped chunks; `as_json`, a line on stdout for each round, too."""

    def __init__(self, word_vectors: Path | None, as_json: bool) -> None:
        self._word_vectors, self._as_json = word_vectors, as_json
        self._skipped: list[str] = []
        self._advised = False
        self._told: set[str] = set()

    def skipped(self, line: str) -> None:
        """A chunk that is in the index already: `line` says so, and many are one line."""
        if is_set(VERBOSE):
            say(line)
        else:
            self._skipped.append(line)

    def end(self) -> None:
        """Say how many chunks were skipped since the last time."""
        if len(self._skipped) > 1:
            say(f"{len(self._skipped):,} chunks are in the index already, skipped (--verbose names each)")
        else:
            for line in self._skipped:
                say(line)
        self._skipped = []

    def round(self, round_: Round) -> None:
        """A committed round."""
        from woh_faiss.index.index_state import advice

        if not self._advised:  # later ones are told of at the end
            self.end()
        report(round_)
        for about, line in advice(round_).items():
            if about != "covered" or about not in self._told:  # it may be true of each of many rounds
                say(f"note: {line}")
            self._told.add(about)
        if self._as_json:
            print_json(asdict(round_))
        health = round_.health or {}
        if health.get("tags_new") and not health["tags_with_vector"] and not self._advised:
            self._advised = True
            how = (
                f"check that {self._word_vectors} is in the tags' language and script"
                if self._word_vectors
                else "--word-vectors FILE gives them their own"
            )
            say(f"note: new tags take the mean vector of the tags they occur with; {how}")


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
        if health["tags_new"] and not health["tags_with_vector"]:
            done += f", {health['tags_new']:,} of them new, without a word vector"
        elif health["tags_new"]:
            done += f", {health['tags_with_vector']:,} of {health['tags_new']:,} new ones with a word vector"
    say(f"{done}; {round_.ntotal:,} items in all")
    if health.get("vectors_differ"):
        say(f"note: {OTHER_VECTORS}")
