"""The bytes of a Faiss IndexBinaryFlat file: a 33-byte header, then one packed code a row.

========  =====  =================================================
offset    type   field
========  =====  =================================================
0         4s     magic, b"IBxF"
4         int32  d, bits of a code
8         int32  code_size, bytes of a code
12        int64  ntotal, rows
20        uint8  is_trained, 1
21        int32  metric, 1
25        uint64 bytes of all codes
33               the codes
========  =====  =================================================

(faiss/impl/index_write.cpp, write_index_binary.) Any other layout is refused, never guessed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import StoreError

from . import files, schema
from .records import Round

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
_HEADER = struct.Struct("<4siiqBiQ")
#: Rows summed at a time.
_BLOCK = 1 << 18
#: Where the codes start.
START = _HEADER.size
_MAGIC = b"IBxF"
#: Everything from here to START changes with an append: 21 bytes, patched in one write.
_CHANGING = 12


@dataclass(frozen=True, slots=True)
class MappedCodes:
    """Committed codes, mapped and read-only by convention: `add` on a mapped index aborts the process.

    Attributes
    ----------
    index, counting : faiss.IndexBinaryFlat
        For searching only; they keep candidates in a heap, or counted by distance. Same answers.
    codes : (ntotal, d // 8) array of uint8
        The same bytes.
    reader : object
        Kept alive with the index.
    counted : int
        Codes that the file's own header counts.
    """

    index: Any
    counting: Any
    codes: NDArray[np.uint8]
    reader: Any
    counted: int = 0


def end(d: int, ntotal: int) -> int:
    """Bytes of a file with `ntotal` codes of `d` bits."""
    return START + ntotal * (d // 8)


def header(d: int, ntotal: int) -> bytes:
    """The 33 bytes Faiss writes before `ntotal` codes of `d` bits."""
    return _HEADER.pack(_MAGIC, d, d // 8, ntotal, 1, 1, ntotal * (d // 8))


def checksum(codes: NDArray[np.uint8], ids: NDArray[np.int64]) -> str:
    """SHA-256 of code bytes followed by id bytes, in hex."""
    digest = hashlib.sha256()
    for array in (codes, ids):
        for start in range(0, len(array), _BLOCK):
            digest.update(np.ascontiguousarray(array[start : start + _BLOCK]).data)
    return digest.hexdigest()


def check_round(
    folder: Path, number: int, codes: NDArray[np.uint8], ids: NDArray[np.int64], known: str
) -> None:
    """StoreError unless these codes and ids of round `number` have the checksum that is known of them."""
    if checksum(codes, ids) != known:
        raise StoreError(
            f"{folder / schema.CODES} or {schema.IDS}: the bytes of round {number} are not "
            "what was written; restore both from a backup ('woh-index verify' tells all faults)"
        )


def check_rounds(
    folder: Path, rounds: Iterable[Round], codes: NDArray[np.uint8], ids: NDArray[np.int64]
) -> None:
    """`check_round` of each of the rounds, with all codes and ids of `folder`."""
    for it in rounds:
        rows = slice(it.first_row, it.end_row)
        check_round(folder, it.round, codes[rows], ids[rows], it.checksum)


def create(path: Path, d: int) -> None:
    """A codes file without codes."""
    files.replace(path, lambda file: _write(file, header(d, 0)))


def _write(file: Any, data: bytes) -> None:
    file.write(data)


def _check(path: Path, found: bytes, d: int) -> None:
    """StoreError unless `found`, the file's first 33 bytes, are our layout with codes of `d` bits."""
    if len(found) < START or found[:4] != _MAGIC:
        raise StoreError(
            f"{path} starts with {found[:4]!r}, expected a flat binary Faiss index ({_MAGIC!r}); "
            "restore it from a backup, or build the index again"
        )
    _, file_d, code_size, _, is_trained, metric, _ = _HEADER.unpack(found)
    if (file_d, code_size) != (d, d // 8):
        raise StoreError(
            f"{path} holds codes of {file_d} bits in {code_size} bytes, the catalogue says {d} bits; "
            "restore the file that belongs here"
        )
    if (is_trained, metric) != (1, 1):
        raise StoreError(
            f"{path} has an unknown layout (is_trained {is_trained}, metric {metric}; expected 1 and 1); "
            "restore it from a backup, or build the index again"
        )


def check(path: Path, d: int) -> None:
    """StoreError unless the file has our layout, with codes of `d` bits."""
    with files.open_member(path) as file:
        _check(path, file.read(START), d)


def counts(path: Path) -> tuple[int, int]:
    """Codes, and bytes of codes, that the header of a file of our layout says there are."""
    with files.open_member(path) as file:
        *_, ntotal, _, _, size = _HEADER.unpack(file.read(START))
    return ntotal, size


def check_counted(path: Path, d: int, ntotal: int) -> None:
    """StoreError if the header counts more codes, has another layout, or the file ends before them."""
    with files.existing(path), files.open_member(path) as file:
        _counting_at_most(file, path, d, ntotal)
        if (size := os.fstat(file.fileno()).st_size) < end(d, ntotal):
            raise files.short(path, size, end(d, ntotal))


def settle(path: Path, d: int, ntotal: int) -> None:
    """Cut the file to the committed end and make its header say so; no write where all is well.

    StoreError if the header counts more codes: it does so only after a COMMIT, which the catalogue has lost.
    """
    with files.existing(path), files.open_member(path, "r+b") as file:
        found = _counting_at_most(file, path, d, ntotal)
        files.cut(file, path, end(d, ntotal))
        wanted = header(d, ntotal)
        if found != wanted:
            with files.step(f"patch {path.name}"):
                os.pwrite(file.fileno(), wanted[_CHANGING:], _CHANGING)
            files.sync(file, f"{path.name} header")


def _counting_at_most(file: IO[bytes], path: Path, d: int, ntotal: int) -> bytes:
    """The header, of our layout; StoreError if it counts more codes."""
    found = file.read(START)
    _check(path, found, d)
    if (counted := _counted(file, found)) > ntotal:
        raise lost_rounds(path, counted, ntotal)
    return found


def _counted(file: IO[bytes], found: bytes) -> int:
    """Codes that a header counts, 0 if it contradicts itself or its file ends before them."""
    *_, code_size, ntotal, _, _, size = _HEADER.unpack(found)
    there = os.fstat(file.fileno()).st_size - START
    return int(ntotal) if size == ntotal * code_size <= there else 0


def lost_rounds(path: Path, counted: int, ntotal: int) -> StoreError:
    """The error for codes that were committed to another catalogue than the one that is there."""
    return StoreError(
        f"{path} counts {counted} codes, {schema.CATALOG} only {ntotal}: it is an older one, or "
        "its log was lost; restore the whole folder from a backup; nothing was changed"
    )


def open_mapped(path: Path, d: int, ntotal: int) -> MappedCodes:
    """The first `ntotal` codes of the file, without reading them.

    The mapping is private and its header is overwritten with the catalogue's `ntotal`: a reader is right
    even while a writer appends, or after one died between COMMIT and the patch of the header.

    Raises
    ------
    StoreError
        The file is missing, shorter than `ntotal` codes, of another layout, or of another width.
    """
    length = end(d, ntotal)
    with files.existing(path), files.open_member(path) as file:
        size, found = os.fstat(file.fileno()).st_size, file.read(START)
        _check(path, found, d)
        if size < length:
            raise files.short(path, size, length)
        counted = _counted(file, found)
        private = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
    private[_CHANGING:START] = header(d, ntotal)[_CHANGING:]
    buffer = np.frombuffer(private, np.uint8)
    readers = [_swig.ZeroCopyIOReader(faiss.swig_ptr(buffer), buffer.size) for _ in range(2)]
    try:
        index, counting = (faiss.read_index_binary(reader, faiss.IO_FLAG_MMAP_IFC) for reader in readers)
    except RuntimeError as error:  # all that Faiss raises for a file it does not accept
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"{path} is not a binary index that Faiss {faiss.__version__} reads: {reason}"
        ) from error
    codes = buffer[START:].reshape(ntotal, d // 8)
    codes.flags.writeable = False
    counting.use_heap = False  # type: ignore[attr-defined]  # a flat index, as _check saw
    return MappedCodes(index, counting, codes, (readers, buffer), counted)


def map_codes(path: Path, d: int, rows: int) -> NDArray[np.uint8]:
    """The first `rows` codes of the file, (rows, d // 8), mapped read-only; its header is not looked at."""
    return _mapped(path, "|u1", START, rows * (d // 8)).reshape(rows, d // 8)


def map_ids(path: Path, rows: int) -> NDArray[np.int64]:
    """The first `rows` ids of a file of ids, (rows,), mapped read-only."""
    return _mapped(path, "<i8", 0, rows)


def _mapped(path: Path, dtype: str, start: int, n: int) -> NDArray[Any]:
    """`n` numbers of a file; StoreError if it is missing or ends before them."""
    kind = np.dtype(dtype)
    with files.existing(path), files.open_member(path) as file:
        size, expected = os.fstat(file.fileno()).st_size, start + n * kind.itemsize
        if size < expected:
            raise files.short(path, size, expected)
        if not n:  # nothing cannot be mapped
            return np.empty(0, kind)
        # As a plain array: looking things up in a memmap costs more than looking them up.
        return np.asarray(np.memmap(file, kind, "r", start, (n,)))
