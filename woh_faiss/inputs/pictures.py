"""Pictures among the inputs: they are encoded into files of features first, which are read as any others."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from woh_faiss.display import display_path
from woh_faiss.encoders import Encoder
from woh_faiss.errors import InputError

from .columns import Columns
from .feature_files import REPORT, SIZES, PictureWork, Written, write_features
from .picture_files import PictureFile, is_text, list_pictures
from .picture_tags import open_tags
from .source import CHUNK_SIZE

#: A bar for so many pieces of work of a kind: what is entered takes how many are done, and how many of them
#: new.
Bar = Callable[[int, str], AbstractContextManager[Callable[[int, int], object]]]


def _no_bar(_total: int, _what: str) -> AbstractContextManager[Callable[[int, int], object]]:
    return nullcontext(lambda _done, _new: None)


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How pictures become features with tags.

    Attributes
    ----------
    encoder : Encoder, or callable
        The latter gives it once there are pictures.
    tags_from : str, optional
        As `PictureTags` takes it; None for no tags.
    folder : path, optional
        Where features are kept, and looked for: see `write_features`. Without it they are in a temporary
        folder as long as the inputs are used.
    workers : int
        Processes that encode.
    chunk_size : int
        Pictures of a chunk.
    known : callable, optional
        Given keys it gives those whose pictures need not be encoded again, which are left out.
    note : callable
        Gets a line about each kind of thing that a person should know of.
    bar : callable
        Shows how far it is.
    """

    encoder: Encoder | Callable[[], Encoder]
    tags_from: str | os.PathLike[str] | None = None
    folder: str | os.PathLike[str] | None = None
    workers: int = 1
    chunk_size: int = CHUNK_SIZE
    known: Callable[[list[str]], set[str]] | None = None
    note: Callable[[str], object] = lambda _line: None
    bar: Bar = _no_bar

    def opened_encoder(self) -> Encoder:
        """The encoder, opened if it was not."""
        return self.encoder() if callable(self.encoder) else self.encoder


def embed_pictures(
    paths: Sequence[str | os.PathLike[str]],
    options: PictureOptions,
    folder: Path,
    *,
    tag_separator: str | None = None,
    tag_columns: Columns | None = None,
    metadata: Sequence[str] = (),
    split_note: Callable[[str], object] | None = None,
) -> Written:
    """Features of pictures, and of those in folders, as Parquet files in `folder`.

    Parameters
    ----------
    paths : sequence of paths
        Pictures, and folders of them.
    options : PictureOptions
        Its `folder` is not looked at.
    folder : Path
        Where the files are written: ``path``, ``width``, ``height``, ``tags``, ``features``.
    tag_separator : str, optional
        The character between tags in a text.
    tag_columns : Columns, optional
        Columns of the file of tags.
    metadata : sequence of str
        Columns of the file of tags that go along.
    split_note : callable, optional
        Gets a line about how texts are split into tags.

    Raises
    ------
    InputError
        There are no pictures, none can be used, tags are not there, or as `write_features`.
    """
    tags = open_tags(
        options.tags_from,
        separator=tag_separator,
        columns=tag_columns,
        metadata=metadata,
        note=split_note,
    )
    beside = () if tags is None else tags.beside
    files = list_pictures([Path(os.fsdecode(path)) for path in paths], beside, options.note)
    if tags is not None:
        tags.check(files)
    if options.known is not None:
        files = _new(files, options.known, options.note)
    encoder = options.opened_encoder()
    with options.bar(len(files), "pictures") as step:
        done = write_features(
            PictureWork(files, tags),
            encoder,
            folder,
            chunk_size=options.chunk_size,
            workers=options.workers,
            step=step,
        )
    for line in [] if tags is None else tags.notes(len(files)):
        options.note(line)
    if done.animated:
        options.note(f"pictures that are animated, of which the first frame was taken: {done.animated:,}")
    if done.kept:
        options.note(f"files of features that were there already: {done.kept:,} of {done.files:,}")
    return done


def _new(
    files: list[PictureFile], known: Callable[[list[str]], set[str]], note: Callable[[str], object]
) -> list[PictureFile]:
    """The files whose keys are not known; of none the first, for inputs without an item are an error."""
    held = known([file.key for file in files if is_text(file.key)])
    new = [file for file in files if file.key not in held] or files[:1]
    if left := len(files) - len(new):
        note(f"pictures that are in the index already, and are not encoded again: {left:,}")
    return new


class _Folder:
    """A temporary folder that goes when nothing needs it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="woh-features-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def embedded(
    paths: Sequence[str | os.PathLike[str]],
    options: PictureOptions,
    learn: bool,
    tag_separator: str | None,
    metadata: Sequence[str],
    split_note: Callable[[str], object] | None,
) -> tuple[Path, object]:
    """The folder of the features of pictures, and what keeps it while it is needed.

    Raises
    ------
    InputError
        As `embed_pictures`; or tags are needed and nobody said where they are.
    """
    if learn and options.tags_from is None:
        raise InputError(
            f"{display_path(paths[0])}: pictures bring no tags to learn from; --tags-from FILE, sidecars, "
            "folders or keywords says where they are, --bits 0 learns nothing"
        )
    kept: _Folder | None = _Folder() if options.folder is None else None
    folder = kept.path if kept is not None else Path(os.fsdecode(options.folder or ""))
    of_tags = [name for name in metadata if name not in SIZES]
    done = embed_pictures(
        paths, options, folder, tag_separator=tag_separator, metadata=of_tags, split_note=split_note
    )
    if (line := left_out(done)) is not None:
        report = folder / REPORT
        options.note(f"{line}; {display_path(report)} lists them" if kept is None else _first(line, report))
    return folder, kept


def left_out(done: Written) -> str | None:
    """A line about pictures that were left out, and those without tags because these are damaged."""
    told = [f"pictures that were left out: {done.left_out:,}"] if done.left_out else []
    told += [f"pictures whose tags could not be read: {done.untagged:,}"] if done.untagged else []
    return ", ".join(told) or None


def _first(line: str, report: Path) -> str:
    """The line with the first of those in a report that does not stay."""
    first = json.loads(report.read_text(encoding="utf-8").splitlines()[0])
    return f"{line}, such as {first['file']}: {first['fault']}; --features FOLDER keeps the list"
