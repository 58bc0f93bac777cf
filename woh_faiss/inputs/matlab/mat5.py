"""MATLAB files of version 5 to 7.2: matrices, full and sparse, and texts.

Read here, since SciPy's reader trusts what a file says of itself: one changed byte can end the process.
The format: a header of 128 bytes, then elements of a tag (type, bytes) and data; a variable is an element
of elements, or such a one deflated.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.validate import TEXT

from .variables import (
    MatRows,
    check_expansion,
    full_matrix,
    kind_of,
    not_there,
    read_errors,
    sparse_of,
    text_array,
)

#: Types of elements that are numbers; texts of UTF-8, -16 and -32 are their code units.
_TYPES = {
    **{1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"},
    **{16: "u1", 17: "u2", 18: "u4"},
}
_MATRIX, _DEFLATED = 14, 15
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}

#: Classes of variables, from 1 on.
_CLASSES = (
    *("cell", "struct", "object", "char", "sparse", "double", "single", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "function", "opaque"),
)
_DTYPES = {name: name for name in _CLASSES[7:15]} | {"double": "float64", "single": "float32"}
_COMPLEX, _LOGICAL = 0x0800, 0x0200

#: Bytes that hold a variable's class, shape and name: names have at most 63.
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    """A variable's bytes in the file, and what they are."""

    start: int
    size: int
    deflated: bool
    kind: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class _Elements:
    """Elements of a variable, one after the other."""

    data: memoryview
    order: str  # "<" or ">"
    at: int = 0

    def numbers(self) -> tuple[int, NDArray[Any]]:
        """Type and numbers of the next element."""
        kind, data = self.next()
        if kind not in _TYPES:
            raise ValueError(f"an element of type {kind}, where numbers were expected")
        return kind, np.frombuffer(data, self.order + _TYPES[kind])

    def next(self) -> tuple[int, memoryview]:
        """Type and bytes of the next element."""
        first, second = np.frombuffer(self._take(8), self.order + "u4").tolist()
        if first >> 16:  # small: type and size share a number, the data is in place of the size
            kind, size = first & 0xFFFF, first >> 16
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
            return kind, self.data[self.at - 4 :][:size]
        data = self._take(second)
        self.at = min(len(self.data), -(-self.at // 8) * 8)  # each begins at a multiple of 8
        return first, data

    def head(self) -> tuple[str, int, tuple[int, ...], str]:
        """Class, flags, shape and name of a variable, whose numbers come next."""
        flags = self.numbers()[1]
        code = int(flags[0])
        shape = tuple(self.numbers()[1].tolist())
        name = bytes(self.next()[1]).decode("latin-1")
        if not 1 <= code & 0xFF <= len(_CLASSES) or len(shape) < 2 or any(length < 0 for length in shape):
            raise ValueError(f"a variable of class {code & 0xFF} and shape {shape}")
        return _CLASSES[(code & 0xFF) - 1], code, shape, name

    def _take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise ValueError(f"an element of {size} bytes where {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]


class Mat5:
    """A file of version 5 to 7.2. A variable is read whole."""

    def __init__(self, file: Path) -> None:
        self._file, self.where = file, display_path(file)
        with read_errors(self.where):
            found = self._scan()
        if twice := [name for name, count in Counter(name for name, _ in found).items() if count > 1]:
            raise InputError(f"{self.where} holds variable {twice[0]!r} twice; save it again")
        self._places = dict(found)
        self.variables = {name: kind_of(place.shape, place.kind) for name, place in found}

    def read(self, name: str) -> Any:
        """A variable, as `Mat.read`; cells only of text."""
        if name not in self._places:
            raise not_there(self, name)
        here, place = f"{self.where}: variable {name!r}", self._places[name]
        with read_errors(here):
            budget.take(place.size, "a variable")
            with self._file.open("rb") as stream:
                stream.seek(place.start)
                data = stream.read(place.size)
            if len(data) < place.size:
                raise ValueError("the file is cut short")
            return self._value(memoryview(_inflated(data, self._order, here) if place.deflated else data))

    def rows(self, name: str) -> MatRows:
        """A full matrix, read whole."""
        return full_matrix(self.read(name), f"{self.where}: variable {name!r}")

    def _scan(self) -> list[tuple[str, _Place]]:
        size, at = self._file.stat().st_size, 128
        found = []
        with self._file.open("rb") as stream:
            header = stream.read(128)
            if header[124:] not in (b"\0\1IM", b"\1\0MI"):
                raise InputError(
                    f"{self.where} is no .mat file of version 5 to 7.3; save it from MATLAB with -v7, "
                    "or as .npy"
                )
            self._order = "<" if header[126:] == b"IM" else ">"
            while at < size:
                stream.seek(at)
                tag = np.frombuffer(stream.read(8), self._order + "u4").tolist()
                if len(tag) < 2 or tag[0] not in (_MATRIX, _DEFLATED) or tag[1] > size - at - 8:
                    raise ValueError(f"no whole variable begins at byte {at}")
                head = stream.read(min(tag[1], _HEAD))
                if tag[0] == _DEFLATED:
                    head = zlib.decompressobj().decompress(head, _HEAD)[8:]
                kind, flags, shape, name = _Elements(memoryview(head), self._order).head()
                kind = "logical" if flags & _LOGICAL and kind in _DTYPES else kind
                if name:  # without a name: what MATLAB keeps of objects
                    found.append((name, _Place(at + 8, tag[1], tag[0] == _DEFLATED, kind, shape)))
                at += 8 + tag[1]
        return found

    def _value(self, data: memoryview) -> Any:
        elements = _Elements(data, self._order)
        kind, flags, shape, _ = elements.head()
        count = math.prod(shape)
        if kind == "cell":
            if count > len(data):  # the least cell has a tag of its own
                raise ValueError(f"{count} cells in {len(data)} bytes")
            budget.take(TEXT * count, "cells of text")
            return text_array([self._cell(elements.next()) for _ in range(count)])
        if flags & _COMPLEX:
            raise ValueError("complex numbers, where real ones were expected")
        if kind == "sparse":
            ir, jc, values = (elements.numbers()[1] for _ in range(3))
            return sparse_of(values, ir, jc, shape)
        if kind == "char":
            return np.array([self._text(*elements.next())], dtype=np.str_)
        if kind not in _DTYPES:
            raise ValueError(f"a variable of class {kind}, which is not read")
        numbers = elements.numbers()[1]
        if len(numbers) != count:
            raise ValueError(f"{len(numbers)} numbers for shape {shape}")
        budget.take(16 * count, "a matrix")
        dtype = "bool" if flags & _LOGICAL else _DTYPES[kind]
        return numbers.reshape(shape, order="F").astype(dtype, copy=False)

    def _cell(self, element: tuple[int, memoryview]) -> str:
        kind, data = element
        if kind != _MATRIX:
            raise ValueError(f"a cell of type {kind}")
        text = self._value(data) if len(data) else np.array([""])
        if text.dtype.kind != "U" or text.shape != (1,):
            raise ValueError("a cell that is no text")
        return str(text[0])

    def _text(self, kind: int, data: memoryview) -> str:
        if kind not in _TEXTS:
            raise ValueError(f"text of type {kind}")
        wide = {"<": "-le", ">": "-be"}[self._order] if _TEXTS[kind][-2:] in ("16", "32") else ""
        return bytes(data).decode(_TEXTS[kind] + wide)


def _inflated(data: bytes, order: str, here: str) -> bytes:
    """The variable in a deflated element, without the tag that says how long it is."""
    inflate = zlib.decompressobj()
    tag = inflate.decompress(data, 8)
    kind, size = np.frombuffer(tag, order + "u4").tolist() if len(tag) == 8 else (0, 0)
    if kind != _MATRIX:
        raise ValueError(f"a deflated element of type {kind}")
    check_expansion(here, size, len(data))
    budget.take(2 * size, "a variable")
    whole = inflate.decompress(inflate.unconsumed_tail, size) if size else b""
    if len(whole) < size or inflate.decompress(inflate.unconsumed_tail, 1) or not inflate.eof:
        raise ValueError(f"{size} bytes were deflated, {len(whole)} come out")
    return whole
