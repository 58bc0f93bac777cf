"""The score of a stored code for a query that keeps its real numbers: how much kind, how much instance.

A code is r learned bits b, then s instance bits c. A query has h (r) and a (s), one real number a bit:

    score = h·b / ‖h‖₁ + max(0, a·c / ‖a‖₁)⁸

Both terms are at most 1. The first ranks by kind. The second is near 0 for all but near-duplicates, and 1
for the item itself. Where one half has no bits, the score is the other term alone. docs/score.md has the
reasons. Everything here is the same, to the bit, for one query and for a thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import codes

Single = NDArray[np.float32]

#: Three squarings: the eighth power of the instance term.
_SQUARINGS = 3
#: First answers that a search asks again with, unless another number is given.
EXPAND = 3
#: What the first answers' learned bits count, beside the query's own numbers of mean size 1.
EXPANSION_WEIGHT = np.float32(2)

#: Column v holds the eight signs of byte v, in the bit order of `codes.pack`.
_SIGNS = np.ascontiguousarray(codes.unpack(np.arange(256, dtype=np.uint8)[:, None]).T, np.float32)


def normalised(H: NDArray[Any]) -> Single:
    """Rows (n, bits) divided by the sum of their absolute values: float32; a row of zeros stays one."""
    H = np.asarray(H, np.float32)
    total = np.abs(H).sum(axis=1, dtype=np.float64)[:, None]
    return (H / np.where(total > 0, total, 1.0)).astype(np.float32)


def tables(H: Single) -> Single:
    """What each value of each byte of a code adds to a sum: (n, bits) to (n, bits // 8, 256) float32."""
    # One product a row: its numbers do not depend on the other rows.
    return H.reshape(len(H), H.shape[1] // 8, 8) @ _SIGNS


def sums(table: Single, packed: NDArray[np.uint8]) -> Single:
    """Σ_j H_ij b_j of each query with codes of its own.

    Parameters
    ----------
    table : (n, n_bytes, 256) float32
        `tables` of the queries.
    packed : (n, K, n_bytes) uint8
        The codes of each query.

    Returns
    -------
    (n, K) float32
    """
    n, _, n_bytes = packed.shape
    first = np.arange(n)[:, None] * n_bytes + np.arange(n_bytes)[:, None, None]
    total = np.zeros(packed.shape[:2], np.float32)
    for values in table.ravel().take(packed.transpose(2, 0, 1) + 256 * first):
        total += values  # byte by byte: the order decides float32's rounding
    return total


def sums_of_all(table: Single, packed: NDArray[np.uint8]) -> Single:
    """`sums` of each query with the same codes (K, n_bytes): (n, K) float32, equal to the bit."""
    total = np.zeros((len(table), len(packed)), np.float32)
    for j in range(packed.shape[1]):
        total += table[:, j].take(packed[:, j], axis=1)
    return total


def instance_term(same: Single) -> Single:
    """max(0, same)⁸."""
    term = np.maximum(same, np.float32(0))
    for _ in range(_SQUARINGS):
        term *= term
    return term


def combined(kind: Single | None, same: Single | None) -> Single:
    """The score of h·b / ‖h‖₁ and a·c / ‖a‖₁, arrays of one shape; None for a half without bits."""
    if kind is None:
        assert same is not None  # noqa: S101 - for mypy: a code has bits
        return same
    return kind if same is None else kind + instance_term(same)


def expanded(H: NDArray[Any], learned: NDArray[np.uint8]) -> Single:
    """Queries h' that know what their first answers are: h / mean|h| + 2 mean(b), as average query expansion.

    Chum et al., ICCV 2007, on codes: stored codes know tags, a query does not, its first answers do.

    Parameters
    ----------
    H : (n, r) real
        The queries.
    learned : (n, hits, r // 8) uint8
        Learned bits of the first answers of each.

    Returns
    -------
    (n, r) float32, normalised
    """
    n, hits, n_bytes = learned.shape
    signs = codes.unpack(learned.reshape(n * hits, n_bytes)).reshape(n, hits, 8 * n_bytes)
    mean = signs.sum(axis=1, dtype=np.int64).astype(np.float32) / np.float32(hits)
    # ‖h‖₁ is the mean times r.
    return normalised(normalised(H) * np.float32(8 * n_bytes) + EXPANSION_WEIGHT * mean)
