"""Files of codes that were made elsewhere, for `add_codes`.

An .npz with `codes` (n, r // 8) uint8, `model` (which hash function made them) and, as in a chunk file,
`ids`, `keys` and tags. docs/format.md has it in one table.
"""

from __future__ import annotations

import os
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
    arrays = read_arrays(path, "codes", ("model", *OPTIONAL))
    try:
        if "model" not in arrays or arrays["model"].dtype.kind != "U" or arrays["model"].ndim:
            raise InputError("it does not say which hash function made its codes; write it with write_codes")
        chunk = valid_codes(
            arrays["codes"], stored_tags(arrays), ids=arrays.get("ids"), keys=arrays.get("keys")
        )
    except MemoryBudgetError:
        raise
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}") from error
    return chunk, str(arrays["model"])
