"""Parquet and Arrow files (Feather is one), and folders of them, in batches: never a file at a time.

pyarrow is imported in the functions that need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.encoders.encoder import FEATURES, METADATA, EncoderRecord
from woh_faiss.errors import InputError
from woh_faiss.io.npz import BOMB_BYTES, BOMB_RATIO, damage
from woh_faiss.tags.splitting import TagTexts

from . import arrow_values as values
from .chunk import Chunk
from .columns import Columns, Offer, check_metadata, choose, choose_one, natural, passed_over
from .saved_dataset import STATE, saved_files
from .source import CHUNK_SIZE, ChunkSource, LabelColumn, Reading, at, chunk_at

#: What such files are called in a folder; alone, a file's first bytes decide.
SUFFIXES = (".parquet", ".parq", ".pq", ".arrow", ".arrows", ".feather", ".ipc")
#: Bytes read at a time of each column, and rows of a batch.
_BUFFER, _ROWS = 1 << 20, 1 << 14


@dataclass(frozen=True, slots=True)
class ArrowTable:
    """A Parquet or Arrow file: its schema and rows were read, its data are when they are asked for.

    Attributes
    ----------
    format : "parquet", "file" or "stream"
        The latter two are Arrow's.
    """

    path: Path
    where: str
    format: str
    schema: Any
    n: int

    def tables(self, names: list[str], size: int | None) -> Iterator[Any]:
        """Its rows, `size` at a time, with these columns only."""
        import pyarrow as pa

        size = size or self.n
        waiting: list[Any] = []
        have = 0
        for batch in self._batches(names, min(size, _ROWS)):
            while batch.num_rows:
                part = batch.slice(0, size - have)
                batch = batch.slice(part.num_rows)
                waiting.append(part)
                have += part.num_rows
                if have == size:
                    yield pa.Table.from_batches(waiting)
                    waiting, have = [], 0
        if have:
            yield pa.Table.from_batches(waiting)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        with damage(self.where), _opened(self.path, self.format, names, self.schema) as reader:
            if self.format == "parquet":
                found = reader.iter_batches(rows, columns=names, use_threads=False)
            elif self.format == "file":
                found = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                found = iter(reader)
            read = 0
            for batch in found:
                batch = batch.select(names)
                batch.validate(full=True)  # an Arrow file's offsets point wherever its bytes say
                read += batch.num_rows
                budget.take(batch.get_total_buffer_size(), "a batch of rows")
                yield batch
            if read != self.n:
                raise InputError(f"{self.where} has {read} rows, it said {self.n}; copy or write it again")


def open_table(path: Path) -> ArrowTable:
    """A Parquet or Arrow file, by its first bytes.

    Raises
    ------
    InputError
        It is damaged, encrypted, of Feather's first version, or pyarrow is not there.
    """
    where = display_path(path)
    _pyarrow(where)
    with damage(where):
        with path.open("rb") as stream:
            start = stream.read(8)
        if start.startswith(b"FEA1"):
            raise InputError(f"{where} is Feather of version 1; write it again with version 2")
        if start.startswith(b"PARE"):
            raise InputError(f"{where} is encrypted Parquet; write it again without a key")
        format_ = "parquet" if start.startswith(b"PAR1") else "file" if start[:6] == b"ARROW1" else "stream"
        with _opened(path, format_) as reader:
            schema = reader.schema_arrow if format_ == "parquet" else reader.schema
            if format_ == "parquet":
                n = reader.metadata.num_rows
            elif format_ == "file":
                from pyarrow import dataset

                n = dataset.dataset(str(path), format="ipc").count_rows()
            else:
                n = sum(batch.num_rows for batch in reader)
        if n < 0:
            raise InputError(f"{where} says that it has {n} rows; copy or write it again")
    return ArrowTable(path, where, format_, schema, int(n))


def is_arrow(start: bytes) -> bool:
    """Whether a file that starts so is one of these."""
    return start.startswith((b"PAR1", b"PARE", b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"))


def _pyarrow(where: str) -> None:
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(
            f"{where} is Parquet or Arrow, which pyarrow reads: install woh-faiss[arrow]"
        ) from None
    if budget.by_system():  # other allocators reserve a gigabyte at once, which would count
        pa.set_memory_pool(pa.system_memory_pool())


@contextmanager
def _opened(path: Path, format_: str, names: list[str] | None = None, schema: Any = None) -> Iterator[Any]:
    if format_ == "parquet":
        from pyarrow import parquet

        # Without a pre-buffer and with a small one: else a row group is read whole. Text that a dictionary
        # stands for is not written out: 18 kB may stand for gigabytes.
        with parquet.ParquetFile(
            path, read_dictionary=_texts(names, schema), pre_buffer=False, buffer_size=_BUFFER
        ) as file:
            yield file
        return
    import pyarrow as pa

    options = None
    if names is not None:
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
    with pa.OSFile(str(path)) as stream:  # a map would end the process if the file is cut
        opened = pa.ipc.open_file if format_ == "file" else pa.ipc.open_stream
        with opened(stream, options=options) as reader:
            yield reader


def _texts(names: list[str] | None, schema: Any) -> list[str]:
    """The columns of text; of lists of it pyarrow 26 cannot do this in every case."""
    types = {name: schema.field(name).type for name in names or ()}
    return [name for name, type_ in types.items() if values.is_text(type_) or values.is_bytes(type_)]


# ---- sources ---------------------------------------------------------------------------------------------


def table_source(
    path: Path, wanted: Columns, learn: bool, reading: Reading, fields: dict[str, str] | None = None
) -> ChunkSource:
    """The rows of one file; `fields` is what its folders' names say (``country=fr``)."""
    table = open_table(path)
    partition = fields or {}
    extra = [Offer(name, "text", "in the folder's name") for name in partition]
    offered = [offer for offer in values.offers(table.schema) if offer.name not in partition] + extra
    needed = ("features", "tags") if learn else ("features",)
    columns = choose(table.where, offered, wanted, needed)
    check_metadata(table.where, offered, reading.metadata)
    assert columns.features is not None  # noqa: S101 - it was needed; this tells mypy
    d = values.width(table.schema, columns.features)
    if d is None and table.n:
        with at(table.where, 0):
            d = _first_width(table, columns.features, reading.bad is not None)
    _no_bomb(table, d or 0)
    named = [name for name in dict.fromkeys([*columns.named, *reading.metadata]) if name not in partition]

    def read(size: int | None) -> Iterator[Chunk]:
        start = 0
        for part in table.tables(named, size):
            n = part.num_rows
            if reading.bad is not None and d is not None:
                faults = values.faults(part, columns, d)
                part = values.without(part, reading.bad.kept(table.where, start, n, faults))
                if not part.num_rows:
                    start += n
                    continue
            found = chunk_values(
                part, columns, table.where, start, reading.split_as, partition, reading.metadata
            )
            if found["features"].shape[1] != d:
                raise InputError(
                    f"{table.where}: features from row {start} on have {found['features'].shape[1]} numbers, "
                    f"those of row 0 {d}; give all items features of one width"
                )
            yield chunk_at(table.where, start, reading.on_duplicate, **found)
            start += n

    labels = label_column(table, offered, partition)
    with at(table.where, 0):
        told = (table.schema.metadata or {}).get(METADATA)
        encoder = None
        if told is not None and columns.features == FEATURES:
            encoder = EncoderRecord.from_json(told)
            if d is not None and encoder.dimension != d:
                raise InputError(
                    f"its features have {d} numbers, and its metadata says that the encoder {encoder.name} "
                    f"made them, which gives {encoder.dimension}; take {METADATA.decode()} out of it"
                )
    note = passed_over(table.where, offered, wanted, columns)
    return ChunkSource(table.where, table.n, d, columns, read, note=note, labels=labels, encoder=encoder)


