"""Vectors and ids of a Faiss file that holds them: large ones mapped where they lie as they are.

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
the number of ids and the ids, int64. IHNf (IndexHNSWFlat) has its graph, five arrays and five int32, then a
flat index. IwFl (IndexIVFFlat) has its lists after its quantizer; their vectors are put in the order of their
ids. IxSQ (IndexScalarQuantizer) has codes, of which those of `_SCALARS` are read. Faiss
(faiss/impl/index_write.cpp) would have to trust what the file says; here each number is compared with the
file's size, and another layout is named and refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.npz import numbers

_HEADER, _SIZE = struct.Struct("<4siqqqBi"), struct.Struct("<Q")
_FLAT, _MAPS = (b"IxF2", b"IxFI", b"IxFl"), (b"IxMp", b"IxM2")
_HNSW, _IVF, _SQ = b"IHNf", b"IwFl", b"IxSQ"
_READ = (*_FLAT, *_MAPS, _HNSW, _IVF, _SQ)
#: Types of scalar codes that are read: numbers as they are, or 8 bits between a least and a largest.
_SCALARS = {0: "u1", 2: "u1", 4: "<f2", 5: "u1"}
_WANTED = (
    "IndexFlat, IndexHNSWFlat, IndexIVFFlat or IndexScalarQuantizer, alone or in IndexIDMap or IndexIDMap2"
)
#: Kinds that people have, for a message; what they hold is not the vectors, or not in order.
_OTHERS = {
    **{b"IxPT": "IndexPreTransform", b"IwFd": "IndexIVFFlatDedup"},
    **{b"IwPQ": "IndexIVFPQ", b"IwPf": "IndexIVFPQFastScan", b"IwSq": "IndexIVFScalarQuantizer"},
    **{b"Iwrq": "IndexIVFRaBitQ", b"Ixrq": "IndexRaBitQ"},
    **{b"IxPq": "IndexPQ", b"IPfs": "IndexPQFastScan", b"IxHe": "IndexLSH", b"IxRF": "IndexRefineFlat"},
    **{b"IHNs": "IndexHNSWSQ", b"IHNp": "IndexHNSWPQ", b"INSf": "IndexNSGFlat"},
    **{b"IBxF": "IndexBinaryFlat", b"IBMp": "IndexBinaryIDMap", b"IBM2": "IndexBinaryIDMap2"},
    **{b"IBwF": "IndexBinaryIVF", b"IBHf": "IndexBinaryHNSW"},
}


@dataclass(frozen=True, slots=True, eq=False)
class FloatVectors:
    """What an index holds.

    Attributes
    ----------
    vectors : (n, d) float32, float16 or uint8, read-only where they lie in the file as they are
    ids : (n,) int64, or None where a vector's place is its id
    """

    vectors: NDArray[Any]
    ids: NDArray[np.int64] | None


def read_floats(path: Path) -> FloatVectors:
    """The vectors of a flat, HNSW, IVF or scalar index, alone or in IndexIDMap or IndexIDMap2.

    Vectors of inverted lists come in the order of their ids.

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
            ids = None
            if code in _MAPS:
                inner, inner_d, inner_total = _header(file, where)
                if inner in _MAPS or inner not in _READ:
                    raise _refused(inner, where)
                if (inner_d, inner_total) != (d, ntotal):
                    raise _damaged(where, f"{ntotal} ids of width {d} for {inner_total} vectors of {inner_d}")
                vectors, places = _vectors(file, where, size, inner, d, ntotal)
                if places is not None and not np.array_equal(places, np.arange(ntotal)):
                    raise _damaged(where, "vectors that are not numbered in their order")
                ids = _array(file, where, size, ntotal, "<i8")
            else:
                vectors, ids = _vectors(file, where, size, code, d, ntotal)
            if file.tell() != size:
                raise _damaged(where, f"{size - file.tell()} bytes after its end")
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror}); copy it again") from error
    return FloatVectors(vectors, ids)


def _vectors(
    file: IO[bytes], where: str, size: int, code: bytes, d: int, ntotal: int
) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Vectors of an index whose header was read, and ids where it has them."""
    if code == _HNSW:
        for dtype in ("<f8", "<i4", "<i4", "<u8", "<i4"):  # of the graph
            _array(file, where, size, None, dtype)
        file.read(5 * 4)
        code, inner_d, inner_total = _header(file, where)
        if code not in _FLAT:
            raise _refused(code, where)
        if (inner_d, inner_total) != (d, ntotal):
            raise _damaged(where, f"{inner_total} vectors of {inner_d} for {ntotal} of {d}")
    if code == _IVF:
        return _inverted(file, where, size, d, ntotal)
    if code == _SQ:
        return _scalars(file, where, size, d, ntotal), None
    if code not in _FLAT:
        raise _refused(code, where)
    return _array(file, where, size, ntotal * d, "<f4").reshape(ntotal, d), None


def _inverted(
    file: IO[bytes], where: str, size: int, d: int, ntotal: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The vectors of inverted lists, by ascending id."""
    nlist, _nprobe = _numbers(file, where, "<QQ")
    code, centre_d, centres = _header(file, where)
    if code not in _FLAT:
        raise _refused(code, where, "as the quantizer of its lists")
    if (centre_d, centres) != (d, nlist):
        raise _damaged(where, f"{centres} centres of {centre_d} for {nlist} lists of {d}")
    _array(file, where, size, centres * d, "<f4")
    (direct,) = _numbers(file, where, "<B")
    _array(file, where, size, None, "<i8")
    if direct == 2:  # a hash table: pairs of int64
        _array(file, where, size, None, "<i8,<i8")
    kind, lists, code_size, form = _numbers(file, where, "<4sQQ4s")
    if kind != b"ilar" or form not in (b"full", b"sprs"):
        raise InputError(
            f"{where} has its lists as {kind!r} {form!r}, expected them in the file itself; write its "
            "vectors into an IndexFlat"
        )
    told = _array(file, where, size, None, "<u8")
    sizes: list[int] = (told if form == b"full" else told[1::2]).tolist()
    if (lists, code_size) != (nlist, 4 * d) or sum(sizes) != ntotal:
        raise _damaged(where, f"lists of {sum(sizes)} vectors, it counts {ntotal}")
    budget.take(ntotal * (4 * d + 24), "vectors of inverted lists")
    vectors, ids = np.empty((ntotal, d), np.float32), np.empty(ntotal, np.int64)
    start = 0
    for n in sizes:
        end = start + n
        vectors[start:end] = _next(file, where, size, n * d, "<f4").reshape(n, d)
        ids[start:end] = _next(file, where, size, n, "<i8")
        start = end
    order = np.argsort(ids, kind="stable")
    return vectors[order], ids[order]


