"""Asymmetric scores: the real-valued query against the ±1 codes of a Hamming short list.

A short code loses most by the rounding of the query to bits; φ(x)P still has the magnitude of each bit.
Nothing is stored for it: score(x, b) = Σ_l (φ(x)P)_l b_l.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes
from woh_faiss.store import NO_ID, Searcher, View

from .neighbours import Ids

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
