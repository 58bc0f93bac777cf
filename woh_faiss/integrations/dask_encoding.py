"""Codes of data sets that no machine holds: made on Dask workers, written as files for `add_codes`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask import delayed
from distributed import Client
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.index.code_files import write_codes
from woh_faiss.inputs import arrow_values as values
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.blocks import BLOCK, Rows
from woh_faiss.learner.hasher import Hasher, encoded

from .dask import Cluster, Distributed, cluster_of, distributed_features

#: Files that the workers are at.
AHEAD = 4


def encode(
    hasher: Hasher,
    X: da.Array,
    folder: str | os.PathLike[str],
    *,
    tags: Any = None,
    ids: Any = None,
    keys: Any = None,
    metadata: Mapping[str, Any] | None = None,
    rows: int = 64 * BLOCK,
    client: Client | None = None,
) -> list[Path]:
    """Encode features where they are, and write codes-000000.npz and so on for `WOHIndex.add_codes`.

    Each file is there whole or not at all, and the same in every run, with any partitions of X: after a death
    run it again.

    Parameters
    ----------
    hasher : Hasher
        `WOHIndex.hasher` of the index that the codes are for.
    X : (n, d) dask.array of a real dtype
    folder : path
        Made if it is not there; written by this process.
    tags, ids, keys : as `Chunk.of` takes them, or dask collections of that
    metadata : dict, optional
        Columns by name, each as `Chunk.of` takes it, or a dask collection of that.
    rows : int
        Items of a file, rounded up to whole blocks.
    client : distributed.Client, optional
        The current one if it is not given.

    Raises
    ------
    InputError
        Something cannot be used, or the folder has code files that this run would not write.
    ClusterError, StoreError
        Workers were lost, or a file cannot be written; the files before it are there.
    """
    rows = -(-validate.whole_number(rows, "rows", 1) // BLOCK) * BLOCK
    with cluster_of(client) as cluster:
        X = distributed_features(X, cluster)
        if X.shape[1] != hasher.d:
            raise InputError(f"features have {X.shape[1]} columns, the model was fitted with {hasher.d}")
        named = [cluster.here(given) for given in (tags, ids, keys)]
        columns = cluster.columns_here(metadata)
        none = np.zeros((len(X), 1), np.int8)
        items = Chunk.of(none, named[0], ids=named[1], keys=named[2], metadata=columns)
        files = Path(folder)
        files.mkdir(parents=True, exist_ok=True)
        cuts = [slice(start, min(start + rows, len(X))) for start in range(0, len(X), rows)]
        paths = [files / f"codes-{number:06}.npz" for number in range(len(cuts))]
        if others := sorted(
            {path.name for path in files.glob("codes-*.npz")} - {path.name for path in paths}
        ):
            raise InputError(f"{files} has {others[0]}, which this run does not write; give an empty folder")
        model, waiting = hasher.fingerprint, deque[Rows[NDArray[np.uint8]]]()
        ahead = iter(cuts)
        for cut, path in zip(cuts, paths, strict=True):  # few at a time: neither side waits, nor fills
            waiting += [_encoding(X, rows, hasher, cluster) for rows in islice(ahead, AHEAD - len(waiting))]
            packed = np.concatenate(waiting.popleft().gathered())
            write_codes(path, replace(items.rows(cut), features=packed), model)
    return paths


def _encoding(X: da.Array, rows: slice, hasher: Hasher, cluster: Cluster) -> Rows[NDArray[np.uint8]]:
    return Distributed(X[rows], cluster, rows.start).rows().map(encoded, hasher)


class CodeTable(NamedTuple):
    """A data set: features as a dask array, the rest here. The arguments of `partial_fit` and `encode`."""

    X: da.Array
    tags: list[Any] | None
    ids: NDArray[Any] | None
    keys: list[Any] | None
    metadata: dict[str, list[Any]] | None = None


def read_parquet(
    path: str | os.PathLike[str],
    features: str = "features",
    *,
    tags: str | None = None,
    ids: str | None = None,
    keys: str | None = None,
    metadata: Sequence[str] = (),
) -> CodeTable:
    """A Parquet file, or a folder of them in the order of their names, by row groups; needs pyarrow.

    Parameters
    ----------
    path : path
        Where this process and the workers find it.
    features : str
        Column of lists of numbers, all of one length.
    tags, ids, keys : str, optional
        Columns of lists of str (or str), of integers and of str; they are read here, at once.
    metadata : sequence of str
        Columns of metadata, read here, too.

    Raises
    ------
    InputError
        There is no such file or column, or a row's features are missing or of another length.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = Path(os.fsdecode(path))
    files = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
    wanted = [column for column in (tags, ids, keys, *metadata) if column is not None]
    parts, rest, d = [], [], 0
    try:
        for file in files:
            with pq.ParquetFile(file) as parquet:
                if missing := [
                    name for name in (features, *wanted) if name not in parquet.schema_arrow.names
                ]:
                    raise InputError(
                        f"{file} has no column {missing[0]!r}, only "
                        f"{validate.listed(parquet.schema_arrow.names)}"
                    )
                if wanted:
                    rest.append(parquet.read(columns=wanted))
                for group in range(parquet.num_row_groups):
                    n = parquet.metadata.row_group(group).num_rows
                    if n and not d:
                        batch = next(parquet.iter_batches(1, row_groups=[group], columns=[features]))
                        first = _first(pa.chunked_array([batch[features]]), file)
                        d, dtype = first.shape[1], first.dtype
                    if n:
                        block = delayed(_row_group)(str(file), group, features, d)
                        parts.append(da.from_delayed(block, (n, d), dtype))
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{place} cannot be read as Parquet: {' '.join(str(error).split())[:160]}"
        ) from error
    if not parts:
        raise InputError(f"{place} has no rows; give a .parquet file or a folder of them")
    table = pa.concat_tables(rest) if rest else None
    columns = [
        None if name is None or table is None else table[name].to_pylist() for name in (tags, ids, keys)
    ]
    return CodeTable(
        da.concatenate(parts),
        columns[0],
        None if columns[1] is None else np.array(columns[1]),
        columns[2],
        {name: values.cells(table[name], name) for name in metadata}
        if table is not None and metadata
        else None,
    )


def _first(column: Any, file: object) -> NDArray[Any]:
    """The features (1, d) in a column of one row."""
    if values.kind(column.type) != "vectors" or not (row := values.features(column)).size:
        raise InputError(f"{file}: features are {column.type}, expected lists of numbers, not empty")
    return row


def _row_group(file: str, group: int, features: str, d: int) -> NDArray[Any]:
    """The features (n, d) of one row group."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as parquet:
        column = parquet.read_row_group(group, columns=[features])[features]
    bad = f"{file}: features of row group {group} are not all lists of {d} numbers; repair it"
    try:
        rows = values.features(column)
    except InputError as error:
        raise InputError(bad) from error
    if rows.shape[1] != d:
        raise InputError(bad)
    return rows
