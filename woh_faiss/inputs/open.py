"""Inputs by the first bytes of each path, and all of them as one sequence of chunks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from numpy.lib import format as npy

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.encoders.encoder import EncoderRecord
from woh_faiss.errors import InputError
from woh_faiss.io.npz import damage
from woh_faiss.metadata import check_names
from woh_faiss.tags.splitting import TagTexts

from .arrow import folder_sources, has_tables, is_arrow, table_source
from .bad_rows import BadRows
from .chunk import Chunk, OnDuplicate, read_good_rows
from .columns import Columns
from .embeddings import embedding_sources, is_embeddings
from .picture_files import holds_pictures
from .source import CHUNK_SIZE, ChunkSource, Reading

if TYPE_CHECKING:
    from .pictures import PictureOptions


class Piece(NamedTuple):
    """One chunk: its number from 1 among all, where it is from, what it holds, whether it named its items."""

    number: int
    where: str
    chunk: Chunk
    named: bool


class Inputs:
    """Chunks of all inputs, in order; `len` is their number. Iteration reads them one by one.

    Attributes
    ----------
    sources : list of ChunkSource
        One a file, or a pair of files.
    size : int or None
        Rows of a chunk; None: a chunk file is one chunk, others are cut into chunks of `CHUNK_SIZE`.
    bad : BadRows, optional
        What takes the rows that cannot be used; without it they are errors.
    has_pictures : bool
        Whether some of them were pictures, which are features by now.
    """

    has_pictures = False

    def __init__(self, sources: list[ChunkSource], size: int | None, bad: BadRows | None = None) -> None:
        self.sources, self.size, self.bad = sources, size, bad

    def __len__(self) -> int:
        return sum(self._count(source) for source in self.sources)

    def __iter__(self) -> Iterator[Chunk]:
        return (piece.chunk for piece in self.pieces())

    def pieces(self) -> Iterator[Piece]:
        """The chunks, with their numbers and places."""
        number = 0
        for source in self.sources:
            start = 0
            chunks = source.read(self._size(source))
            while True:
                with budget.reading(source.where):  # what is made of a chunk
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                number += 1
                alone = self._count(source) == 1
                where = source.where if alone else f"{source.where}, rows {start} to {start + len(chunk) - 1}"
                yield Piece(number, where, chunk, chunk.ids is not None or chunk.keys is not None)
                start += len(chunk)

    def guessed(self, wanted: Columns) -> list[str]:
        """A line for every different guess of columns: which they are, and of the first file they are in."""
        lines: dict[Columns, str] = {}
        for source in self.sources:
            said = zip(Columns._fields, wanted, source.columns, strict=True)
            guesses = [f"{role} from {name!r}" for role, given, name in said if name and given is None]
            if guesses:
                lines.setdefault(source.columns, f"{source.where}: {', '.join(guesses)}")
        return list(lines.values())

    def notes(self, wanted: Columns) -> list[str]:
        """Lines for a person: what was guessed, and what was left out."""
        notes: dict[str, str] = {}  # what is true of many files is said once
        for source in self.sources:
            if source.note:
                notes.setdefault(source.note.removeprefix(source.where), source.note)
        return [*self.guessed(wanted), *notes.values()]

    def count(self) -> int:
        """Items of all inputs; a chunk file is read for it, and all where bad rows are left out."""
        if self.bad is not None:
            return sum(len(piece.chunk) for piece in Inputs.pieces(self))
        n = 0
        for source in self.sources:
            n += sum(map(len, source.read(None))) if source.n is None else source.n
        return n

    @property
    def encoder(self) -> EncoderRecord | None:
        """What made the features, where a file says it; `open_inputs` refuses several."""
        return next((source.encoder for source in self.sources if source.encoder is not None), None)

    @property
    def whole(self) -> bool:
        """Whether all are chunk files, each of which is one chunk."""
        return all(source.n is None for source in self.sources)

    def _size(self, source: ChunkSource) -> int | None:
        return self.size if source.n is None else self.size or CHUNK_SIZE

    def _count(self, source: ChunkSource) -> int:
        return 1 if source.n is None else math.ceil(source.n / (self.size or CHUNK_SIZE))


def open_inputs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    columns: Columns | None = None,
    chunk_size: int | None = None,
    learn: bool = False,
    bad: BadRows | None = None,
    tag_separator: str | None = None,
    note: Callable[[str], object] | None = None,
    on_duplicate: OnDuplicate = "error",
    metadata: Sequence[str] = (),
    pictures: PictureOptions | None = None,
) -> Inputs:
    """Inputs at the paths, inspected but not read: chunk files, Parquet, Arrow, HDF5, .mat, folders,
    pictures.

    Parameters
    ----------
    paths : sequence of paths
        Files and folders, in the order of the stream.
    columns : Columns, optional
        Names of columns (datasets, variables); those not named are guessed.
    chunk_size : int, optional
        Rows of a chunk. Without it a chunk file (.npz, .npy) is one chunk, and the rest is cut into chunks of
        `CHUNK_SIZE`. No chunk crosses from one file to the next.
    learn : bool
        Whether tags are needed.
    bad : BadRows, optional
        Takes rows whose features are missing, of another length or not finite, or whose id or key is missing;
        without it they are errors.
    tag_separator : str, optional
        The character between tags in a text. Without it, ``;`` where a text has one, else white space; or
        commas or pipes, where all of the first texts have them.
    note : callable, optional
        What takes a line about how tags are split, where the first texts tell.
    on_duplicate : "error", "skip" or "replace"
        Items of a chunk that have an id or key of another of its items: refused, or left out but for the
        first ("skip") or the last ("replace").
    metadata : sequence of str
        Names of columns (datasets, variables; arrays of a chunk file) that are the items' metadata.
    pictures : PictureOptions, optional
        How pictures, and folders of them, become features; all that are given are encoded now, and stand at
        the place of the first.

    Raises
    ------
    InputError
        A path is missing or damaged, its format is unknown, its columns are ambiguous, one of metadata is
        not there or holds no single values, or two encoders made the features.
    """
    check_names(metadata)
    if chunk_size is not None:
        chunk_size = validate.whole_number(chunk_size, "chunk_size", 1)
    wanted = columns or Columns()
    reading = Reading(TagTexts(tag_separator, note), on_duplicate, bad, tuple(metadata))
    held = [path for path in paths if holds_pictures(Path(os.fsdecode(path)))]
    sources = []
    for path in paths:
        if path not in held:
            sources += _sources(path, wanted, chunk_size, learn, reading)
        elif path is held[0]:
            sources += _picture_sources(held, pictures, learn, reading, tag_separator, note)
    inputs = Inputs(sources, chunk_size, bad)
    inputs.has_pictures = bool(held)
    if not len(inputs):
        raise InputError(
            f"{validate.listed([*map(display_path, paths)])} has no rows; give at least one item"
        )
    for source in sources:
        if inputs.encoder is not None:
            inputs.encoder.check(source.encoder, validate.listed([*map(display_path, paths)]), source.where)
    known = [source for source in sources if source.d is not None]
    for source in known:
        if source.d != known[0].d:
            raise InputError(
                f"{source.where} has features of {source.d} numbers, {known[0].where} of {known[0].d}; "
                "give inputs of one data set"
            )
    return inputs


def _picture_sources(
    paths: Sequence[str | os.PathLike[str]],
    pictures: PictureOptions | None,
    learn: bool,
    reading: Reading,
    tag_separator: str | None,
    note: Callable[[str], object] | None,
) -> list[ChunkSource]:
    if pictures is None:
        raise InputError(
            f"{display_path(paths[0])} holds pictures: give --encoder where a command takes it, or make "
            "features of them by 'woh-index embed' (docs/pictures.md)"
        )
    from .pictures import embedded

    folder, kept = embedded(paths, pictures, learn, tag_separator, reading.metadata, note)
    wanted = Columns("features", None if pictures.tags_from is not None else "", "", "path")

    def owned(source: ChunkSource) -> ChunkSource:
        def read(size: int | None, _kept: object = kept) -> Iterator[Chunk]:
            return source.read(size)

        where = f"{validate.listed([*map(display_path, paths)])} ({Path(source.where).name})"
        return replace(source, where=where, read=read, columns=Columns(), labels=None)

    return [owned(source) for source in folder_sources(folder, wanted, learn, reading)]


def _sources(
    path: str | os.PathLike[str], wanted: Columns, size: int | None, learn: bool, reading: Reading
) -> list[ChunkSource]:
    file = Path(os.fsdecode(path))
    with budget.reading(display_path(file)), damage(display_path(file)):
        if file.is_dir():
            if is_embeddings(file):
                return embedding_sources(file, wanted, learn, reading)
            if not (file / "features.npy").exists() and has_tables(file):
                return folder_sources(file, wanted, learn, reading)
        elif file.is_file():
            with file.open("rb") as stream:
                start = stream.read(520)
            if is_arrow(start):
                return [table_source(file, wanted, learn, reading)]
            if start.startswith(b"MATLAB"):
                from .mat import mat_source

                return [mat_source(file, wanted, learn, reading)]
            if start.startswith(b"\x89HDF"):
                from .hdf5 import hdf5_source

                return [hdf5_source(file, wanted, learn, reading)]
            if not start.startswith((b"PK", npy.MAGIC_PREFIX)):
                raise InputError(
                    f"{display_path(file)} is none of .npz, .npy, Parquet, Arrow, Feather, HDF5 and "
                    f".mat (it starts with {start[:8]!r}); docs/inputs.md shows how each is written"
                )
    return [_chunk_file(file, wanted, size, reading)]


def _chunk_file(file: Path, wanted: Columns, size: int | None, reading: Reading) -> ChunkSource:
    """An .npz, a folder of .npy or an .npy, whose arrays have their names."""
    where = display_path(file)
    if any(wanted):
        raise InputError(
            f"{where} is a chunk file, whose arrays have fixed names; leave the --...-column out"
        )

    def whole_file() -> Chunk | None:
        how = reading.bad, reading.split_as, reading.on_duplicate, reading.metadata
        return read_good_rows(file, *how)

    def read(step: int | None) -> Iterator[Chunk]:
        chunk = whole_file()
        if chunk is None:
            return
        if step is None:
            yield chunk
            return
        for start in range(0, len(chunk), step):
            part = replace(chunk.rows(slice(start, start + step)), left_out=0 if start else chunk.left_out)
            if part.tags is None:
                yield part
                continue
            yield replace(part, tags=part.tags.own())

    if size is None:
        return ChunkSource(where, None, None, wanted, read)
    whole = whole_file()
    if whole is None:
        return ChunkSource(where, 0, None, wanted, read)
    n, d = whole.features.shape
    return ChunkSource(where, n, d, wanted, read)
