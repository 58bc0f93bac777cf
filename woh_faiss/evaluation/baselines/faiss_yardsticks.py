"""Faiss's own indexes at the same number of bytes an item: nothing is learned from tags.

Features are scaled to length 1, so that L2 ranks like cosine; an index is trained on the database it holds.

==============  =======================================================================  =================
name            index                                                                    bytes
==============  =======================================================================  =================
faiss-lsh       IndexLSH: signs after a random rotation, Hamming distance                 any
faiss-itq       signs of ITQTransform (Gong and Lazebnik, CVPR 2011), at most as many     any
                as features have numbers; a query keeps its own: Σ_j a_j c_j
faiss-pq        IndexPQ: a codebook of 256 for each byte (Jégou et al., PAMI 2011)        any
faiss-rabitq    IndexRaBitQ (Gao and Long, SIGMOD 2024) of the leading principal          at least 9: 8 hold
                components, turned at random: one bit each                                numbers of the item
==============  =======================================================================  =================

With ITQ, PQ and RaBitQ queries stay uncompressed. PQ's codebooks, 1,024 bytes a number of a feature, are not
counted: of a small database they are larger than all codes together, and know it nearly by heart.

The only module outside of the store that imports Faiss: none of this is part of an index folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.evaluation.metrics import Distance
from woh_faiss.learner.kernel import unit_rows

Array = NDArray[Any]
#: Faiss's own stubs have one of two constructors.
_swig: Any = faiss
#: Codewords of a byte of PQ.
CODEWORDS = 256
#: Bytes of an item in RaBitQ that are not bits of its vector.
FACTORS = 8


def search(name: str, X: Array, xq: Array, n_bytes: int) -> NDArray[np.float32]:
    """Distances of queries to all of a database by one index: (q, n).

    Parameters
    ----------
    name : str
        A name in `MAKERS`.
    X : (n, d) array
        Features of the database.
    xq : (q, d) array
        Features of the queries.
    n_bytes : int
        Bytes an item.

    Raises
    ------
    InputError
        As `ranker`, or the queries are not finite features of the same width.
    """
    return np.asarray(ranker(name, X, n_bytes)(xq, X))


def ranker(name: str, X: Array, n_bytes: int) -> Distance:
    """A distance for `metrics.mean_average_precision`; it trains once, on the database.

    Parameters
    ----------
    name : str
        A name in `MAKERS`.
    X : (n, d) array
        Features of the database.
    n_bytes : int
        Bytes an item.

    Raises
    ------
    InputError
        The name is unknown, or the index cannot be made of so many items or bytes; called with another
        database than X.
    """
    if name not in MAKERS:
        raise InputError(f"the index is {name!r}, expected one of {', '.join(MAKERS)}")
    x = _ready(X)
    index = MAKERS[name](x, validate.positive_int(n_bytes, "n_bytes"))
    index.train(x)
    index.add(x)

    def distance(Xq: Array, Xd: Array) -> NDArray[np.float32]:
        if Xd.shape != X.shape:
            raise InputError(f"the database is {Xd.shape}, the index was made of {X.shape}; give the same")
        found, rows = index.search(_ready(Xq, X.shape[1], "queries"), len(x))
        D = np.empty_like(found)
        np.put_along_axis(D, rows, found, axis=1)
        return np.asarray(D)

    return distance


def _ready(X: Array, d: int | None = None, name: str = "features") -> NDArray[np.float32]:
    return np.ascontiguousarray(unit_rows(validate.features(X, d=d, name=name)), np.float32)


def _lsh(x: Array, n_bytes: int) -> Any:
    return faiss.IndexLSH(x.shape[1], 8 * n_bytes)


class _ITQ:
    """Signs of rows that ITQ has turned, as floats: they rank as bits would. Methods are Faiss's."""

    def __init__(self, d: int, bits: int) -> None:
        self._turn, self._signs = faiss.ITQTransform(d, bits, True), faiss.IndexFlatL2(bits)

    def train(self, x: Array) -> None:
        self._turn.train(x)

    def add(self, x: Array) -> None:
        self._signs.add(np.where(self._turn.apply(x) >= 0, np.float32(1), np.float32(-1)))

    def search(self, x: Array, k: int) -> tuple[Array, Array]:
        # Codes are equally long, so the nearest have the largest products.
        D, rows = self._signs.search(self._turn.apply(x), k)
        return D, rows


def _itq(x: Array, n_bytes: int) -> Any:
    return _ITQ(x.shape[1], min(8 * n_bytes, x.shape[1]))


def _pq(x: Array, n_bytes: int) -> Any:
    n, d = x.shape
    if n < CODEWORDS:
        raise InputError(f"PQ was given {n} items, expected at least {CODEWORDS} to learn its codebooks from")
    wide = -(-d // n_bytes) * n_bytes  # whole parts: zeros behind change no distance
    index = faiss.IndexPQ(wide, n_bytes, 8)
    index.pq.cp.min_points_per_centroid = 1  # it would print a warning
    return (
        index if wide == d else faiss.IndexPreTransform(_swig.RemapDimensionsTransform(d, wide, False), index)
    )


def _rabitq(x: Array, n_bytes: int) -> Any:
    if n_bytes <= FACTORS:
        raise InputError(
            f"RaBitQ was asked for {n_bytes} bytes an item, expected more than the {FACTORS} beside bits"
        )
    kept = min(8 * (n_bytes - FACTORS), *x.shape)
    turned = faiss.PCAMatrix(x.shape[1], kept, 0, True)
    return faiss.IndexPreTransform(turned, faiss.IndexRaBitQ(kept, faiss.METRIC_L2))


MAKERS: dict[str, Callable[[Array, int], Any]] = {
    "faiss-lsh": _lsh,
    "faiss-itq": _itq,
    "faiss-pq": _pq,
    "faiss-rabitq": _rabitq,
}
