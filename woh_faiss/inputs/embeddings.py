"""Folders as clip-retrieval writes them: img_emb/img_emb_0.npy with metadata/metadata_0.parquet, and so on.

Rows pair by position, files by the number in their names, which may be padded with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from woh_faiss import validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import read_npy

from . import arrow_values as values
from .arrow import ArrowTable, chunk_values, label_column, open_table
from .arrow_values import offers
from .bad_rows import of_features
from .chunk import Chunk
from .columns import Columns, check_metadata, choose, passed_over
from .source import ChunkSource, Reading, at, chunk_at

#: The folders of features and of what is known of each; others (text_emb) are not read.
FEATURES, METADATA = "img_emb", "metadata"


def is_embeddings(folder: Path) -> bool:
    """Whether a folder is of this layout."""
    return (folder / FEATURES).is_dir()


def embedding_sources(folder: Path, wanted: Columns, learn: bool, reading: Reading) -> list[ChunkSource]:
    """The pairs of files of a folder, by number.

    Raises
    ------
    InputError
        A file has no partner, a pair has different numbers of rows, or the columns are not clear.
    """
    arrays, tables = _numbered(folder / FEATURES, ".npy"), _numbered(folder / METADATA, ".parquet")
    for here, there, missing in ((arrays, tables, METADATA), (tables, arrays, FEATURES)):
        if alone := sorted(here.keys() - there.keys()):
            raise InputError(
                f"{display_path(here[alone[0]])} has no partner of number {alone[0]} in "
                f"{display_path(folder / missing)}; give both, or take it away"
            )
    if not arrays:
        raise InputError(f"{display_path(folder / FEATURES)} has no files such as img_emb_0.npy")
    if wanted.features:
        raise InputError(
            f"{display_path(folder)} has its features in {FEATURES}, not in a column "
            f"{validate.short(wanted.features)}; leave --features-column out"
        )
    sources = []
    for number in sorted(arrays):
        sources.append(_pair(arrays[number], open_table(tables[number]), wanted, learn, reading))
        wanted = wanted.with_those_of(sources[0].columns._replace(features=None))
    return sources


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Files whose names end with a number, by that."""
    found: dict[int, Path] = {}
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in entries:
        match = re.fullmatch(rf"[^.].*?(\d{{1,18}}){re.escape(suffix)}", path.name, flags=re.DOTALL)
        if match is None:
            continue
        number = int(match[1])
        if number in found:
            raise InputError(
                f"{display_path(found[number])} and {display_path(path)} have the same number; give "
                "one of them"
            )
        found[number] = path
    return found


def _pair(path: Path, table: ArrowTable, wanted: Columns, learn: bool, reading: Reading) -> ChunkSource:
    where = display_path(path)
    X = read_npy(path, where, mapped=True)
    with at(where, 0):
        d = validate.features(X[:0]).shape[1]
    if len(X) != table.n:
        raise InputError(
            f"{where} has {len(X)} rows, {table.where} {table.n}: rows pair by position; write both again"
        )
    offered = [offer for offer in offers(table.schema) if offer.kind != "vectors"]
    columns = choose(table.where, offered, wanted, ("tags",) if learn else ())
    check_metadata(table.where, offered, reading.metadata)
    named = list(dict.fromkeys([*columns.named, *reading.metadata]))

    def read(size: int | None) -> Iterator[Chunk]:
        size = size or len(X)
        known = table.tables(named, size) if named else None
        for start in range(0, len(X), size):
            rows = X[start : start + size]
            part = None if known is None else next(known)
            if reading.bad is not None:
                faults = of_features(rows) + ([] if part is None else values.faults(part, columns, d))
                if not (kept := reading.bad.kept(where, start, len(rows), faults)).all():
                    rows, part = rows[kept], None if part is None else values.without(part, kept)
                if not len(rows):
                    continue
            with at(where, start):
                validate.features(rows)
            more = {}
            if part is not None:
                how = reading.split_as, None, reading.metadata
                more = chunk_values(part, columns, table.where, start, *how)
            yield chunk_at(table.where, start, reading.on_duplicate, rows, **more)

    labels = label_column(table, offers(table.schema), {})
    note = passed_over(table.where, offered, wanted, columns)
    return ChunkSource(where, len(X), d, columns._replace(features=FEATURES), read, note=note, labels=labels)
