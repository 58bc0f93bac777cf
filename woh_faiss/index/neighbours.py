"""What a search finds: items with their distances, or with the scores of a Hamming short list.

A score is asymmetric: the real-valued query against ±1 codes, score(x, b) = Σ_l (φ(x)P)_l b_l. The query's
own rounding to bits is what a short code loses most by; φ(x)P still knows how sure each bit was. Nothing is
stored for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes
from woh_faiss.store import NO_ID, Searcher, View

#: Ids as an array_like, or a faiss.IDSelector.
Ids = Any


class Neighbour(NamedTuple):
    """One answer to a query: an item, and how many bits of its code differ from the query's, or its score."""

    id: int
    key: str | None
    distance: float
    tags: list[str]


def without_own(
    D: NDArray[np.int32], I: NDArray[np.int64], ids: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The k nearest other items of each of `ids`, out of the k + 1 nearest to its code."""
    # Behind more than k duplicates of it an item was not found: drop the last then.
    own = ids.astype(np.int64)[:, None] == I
    own[~own.any(axis=1), -1] = True
    shape = len(ids), D.shape[1] - 1
    return D[~own].reshape(shape), I[~own].reshape(shape)


#: Row v holds the eight signs of byte v, in the bit order of `codes.pack`.
_SIGNS = codes.unpack(np.arange(256, dtype=np.uint8)[:, None]).astype(np.float32)


def scores(H: NDArray[np.float64], packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Σ_l H_il b_l of each query with each code of its own short list: (q, K) float32.

    Parameters
    ----------
    H : (q, r) real
        φ(x) P of the queries.
    packed : (q, K, r // 8) uint8
        Codes of each query's short list.

    Notes
    -----
    A table a query and byte holds the 256 sums that byte can add, so that a code costs r/8 look-ups
    in place of r multiplications and no code is ever unpacked.
    """
    q, K, n_bytes = packed.shape
    tables = H.astype(np.float32).reshape(q, n_bytes, 8) @ _SIGNS.T  # q x r/8 x 256
    total = np.zeros((q, K), np.float32)
    for j in range(n_bytes):
        total += np.take_along_axis(tables[:, j], packed[:, :, j].astype(np.intp), axis=1)
    return total


def reranked(
    view: View,
    H: NDArray[np.float64],
    k: int,
    rerank: int,
    allow: Ids | None,
    deny: Ids | None,
    searcher: Searcher | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and ids of the k best of the `rerank` nearest items, for queries H = φ(x)P (nq, r)."""
    most = min(rerank, max(k, view.snapshot.ntotal))
    _, I, stored = view.search_codes(codes.pad(codes.pack(H)), most, allow, deny, searcher)
    S = np.where(I == NO_ID, -np.inf, scores(H, stored[:, :, : H.shape[1] // 8])).astype(np.float32)
    best = np.argsort(-S, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(S, best, axis=1), np.take_along_axis(I, best, axis=1)