def _first_width(table: ArrowTable, name: str, skip: bool) -> int:
    """Numbers in the features of row 0; with `skip` of the first row that has any."""
    if skip:
        for part in table.tables([name], CHUNK_SIZE):
            lengths = part.column(0).combine_chunks().value_lengths().drop_null().to_numpy()
            if len(lengths := lengths[lengths > 0]):
                return int(lengths[0])
    return int(values.features(next(table.tables([name], 1)).column(0)).shape[1])


def label_column(table: ArrowTable, offered: list[Offer], partition: dict[str, str]) -> LabelColumn:
    """Labels of a file; `partition` as `table_source`'s fields."""

    def read(name: str) -> Any:
        if name in partition:
            return values.label_names([partition[name]] * table.n)
        with at(table.where, 0):
            return values.labels(next(table.tables([name], None)).column(0))

    return LabelColumn(lambda name: choose_one(table.where, "labels", offered, name), read)


def chunk_values(
    part: Any,
    columns: Columns,
    where: str,
    start: int,
    split_as: TagTexts,
    partition: dict[str, str] | None = None,
    metadata: Sequence[str] = (),
) -> dict[str, Any]:
    """Arguments of `Chunk.of` from a table of rows from `start` on; what has no column is not among them."""
    found: dict[str, Any] = {}
    with at(where, start):
        if columns.features is not None:
            found["features"] = values.features(part.column(columns.features))
        if columns.tags is not None and partition and columns.tags in partition:
            text = partition[columns.tags]
            found["tags"] = values.tags_of([[text] if text else []] * part.num_rows, "tags")
        elif columns.tags is not None:
            found["tags"] = values.tags(part.column(columns.tags), columns.tags, split_as)
        if columns.id is not None:
            found["ids"] = values.ids(part.column(columns.id))
        if columns.key is not None:
            found["keys"] = values.keys(part.column(columns.key))
        if metadata:
            held, n = partition or {}, part.num_rows
            found["metadata"] = {
                name: [held[name] or None] * n if name in held else values.cells(part.column(name), name)
                for name in metadata
            }
    return found


