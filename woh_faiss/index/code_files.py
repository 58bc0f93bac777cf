"""Files of codes that were made elsewhere, for `add_codes`.

An .npz with `codes` (n, r // 8) uint8, `model` (which hash function made them), as in a chunk file `ids`,
`keys` and tags, and metadata as JSON. docs/format.md has it in one table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, MemoryBudgetError, StoreError
from woh_faiss.inputs.chunk import OPTIONAL, Chunk, stored_tags
from woh_faiss.io.atomic_write import write_whole
from woh_faiss.io.npz import read_arrays, write_npz
from woh_faiss.metadata import Metadata, metadata_of


def valid_codes(
    packed: ArrayLike,
    tags: Any = None,
    *,
    ids: ArrayLike | None = None,
    keys: ArrayLike | None = None,
    metadata: Any = None,
) -> Chunk:
    """A chunk whose features are packed codes.

    Parameters
    ----------
    packed : (n, r // 8) uint8
        Packed codes.
    tags, ids, keys, metadata : optional
        As `Chunk.of` takes them.

    Raises
    ------
    InputError
        The codes have another dtype or shape, or the rest is not as `Chunk.of` takes it.
    """
    array = validate.array(packed, "codes")
    if array.ndim != 2 or array.dtype != np.uint8:
        raise InputError(
            f"codes have shape {array.shape} and dtype {array.dtype}, expected (n, bits / 8) uint8; "
            "see Hasher.encode"
        )
    return Chunk.of(array, tags, ids=ids, keys=keys, metadata=metadata)


def write_codes(path: str | os.PathLike[str], chunk: Chunk, model: str) -> Path:
    """Write codes as `checked` has them, made by the hash function `model` (`Hasher.fingerprint`), to `path`.

    The file is there whole or not at all, and equal codes are equal bytes.

    Parameters
    ----------
    path : path
        Of the file; one that is there is replaced.
    chunk : Chunk
        As `checked` returns it: features are packed codes (n, r // 8) uint8.
    model : str
        `Hasher.fingerprint` of the hash function that made them.

    Raises
    ------
    StoreError
        It cannot be written.
    """
    arrays: dict[str, NDArray[Any]] = {"codes": chunk.features, "model": np.array(model)}
    if chunk.tags is not None:
        tags = chunk.tags
        arrays |= {
            "tags_data": np.ones(len(tags.indices), np.uint8),
            "tags_indices": tags.indices,
            "tags_indptr": tags.indptr,
            "tags_shape": np.array([len(tags), len(tags.names)]),
            "tag_names": np.array(tags.names, np.str_),
        }
    if chunk.ids is not None:
        arrays["ids"] = chunk.ids
    if chunk.keys is not None:
        arrays["keys"] = chunk.keys
    if chunk.metadata is not None:
        arrays["metadata"] = np.frombuffer(_json(chunk.metadata).encode(), np.uint8)
    final = Path(path)
    try:
        with write_whole(final, "codes") as file:
            write_npz(file, arrays)
    except OSError as error:
        raise StoreError(
            f"cannot write {display_path(final)}: {error.strerror or error}; give another path"
        ) from error
    return final


def read_codes(path: str | os.PathLike[str]) -> tuple[Chunk, str]:
    """The codes in a file, as `checked` has them, and the hash function that made them.

    Raises
    ------
    InputError
        The file is missing or damaged, or an array in it is not as described; one line with the file.
    """
    with budget.reading(display_path(path)):
        return _read_codes(path)


def _read_codes(path: str | os.PathLike[str]) -> tuple[Chunk, str]:
    arrays = read_arrays(path, "codes", ("model", "metadata", *OPTIONAL))
    try:
        if "model" not in arrays or arrays["model"].dtype.kind != "U" or arrays["model"].ndim:
            raise InputError("it does not say which hash function made its codes; write it with write_codes")
        metadata = None if "metadata" not in arrays else _columns(arrays["metadata"])
        named = {name: arrays.get(name) for name in ("ids", "keys")}
        chunk = valid_codes(arrays["codes"], stored_tags(arrays), **named, metadata=metadata)
    except MemoryBudgetError:
        raise
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}") from error
    return chunk, str(arrays["model"])


#: What a cell of JSON is, by its column's type, where it is not the value itself.
_VALUES: dict[str, Callable[[Any], Any]] = {
    "boolean": {0: False, 1: True}.__getitem__,
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
}


def _json(metadata: Metadata) -> str:
    """Columns as JSON: their types and cells, by name."""
    return json.dumps({name: [column.type, column.cells] for name, column in metadata.items()})


def _columns(array: NDArray[Any]) -> dict[str, list[Any]]:
    """Values of the columns that `_json` has; InputError where it is other bytes, or types do not fit."""
    try:
        if array.dtype != np.uint8 or array.ndim != 1:
            raise ValueError
        budget.take(20 * array.size, "metadata")
        found = {}
        for name, (type_, cells) in json.loads(array.tobytes()).items():
            value = _VALUES.get(type_, lambda cell: cell)
            found[name] = [None if cell is None else value(cell) for cell in cells]
            if metadata_of({name: found[name]}, len(found[name]))[name].type not in (type_, None):
                raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        told = error if isinstance(error, InputError) else "they are other bytes than write_codes writes"
        raise InputError(f"metadata: {told}; write the file again") from error
    return found