def _scalars(file: IO[bytes], where: str, size: int, d: int, ntotal: int) -> NDArray[Any]:
    """Vectors of scalar codes, as Faiss reconstructs them."""
    kind, _range, _of_range, code_d, code_size = _numbers(file, where, "<iifQQ")
    if kind not in _SCALARS:
        raise InputError(
            f"{where} is an IndexScalarQuantizer of type {kind}, expected 8 bits or float16; write its "
            "vectors into an IndexFlat (index.reconstruct_n), or use those it was made from"
        )
    dtype = np.dtype(_SCALARS[kind])
    trained = _array(file, where, size, None, "<f4")
    codes = _array(file, where, size, ntotal * d * dtype.itemsize, "u1")
    if (code_d, code_size) != (d, d * dtype.itemsize):
        raise _damaged(where, f"codes of {code_size} bytes and {code_d} numbers for vectors of {d}")
    found = codes.view(dtype).reshape(ntotal, d)
    if kind in (4, 5):
        return found
    parts = 1 if kind == 2 else d
    if len(trained) != 2 * parts:
        raise _damaged(where, f"{len(trained)} numbers of ranges, expected {2 * parts}")
    budget.take(8 * ntotal * d, "vectors of 8-bit codes")
    share = (found.astype(np.float32) + np.float32(0.5)) / np.float32(255)
    vectors: NDArray[np.float32] = trained[:parts] + share * trained[parts:]
    return vectors


def _numbers(file: IO[bytes], where: str, form: str) -> tuple[Any, ...]:
    data = file.read(struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise _damaged(where, "its numbers cut short")
    return struct.unpack(form, data)


def _header(file: IO[bytes], where: str) -> tuple[bytes, int, int]:
    found = file.read(_HEADER.size)
    if len(found) < _HEADER.size:
        code = found[:4]
        raise (_refused(code, where) if code not in _READ else _damaged(where, "its header cut short"))
    code, d, ntotal, _, _, _, metric = _HEADER.unpack(found)
    if code in _READ:
        if metric > 1:
            file.read(4)
        if d <= 0 or ntotal < 0:
            raise _damaged(where, f"{ntotal} vectors of width {d}")
        if ntotal == 0:
            raise InputError(f"{where} holds no vectors; give an index with at least one")
    return code, d, ntotal


def _array(file: IO[bytes], where: str, size: int, n: int | None, dtype: str) -> NDArray[Any]:
    """The next array; it must have `n` numbers, if n is given."""
    told = file.read(_SIZE.size)
    found = _SIZE.unpack(told)[0] if len(told) == _SIZE.size else -1
    if found < 0 or n not in (None, found):
        raise _damaged(where, f"fewer than the {n} numbers that it should" if n else "an array cut short")
    return _next(file, where, size, found, dtype)


def _next(file: IO[bytes], where: str, size: int, n: int, dtype: str) -> NDArray[Any]:
    """The next n numbers."""
    kind, start = np.dtype(dtype), file.tell()
    if start + n * kind.itemsize > size:
        raise _damaged(where, f"fewer than the {n} numbers that it should")
    if n == 0:
        return np.empty(0, kind)
    array = numbers(file, where, kind, (n,))
    file.seek(start + n * kind.itemsize)  # memmap leaves it anywhere
    return array


def _refused(code: bytes, where: str, role: str = "") -> InputError:
    if code in (*_OTHERS, *_READ):
        name = _OTHERS.get(
            code, {_HNSW: "IndexHNSWFlat", _IVF: "IndexIVFFlat"}.get(code, "index in an index")
        )
        return InputError(
            f"{where} is an {name}, expected {_WANTED}; write its vectors into an IndexFlat "
            "(index.reconstruct_n), or use those it was made from"
            if not role
            else f"{where} has an {name} {role}, expected IndexFlat; write its vectors into an IndexFlat"
        )
    return InputError(f"{where} starts with {code!r}, expected {_WANTED}")


def _damaged(where: str, what: str) -> InputError:
    return InputError(f"{where} is damaged or cut short: it has {what}; copy or write it again")
