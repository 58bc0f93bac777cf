"""Faiss's binary indexes of packed codes: parameters, construction, files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError

from .scan import NO_DISTANCE, NO_ID, Distances, Rows, threads

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
#: Answer as a scan of all codes does.
EXACT = ("flat", "idmap2")
#: Look at some of the codes only.
SUBLINEAR = ("ivf", "hnsw", "multihash")
#: What each takes, and the least value of it.
_LEAST: dict[str, dict[str, int]] = {
    "flat": {},
    "idmap2": {},
    "ivf": {"nlist": 1, "nprobe": 1},
    "hnsw": {"M": 2, "ef_construction": 1, "ef_search": 1},
    "multihash": {"nhash": 1, "b": 1, "nflip": 0},
}
#: Codes a list that the centroids of an IVF are learned from.
_TRAINED_FROM = 64
#: Queries a call: Ctrl-C cannot end one.
_AT_ONCE = 1024
#: Queries below which waking other threads costs more than they save.
_FEW = 100
_SEED = 0


def complete(kind: str, given: Mapping[str, Any], n: int, bits: int) -> dict[str, int]:
    """All parameters of an index of `n` codes of `bits` bits: those given, and a default for each other.

    Raises
    ------
    InputError
        The kind or a parameter is unknown or out of range, or there is nothing to learn an IVF from.
    """
    if kind not in _LEAST:
        raise InputError(f"kind is {validate.short(kind)}, expected one of {', '.join(_LEAST)}")
    least = _LEAST[kind]
    for name in given:
        if name not in least:
            raise InputError(
                f"{kind} takes no {validate.short(name)}; expected {', '.join(least) or 'no parameters'}"
            )
    if kind in SUBLINEAR and not n:
        raise InputError(f"there are no items to make {kind} of; append some with 'woh-index update'")
    asked = {name: validate.whole_number(value, name, least[name]) for name, value in given.items()}
    if kind == "ivf":
        nlist = asked.setdefault("nlist", max(1, math.isqrt(n)))
        asked.setdefault("nprobe", max(1, nlist // 32))
        _at_most(asked, "nlist", n, "the number of items")
        _at_most(asked, "nprobe", nlist, "nlist")
    elif kind == "hnsw":
        asked = {"M": 16, "ef_construction": 40, "ef_search": 128} | asked
        for name, most in {"M": 512, "ef_construction": 1 << 20, "ef_search": 1 << 20}.items():
            _at_most(asked, name, most, "what is of use")
    elif kind == "multihash":
        # So many bits a part that one code falls to a value: 3 parts of 21 at a million codes of 64 bits.
        nhash = asked.setdefault("nhash", max(1, round(bits / asked.get("b", max(8, math.log2(n))))))
        _at_most(asked, "nhash", bits, "the bits of a code")
        b = asked.setdefault("b", min(32, bits // nhash))
        _at_most(asked, "b", min(32, bits // nhash), f"what {nhash} parts of {bits} bits allow")
        asked.setdefault("nflip", min(2, b))
        _at_most(asked, "nflip", b, "b")
    return {name: asked[name] for name in least}


def _at_most(asked: dict[str, int], name: str, most: int, why: str) -> None:
    if asked[name] > most:
        raise InputError(f"{name} is {validate.short(asked[name])}, expected at most {most}, {why}")


def radius(kind: str, parameters: Mapping[str, int]) -> int | None:
    """Bits up to which no code is missed; None where nothing is promised, and where nothing is ever missed.

    A code that differs in nhash * (nflip + 1) - 1 bits differs in at most nflip of them in one of the nhash
    parts at least, and is found by that part.
    """
    if kind != "multihash":
        return None
    return parameters["nhash"] * (parameters["nflip"] + 1) - 1


def built(kind: str, codes: NDArray[np.uint8], parameters: Mapping[str, int], ids: Rows | None = None) -> Any:
    """A Faiss index of packed codes (n, d // 8), which answers with `ids`, or with positions.

    `flat` knows positions only. The parameters are those of `complete`.
    """
    index = _empty(kind, codes, parameters)
    if ids is not None and kind not in ("flat", "ivf"):
        wrapped = _swig.IndexBinaryIDMap2(index)
        wrapped.inner = index  # Faiss keeps only the address
        index = wrapped
    with threads(few=False):
        if not len(codes):
            pass  # Faiss would be handed a null pointer
        elif ids is None or kind == "flat":
            index.add(codes)
        else:
            index.add_with_ids(codes, ids)
    return index


def _empty(kind: str, codes: NDArray[np.uint8], parameters: Mapping[str, int]) -> Any:
    d = 8 * codes.shape[1]
    if kind == "ivf":
        return _trained(codes, d, **parameters)
    if kind == "hnsw":
        index = _swig.IndexBinaryHNSW(d, parameters["M"])
        index.hnsw.efConstruction = parameters["ef_construction"]
        index.hnsw.efSearch = parameters["ef_search"]
        return index
    if kind == "multihash":
        index = _swig.IndexBinaryMultiHash(d, parameters["nhash"], parameters["b"])
        index.nflip = parameters["nflip"]
        _check_writable(codes, **parameters)
        return index
    return _swig.IndexBinaryFlat(d)


def _check_writable(codes: NDArray[np.uint8], nhash: int, b: int, nflip: int) -> None:
    """InputError for the codes of which Faiss would write a multihash that lacks some.

    It writes how many codes have a part's value in as many bits as the largest position needs: 2^i codes that
    all have one value are written as none.
    """
    n = len(codes)
    if n & (n - 1):
        return
    differ = np.unpackbits(np.bitwise_or.reduce(codes ^ codes[0], axis=0), bitorder="little")
    for part in range(nhash):
        if not differ[part * b : (part + 1) * b].any():
            raise InputError(
                f"Faiss cannot write a multihash of {n} codes that are alike in bits {part * b} to "
                f"{(part + 1) * b - 1}; give fewer parts (nhash), take another kind, or one item more"
            )


def _trained(codes: NDArray[np.uint8], d: int, nlist: int, nprobe: int) -> Any:
    """An empty IVF with centroids learned from some of the codes."""
    quantizer = _swig.IndexBinaryFlat(d)
    index = _swig.IndexBinaryIVF(quantizer, d, nlist)
    index.quantizer_object = quantizer  # Faiss keeps only the address
    index.nprobe = nprobe
    index.cp.min_points_per_centroid = 1  # else it warns on stderr
    index.cp.max_points_per_centroid = _TRAINED_FROM
    few = min(len(codes), _TRAINED_FROM * nlist)
    some = np.sort(np.random.default_rng(_SEED).choice(len(codes), few, replace=False))
    with threads(few=False):
        index.train(np.ascontiguousarray(codes[some]))
    return index


def nearest(index: Any, codes: NDArray[np.uint8], k: int) -> tuple[Distances, Rows]:
    """What Faiss answers, (n, k) each, NO_DISTANCE and NO_ID where it found nothing; k up to its ntotal."""
    D = np.full((len(codes), k), NO_DISTANCE, np.int32)
    I = np.full((len(codes), k), NO_ID, np.int64)
    for start in range(0, len(codes), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        with threads(few=len(codes) < _FEW):
            D[some], I[some] = index.search(np.ascontiguousarray(codes[some]), k)
    D[I == NO_ID] = NO_DISTANCE  # HNSW has another number there
    return D, I


def write(file: IO[bytes], index: Any) -> None:
    """What `faiss.write_index_binary` writes, into an open file: OSError if the disk refuses."""
    faiss.write_index_binary(index, _swig.PyCallbackIOWriter(file.write))


def read(file: IO[bytes]) -> Any:
    """The index in an open file; RuntimeError where Faiss does not accept it."""
    return faiss.read_index_binary(_swig.PyCallbackIOReader(file.read))


def probes(codes: NDArray[np.uint8], bits: int, n: int) -> NDArray[np.uint8]:
    """Queries to measure with: up to `n` of the codes, a sixteenth of their first `bits` bits flipped."""
    rng = np.random.default_rng(_SEED)
    drawn = codes[np.sort(rng.choice(len(codes), min(n, len(codes)), replace=False))]
    which = rng.random((len(drawn), bits)).argsort(axis=1)[:, : max(1, bits // 16)]
    flips = np.zeros((len(drawn), 8 * codes.shape[1]), np.uint8)
    np.put_along_axis(flips, which, 1, axis=1)
    return drawn ^ np.packbits(flips, axis=1, bitorder="little")


def recall(D: Distances, truth: Distances) -> float:
    """Share of answers (n, k) that are no farther than the last true one: which of equals is no matter."""
    return float((truth[:, -1:] >= D).mean()) if D.size else 1.0
