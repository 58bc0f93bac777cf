"""A KeyedVectors saved by gensim: a pickle, read without running or allocating what it asks for."""

from __future__ import annotations

import mmap
import pickle
import re
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .chunk_files import read_npy
from .errors import InputError

#: Runs of opcodes whose arguments have a fixed size, or end with a line (pickletools has them all).
_PLAIN = re.compile(
    rb"(?s:[\x94)\](}0-2NabelostudRQ\x81\x85-\x89\x8f-\x93]|[hKq\x80].|M..|[jJ].{4}|[G\x95].{8}"
    rb"|c[^\n]{1,99}\n[^\n]{1,99}\n)*+"
)
#: Opcodes followed by a length of so many bytes, then by that many bytes.
_COUNTED = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x96: 8, 0x55: 1, 0x54: 4, 0x8A: 1, 0x8B: 4}
_LONG_BINPUT, _STOP = 0x72, 0x2E


def _scan(data: mmap.mmap) -> None:
    """Refuse a pickle that would make Python allocate more than there is; ten bytes can ask for 64 GB.

    A length must lie within the file, and a place in the memo below its size: the memo is an array.
    """
    at, size = 0, len(data)
    while True:
        run = _PLAIN.match(data, at)
        at = run.end() if run else at
        if at >= size or (code := data[at]) == _STOP:
            return
        if code == _LONG_BINPUT:
            number, at = int.from_bytes(data[at + 1 : at + 5], "little"), at + 5
        elif code in _COUNTED:
            width = _COUNTED[code]
            number = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            at += 1 + width + number
        else:
            raise pickle.UnpicklingError(f"opcode {data[at : at + 1]!r} at byte {at}")
        if max(number, at) > size:
            raise pickle.UnpicklingError(f"it claims {number} of {size} bytes")


#: All that a KeyedVectors saved by gensim >= 4 refers to. Exact names: gensim's unpickle() is within reach
#: of gensim.models.keyedvectors, so that a rule by module would let a file run what it likes.
_SAFE = {("gensim.models.keyedvectors", "KeyedVectors"), ("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}


class _Restricted(pickle.Unpickler):
    """Loads nothing outside `_SAFE`, so that a file can make arrays and a KeyedVectors and run nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def read_saved(path: Path, limit: int | None) -> tuple[dict[str, int], NDArray[Any]]:
    """A KeyedVectors saved by gensim. Its own load() is not used: it unpickles whatever it finds."""
    from gensim.models import KeyedVectors

    try:
        with path.open("rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _scan(data)
            saved = _Restricted(file).load()
        if not isinstance(saved, KeyedVectors):
            raise TypeError(f"it holds a {type(saved).__name__}")
        state = vars(saved)
        index, vectors = state["key_to_index"], state.get("vectors")
        if vectors is None:  # large ones lie beside the file
            beside = path.with_name(f"{path.name}.vectors.npy")
            if not beside.exists():
                raise InputError(f"{beside} is missing; keep the two in one folder")
            if not beside.is_file():
                raise InputError(f"{beside} is not a regular file; keep the two in one folder")
            vectors = read_npy(beside, str(beside), mapped=True)
        elif vectors.nbytes > path.stat().st_size:
            raise ValueError(f"its vectors claim {vectors.nbytes} bytes, more than the file has")
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or not vectors.size:
            raise ValueError(f"its vectors are {vectors.dtype} of shape {vectors.shape}")
        if {*map(type, index), *map(type, index.values())} != {str, int}:
            raise TypeError("its words are not text with a row each")
        if sorted(index.values()) != list(range(len(vectors))):
            raise ValueError(f"its {len(index)} words are not those of its {len(vectors)} vectors")
    except InputError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything, MemoryError too
        raise InputError(
            f"it is a pickle that is not opened ({error}); only a KeyedVectors saved by gensim >= 4 is: "
            "save the vectors with save_word2vec_format instead"
        ) from error
    stop = len(vectors) if limit is None else limit
    return {word: at for word, at in index.items() if at < stop}, vectors[:stop]
