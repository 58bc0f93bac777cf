"""Vectors and ids of a flat Faiss file of floats, mapped and not loaded.

=========  =======  ====================================================
where      type     field
=========  =======  ====================================================
0          4s       IxF2 (L2), IxFI (inner product), IxFl (any metric)
4          int32    d, numbers of a vector
8          int64    ntotal
16                  16 bytes without meaning
32         uint8    is_trained, 1
33         int32    metric; if it is above 1 a float32 follows
37 or 41   uint64   how many numbers follow: ntotal * d
45 or 49            the vectors, float32
=========  =======  ====================================================

IxMp and IxM2 (IndexIDMap, IndexIDMap2) have the same header without the vectors, then another index, then
the number of ids and the ids, int64. (faiss/impl/index_write.cpp.) Faiss itself would have to trust what
the file says; here each number is compared with the file's size, and another layout is named and refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.display import display_path
from woh_faiss.errors import InputError

_HEADER, _SIZE = struct.Struct("<4siqqqBi"), struct.Struct("<Q")
_FLAT, _MAPS = (b"IxF2", b"IxFI", b"IxFl"), (b"IxMp", b"IxM2")
#: Kinds that people have, for a message; what they hold is not the vectors, or not in order.
_OTHERS = {
    **{b"IxPT": "IndexPreTransform", b"IwFl": "IndexIVFFlat", b"IwFd": "IndexIVFFlatDedup"},
    **{b"IwPQ": "IndexIVFPQ", b"IwPf": "IndexIVFPQFastScan", b"IwSq": "IndexIVFScalarQuantizer"},
    **{b"Iwrq": "IndexIVFRaBitQ", b"Ixrq": "IndexRaBitQ", b"IxSQ": "IndexScalarQuantizer"},
    **{b"IxPq": "IndexPQ", b"IPfs": "IndexPQFastScan", b"IxHe": "IndexLSH", b"IxRF": "IndexRefineFlat"},
    **{b"IHNf": "IndexHNSWFlat", b"IHNs": "IndexHNSWSQ", b"IHNp": "IndexHNSWPQ", b"INSf": "IndexNSGFlat"},
    **{b"IBxF": "IndexBinaryFlat", b"IBMp": "IndexBinaryIDMap", b"IBM2": "IndexBinaryIDMap2"},
    **{b"IBwF": "IndexBinaryIVF", b"IBHf": "IndexBinaryHNSW"},
}


@dataclass(frozen=True, slots=True, eq=False)
class FloatVectors:
    """What a flat index holds.

    Attributes
    ----------
    vectors : (n, d) float32, mapped read-only
    ids : (n,) int64, mapped read-only, or None where a vector's place is its id
    """

    vectors: NDArray[np.float32]
    ids: NDArray[np.int64] | None


def read_floats(path: Path) -> FloatVectors:
    """The vectors of IndexFlat, IndexFlatL2 or IndexFlatIP, alone or in IndexIDMap or IndexIDMap2.

    Raises
    ------
    InputError
        The file is missing, damaged or cut short, or another kind of index, which is named.
    """
    where = display_path(path)
    try:
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(f"{where} {what}; give what faiss.write_index wrote")
        with path.open("rb") as file:
            size = path.stat().st_size
            code, d, ntotal = _header(file, where)
            mapped = code in _MAPS
            if mapped:
                inner, inner_d, inner_total = _header(file, where)
                if inner not in _FLAT:
                    raise _refused(inner, where)
                if (inner_d, inner_total) != (d, ntotal):
                    raise _damaged(where, f"{ntotal} ids of width {d} for {inner_total} vectors of {inner_d}")
            elif code not in _FLAT:
                raise _refused(code, where)
            vectors = _array(file, where, size, ntotal * d, "<f4").reshape(ntotal, d)
            ids = _array(file, where, size, ntotal, "<i8") if mapped else None
            if file.tell() != size:
                raise _damaged(where, f"{size - file.tell()} bytes after its end")
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror}); copy it again") from error
    return FloatVectors(vectors, ids)


def _header(file: IO[bytes], where: str) -> tuple[bytes, int, int]:
    found = file.read(_HEADER.size)
    if len(found) < _HEADER.size:
        code = found[:4]
        raise (
            _refused(code, where) if code not in (*_FLAT, *_MAPS) else _damaged(where, "its header cut short")
        )
    code, d, ntotal, _, _, _, metric = _HEADER.unpack(found)
    if code in (*_FLAT, *_MAPS):
        if metric > 1:
            file.read(4)
        if d <= 0 or ntotal < 0:
            raise _damaged(where, f"{ntotal} vectors of width {d}")
        if ntotal == 0:
            raise InputError(f"{where} holds no vectors; give an index with at least one")
    return code, d, ntotal


def _array(file: IO[bytes], where: str, size: int, n: int, dtype: str) -> NDArray[Any]:
    """The next `n` numbers, mapped."""
    told, kind = file.read(_SIZE.size), np.dtype(dtype)
    start = file.tell()
    if len(told) < _SIZE.size or _SIZE.unpack(told)[0] != n or start + n * kind.itemsize > size:
        raise _damaged(where, f"fewer than the {n} numbers that it should")
    array = np.memmap(file, kind, "r", start, (n,))
    file.seek(start + n * kind.itemsize)  # memmap leaves it anywhere
    return array


def _refused(code: bytes, where: str) -> InputError:
    if code in _OTHERS:
        return InputError(
            f"{where} is an {_OTHERS[code]}, expected IndexFlat, IndexFlatL2 or IndexFlatIP, alone or in "
            "IndexIDMap or IndexIDMap2; write its vectors into one of these (index.reconstruct_n), or use "
            "those it was made from"
        )
    return InputError(
        f"{where} starts with {code!r}, expected a flat Faiss index, alone or in IndexIDMap or IndexIDMap2"
    )


def _damaged(where: str, what: str) -> InputError:
    return InputError(f"{where} is damaged or cut short: it has {what}; copy or write it again")
