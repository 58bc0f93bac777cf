"""woh-index import: a new index from the vectors of a Faiss file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .build import learn_anew
from .errors import one_line_errors
from .options import (
    chunk_size_option,
    column_options,
    config_options,
    first_sample_option,
    index_option,
    json_option,
    max_memory_option,
    metadata_option,
    on_duplicate_option,
    say_split,
    tag_separator_option,
)

if TYPE_CHECKING:
    from woh_faiss.index.item_ids import OnDuplicate


@click.command(name="import")
@click.argument("faiss_path", metavar="FAISS", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--tags",
    type=click.Path(path_type=Path, readable=False),
    help="File with each vector's tags, in order: .npz, Parquet, JSON, CSV, or text, a line each.",
)
@index_option
@config_options
@chunk_size_option
@column_options("tags", "id", "key")
@tag_separator_option
@metadata_option
@first_sample_option
@json_option
@on_duplicate_option
@max_memory_option
@one_line_errors
def import_(
    faiss_path: Path,
    tags: Path | None,
    index_path: Path,
    config: dict[str, Any],
    word_vectors: Path | None,
    chunk_size: int | None,
    columns: dict[str, str | None],
    tag_separator: str | None,
    metadata: Sequence[str],
    first_sample: int,
    as_json: bool,
    on_duplicate: OnDuplicate,
) -> None:
    """Create an index from the vectors and ids of FAISS, an index of float vectors.

    FAISS holds an IndexFlat, IndexHNSWFlat, IndexIVFFlat (in the order of its ids) or IndexScalarQuantizer
    (8 bits or float16), alone or in an IndexIDMap or IndexIDMap2. Nothing is learned without --tags. Columns
    are those of the file of tags, --metadata too. On any error no index is left behind.

    \b
    Example:
        woh-index import photos.faiss --tags tags.txt --bits 64
    """
    from woh_faiss.inputs import Columns
    from woh_faiss.inputs.faiss_file import open_faiss

    inputs = open_faiss(
        faiss_path,
        tags,
        columns=Columns(**columns),
        chunk_size=chunk_size,
        tag_separator=tag_separator,
        on_duplicate=on_duplicate,
        metadata=metadata,
        note=say_split,
    )
    learn_anew(inputs, index_path, config, word_vectors, first_sample, on_duplicate, as_json)
