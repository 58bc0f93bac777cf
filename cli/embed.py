"""woh-index embed: features of pictures or texts, as files that build reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .encoders import encoder_of, encoder_option, item_bar, tags_from_option, workers_option
from .errors import on_interrupt, one_line_errors
from .options import (
    column_options,
    max_memory_option,
    metadata_option,
    noted,
    say,
    say_split,
    tag_separator_option,
)

if TYPE_CHECKING:
    from woh_faiss.inputs.feature_files import Written


@click.command()
@click.argument(
    "sources", nargs=-1, required=True, metavar="SOURCE...", type=click.Path(path_type=Path, readable=False)
)
@encoder_option
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the features: Parquet files, which build reads.",
)
@tags_from_option
@tag_separator_option
@column_options("tags", "id", "key")
@metadata_option
@click.option(
    "--text-column",
    metavar="NAME",
    help="Column of the texts of a table.  [default: caption, text, title, ...]",
)
@click.option(
    "--chunk-size",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Items of a file, which is a chunk.",
)
@workers_option
@max_memory_option
@one_line_errors
def embed(
    sources: Sequence[Path],
    encoder_name: str | None,
    folder: Path,
    tags_from: str | None,
    tag_separator: str | None,
    columns: dict[str, str | None],
    metadata: Sequence[str],
    text_column: str | None,
    chunk_size: int,
    workers: int,
) -> None:
    """Write features of pictures, or of texts, into a folder of Parquet files that build reads.

    A SOURCE is a picture or a folder of pictures; or one file of texts: a text a line, or a table (Parquet,
    CSV, JSON lines) with a column of them. The key of a picture is its path in the folder that was given.
    Pictures that cannot be read are left out and listed in report.jsonl. Repeat an interrupted embed, and it
    continues with the file that is missing.

    \b
    Example:
        woh-index embed photos/ --encoder onnx:model.onnx --tags-from tags.csv -o emb/
        woh-index embed titles.txt --encoder st:all-MiniLM-L6-v2 -o emb/
    """
    from woh_faiss.display import display_path
    from woh_faiss.encoders.encoder import TEXTS
    from woh_faiss.errors import InputError
    from woh_faiss.inputs import Columns, PictureOptions, embed_pictures
    from woh_faiss.inputs.feature_files import REPORT, TextWork, write_features
    from woh_faiss.inputs.picture_files import holds_pictures
    from woh_faiss.inputs.pictures import left_out
    from woh_faiss.inputs.text_files import read_texts
    from woh_faiss.io.path_kind import path_kind
    from woh_faiss.tags.splitting import TagTexts

    on_interrupt(lambda: f"what {folder} has is kept; the same command continues")
    wanted = Columns(**columns)
    if len(sources) == 1 and path_kind(sources[0]) == "file" and not holds_pictures(sources[0]):
        if tags_from is not None:
            raise click.UsageError("--tags-from goes with pictures; texts have their tags in a column")
        texts = read_texts(sources[0], wanted, text_column, TagTexts(tag_separator, say_split), metadata)
        if texts.told is not None:
            noted(texts.told)
        encoder = encoder_of(encoder_name, side=TEXTS)
        with item_bar(len(texts.texts), "texts") as step:
            done = write_features(
                TextWork(texts, display_path(sources[0])),
                encoder,
                folder,
                chunk_size=chunk_size,
                workers=workers,
                step=step,
            )
        say(_summary(done, "texts", folder))
        return
    if text_column is not None:
        raise click.UsageError("--text-column goes with a file of texts")
    if tags_from is None and any(columns.values()):
        raise click.UsageError("--...-column goes with texts, or with a file of --tags-from")
    for path in sources:
        if path_kind(path) == "file" and not holds_pictures(path):
            raise InputError(
                f"{display_path(path)} is no picture; give pictures and folders, or one file of texts"
            )
    done = embed_pictures(
        sources,
        PictureOptions(
            encoder=lambda: encoder_of(encoder_name),
            tags_from=tags_from,
            workers=workers,
            chunk_size=chunk_size,
            note=noted,
            bar=item_bar,
        ),
        folder,
        tag_separator=tag_separator,
        tag_columns=wanted,
        metadata=metadata,
        split_note=say_split,
    )
    if (line := left_out(done)) is not None:
        noted(f"{line}; {display_path(folder / REPORT)} lists them")
    say(_summary(done, "pictures", folder))


def _summary(done: Written, what: str, folder: Path) -> str:
    files = "file" if done.files == 1 else "files"
    return f"{folder}: features of {done.items:,} {what} in {done.files:,} {files}"