def _no_bomb(table: ArrowTable, d: int) -> None:
    """Before it is decoded: numbers that are real do not repeat a thousand times."""
    claimed, stored = 2 * table.n * d, table.path.stat().st_size
    if claimed > max(BOMB_BYTES, BOMB_RATIO * stored):
        raise InputError(
            f"{table.where} unpacks {stored} bytes to {table.n} times {d} numbers; it is damaged, or write "
            "it uncompressed"
        )


def folder_sources(folder: Path, wanted: Columns, learn: bool, reading: Reading) -> list[ChunkSource]:
    """The files of a folder and of those in it, in natural order; no chunk crosses from one to the next.

    Raises
    ------
    InputError
        As `table_source` and `saved_files`.
    """
    found, note = _files(folder)
    sources = []
    for path in found:
        parts = [part.partition("=") for part in path.relative_to(folder).parts[:-1]]
        fields = {name: _partition_value(value) for name, sign, value in parts if sign}
        sources.append(table_source(path, wanted, learn, reading, fields))
        wanted = wanted.with_those_of(sources[0].columns)
    if note is not None and sources:
        first = sources[0].note
        sources[0] = replace(sources[0], note=note if first is None else f"{note}; {first}")
    return sources


def _files(folder: Path) -> tuple[list[Path], str | None]:
    """The files of a folder and of those in it, in order, and a note where some are left out."""
    found: list[tuple[Any, Path]] = []
    splits: dict[str, Path] = {}
    left = 0
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        names = [
            name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith((".", "_"))
        ]
        place, files = [*map(natural, Path(root).relative_to(folder).parts)], [Path(root, n) for n in names]
        saved = saved_files(Path(root), names)
        if saved is None:
            found += [([*place, natural(path.name)], path) for path in files]
            continue
        found += [([*place, natural(str(number))], path) for number, path in enumerate(saved.files)]
        splits.setdefault(saved.split, Path(root))
        left += saved.others
    if len(splits) > 1:
        raise InputError(
            f"{display_path(folder)} has data sets of several splits ({validate.listed([*splits])}); give "
            f"the folder of one of them, such as {display_path(min(splits.values()))}"
        )
    found.sort()
    word = "file" if left == 1 else "files"
    told = f"{display_path(folder)}: {left} {word} left out that {STATE} does not name"
    return [path for _, path in found], told if left else None


def _partition_value(text: str) -> str:
    return "" if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text)


def has_tables(folder: Path) -> bool:
    """Whether a folder, or one in it, holds such files."""
    return any(name.lower().endswith(SUFFIXES) for _, _, names in os.walk(folder) for name in names)
