"""A committed state as an ordinary Faiss index, in memory or in a tested file of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, StoreError
from woh_faiss.io.atomic_write import write_whole

from . import faiss_indexes, files
from .scan import Rows, Scan
from .view import View

#: Queries that a file is tried with, and neighbours of each.
_QUERIES, _K = 256, 10


@dataclass(frozen=True, slots=True)
class Exported:
    """A Faiss file that was written.

    Attributes
    ----------
    path : str
    kind : str
    items : int
        Codes in it.
    d : int
        Bits of a code in it; queries need as many.
    bytes : int
        Of the file.
    parameters : dict
    recall : float
        Share of the 10 nearest that it found, of `queries` stored codes with flipped bits; where distances
        are equal either counts. 1 for the exact kinds, else nothing is written.
    queries : int
    radius : int or None
        Bits up to which multihash misses nothing.
    """

    path: str
    kind: str
    items: int
    d: int
    bytes: int
    parameters: dict[str, int]
    recall: float
    queries: int
    radius: int | None


def _alive(view: View, scan: Scan) -> tuple[NDArray[np.uint8], Rows]:
    """Codes and ids of the items of a search, in their order."""
    rows = scan.allowed
    return scan.codes, np.asarray(view.ids if rows is None else view.ids[rows], np.int64)


def in_memory(view: View, scan: Scan, kind: str, given: Mapping[str, Any], bits: int) -> Any:
    """A Faiss index of items of a state, those of `scan`: see `WOHIndex.to_faiss`."""
    codes, ids = _alive(view, scan)
    return faiss_indexes.built(kind, codes, faiss_indexes.complete(kind, given, len(codes), bits), ids)


def export(
    view: View, scan: Scan, path: Path, kind: str, given: Mapping[str, Any], bits: int, force: bool
) -> Exported:
    """Write it to `path`, once what was written has answered: see `WOHIndex.export`."""
    codes, ids = _alive(view, scan)
    parameters = faiss_indexes.complete(kind, given, len(codes), bits)
    _check_place(path, view.folder, force)
    view.check_rows()
    with files.failures(path, "write"), write_whole(path, "export") as file:
        faiss_indexes.write(file, faiss_indexes.built(kind, codes, parameters, ids))
        files.sync(file, path.name)
        recall, n = _tried(view, scan, Path(file.name), kind, bits)
        size = files.file_size(Path(file.name))
        _check_place(path, view.folder, force)  # somebody else may have been there meanwhile
    radius = faiss_indexes.radius(kind, parameters)
    return Exported(str(path), kind, len(codes), 8 * codes.shape[1], size, parameters, recall, n, radius)


def _check_place(path: Path, folder: Path, force: bool) -> None:
    if path.parent.resolve() == folder.resolve() or path.resolve().parent == folder.resolve():
        raise InputError(f"{path} is in the index folder {folder}; write it somewhere else")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} exists and is not a file; choose another name")
    if not force and os.path.lexists(path):
        raise InputError(f"{path} exists already; --force (force=True) replaces it, or choose another name")


def _tried(view: View, scan: Scan, path: Path, kind: str, bits: int) -> tuple[float, int]:
    """Recall against the scan of all codes, and queries; StoreError if an exact kind answers otherwise."""
    with files.open_regular(path) as file:
        index = faiss_indexes.read(file)
    codes, ids = _alive(view, scan)
    queries = faiss_indexes.probes(codes, bits, _QUERIES)
    k = min(_K, len(codes))
    if not k:
        return 1.0, 0
    truth, rows = scan.nearest(queries, k)
    names = view.ids_at(rows)
    D, I = faiss_indexes.nearest(index, queries, k)
    exact = kind in faiss_indexes.EXACT
    if index.ntotal != len(ids) or (exact and not np.array_equal(D, truth)):
        raise StoreError(f"{path} does not answer as the index does, and was not kept; write it elsewhere")
    if exact and not np.array_equal(I if kind == "idmap2" else ids[I], names):
        raise StoreError(f"{path} does not have the ids of the index, and was not kept; write it elsewhere")
    return faiss_indexes.recall(D, truth), len(queries)
