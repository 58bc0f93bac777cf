"""The quality of a ranking: mean average precision, precision at k, nDCG, and the distances they rank by.

Published numbers differ because their definitions do. The one used here unless an option says otherwise:
true Hamming distance, the whole database, relevant = at least one shared label, a query with nothing
relevant scores 0 and stays in the mean, ties go to the smaller database position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.validate import positive_int

Array = NDArray[Any]
Distance = Callable[[Array, Array], Array]
#: (queries x database) cells held at once: about 100 MB with the temporaries of a ranking.
CELLS = 1 << 22
#: Database rows converted to float32 at once, so that a memory-mapped array is never read whole.
ROWS = 4096


def hamming(Bq: Array, Bd: Array, *, saturated_bytes: bool = False) -> NDArray[np.uint16]:
    """Number of differing bits between packed codes: (q, b) and (n, b) uint8 to (q, n).

    Parameters
    ----------
    Bq, Bd : (q, b) and (n, b) uint8
        Packed codes in any bit order, the same in both.
    saturated_bytes : bool
        Count a byte whose 8 bits all differ as 7. Wrong, but a helper that many published hashing
        codes share does so (uint8 255 + 1 saturates); needed only to reproduce their numbers.

    Raises
    ------
    InputError
        Not 2-D uint8, or of different widths.
    """
    for B, name in ((Bq, "query"), (Bd, "database")):
        if B.ndim != 2 or B.dtype != np.uint8:
            raise InputError(f"{name} codes have shape {B.shape} and dtype {B.dtype}, expected 2-D uint8")
    _same_width(Bq, Bd, "codes", "bytes")
    out = np.empty((len(Bq), len(Bd)), np.uint16)
    Q = _signs(Bq)
    for start in range(0, len(Bd), ROWS):
        rows = slice(start, start + ROWS)
        # Exact: an inner product of signs is a whole number far below 2**24.
        out[:, rows] = (Q.shape[1] - Q @ _signs(Bd[rows]).T) / 2
    if saturated_bytes:
        for query, complement in zip(Bq.T, ~Bd.T, strict=True):
            out -= query[:, None] == complement[None, :]
    return out


def l2(Xq: Array, Xd: Array) -> NDArray[np.float32]:
    """Squared Euclidean distance less the query's own norm, which ranks equally: (q, d), (n, d) to (q, n)."""
    return _inner(Xq, Xd, lambda X: (-2 * X, np.einsum("nd,nd->n", X, X)))


def cosine(Xq: Array, Xd: Array) -> NDArray[np.float32]:
    """Minus the cosine times the query's norm, which ranks equally: (q, d), (n, d) to (q, n).

    A row of zeros has cosine 0 with everything.
    """

    def negated_unit(X: Array) -> tuple[Array, Array]:
        norm = np.linalg.norm(X, axis=1, keepdims=True)
        return -X / np.where(norm > 0, norm, 1), np.zeros(len(X), np.float32)

    return _inner(Xq, Xd, negated_unit)


def average_precision(
    distances: Array, relevant: NDArray[np.bool_], *, at: int | None = None, tie_aware: bool = False
) -> NDArray[np.float64]:
    """Average precision of each query; NaN where nothing relevant is ranked.

    Parameters
    ----------
    distances : (q, n) array of real
    relevant : (q, n) bool
    at : int, optional
        Rank only the first `at`, and average over the relevant items among them (mAP_N of the MIHash
        family); None ranks the whole database.
    tie_aware : bool
        Average over all orders of the items at one distance (McSherry and Najork, ECIR 2008) in place
        of the one by position. Short codes tie heavily.

    Raises
    ------
    InputError
        The shapes differ, `at` is not at least 1, or both `at` and `tie_aware` are given.
    """
    if distances.ndim != 2 or distances.shape != relevant.shape:
        raise InputError(
            f"distances have shape {distances.shape}, relevant {relevant.shape}; both are (queries, database)"
        )
    if at is not None and tie_aware:
        raise InputError("average precision was asked for with both at and tie_aware; give one of them")
    order = np.argsort(distances, axis=1, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=1)
    if at is not None:
        hits = hits[:, : positive_int(at, "at")]
    total = hits.sum(axis=1)
    if tie_aware:
        sums = _tied_precision_sums(np.take_along_axis(distances, order, axis=1), hits)
    else:
        query, rank = np.nonzero(hits)
        nth = np.arange(1, len(query) + 1) - np.repeat(np.cumsum(total) - total, total)
        sums = np.bincount(query, nth / (rank + 1.0), minlength=len(hits)).astype(np.float64, copy=False)
    ap = np.full(len(hits), np.nan)
    np.divide(sums, total, out=ap, where=total > 0)
    return ap


def mean_average_precision(
    queries: Array,
    database: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    distance: Distance = hamming,
    drop_empty: bool = False,
    at: int | None = None,
    tie_aware: bool = False,
) -> float:
    """Mean average precision (0 to 1) of ranking the database for every query.

    Parameters
    ----------
    queries, database : (q, b) and (n, b) uint8 packed codes, or (q, d) and (n, d) features
    query_labels, database_labels : (q, L) and (n, L) bool
        An item is relevant to a query when they share a label.
    distance : callable
        `hamming`, `l2`, `cosine`, or any function from two such arrays to a (q, n) one.
    drop_empty : bool
        Leave queries with nothing relevant (with `at`: nothing relevant among the first `at`) out of
        the mean; otherwise they count as 0.
    at, tie_aware
        As in `average_precision`.

    Raises
    ------
    InputError
        Arrays do not fit together, there is no query, or `drop_empty` leaves none.
    """
    parts = query_blocks(queries, database, query_labels, database_labels, distance)
    ap = np.concatenate([average_precision(D, S, at=at, tie_aware=tie_aware) for D, S in parts])
    if not drop_empty:
        return float(np.nan_to_num(ap).mean())
    if np.isnan(ap).all():
        raise InputError("no query has a relevant item, so dropping such queries leaves nothing to average")
    return float(np.nanmean(ap))


def precision_at(
    k: int,
    queries: Array,
    database: Array,
    query_labels: Array,
    database_labels: Array,
    *,
    distance: Distance = hamming,
) -> float:
    """Mean share (0 to 1) of relevant items among the first k (all, where the database has fewer).

    Parameters
    ----------
    k : int
        Items of each ranking that count.
    queries, database, query_labels, database_labels, distance
        As `mean_average_precision`.

    Raises
    ------
    InputError
        As `mean_average_precision`, or the database is empty.
    """
    k = positive_int(k)
    if not len(database):
        raise InputError("the database is empty, expected at least one item to rank")
    hits = 0
    for D, relevant in query_blocks(queries, database, query_labels, database_labels, distance):
        first = np.argsort(D, axis=1, kind="stable")[:, :k]
        hits += int(np.take_along_axis(relevant, first, axis=1).sum())
    return hits / (len(queries) * min(k, len(database)))


def ndcg(first: Array, gains: Array) -> NDArray[np.float64]:
    """Normalised discounted cumulative gain of the first k answers: Σ gain / log₂(1 + rank), over the most.

    Parameters
    ----------
    first : (q, k) int
        Places in the database of the answers to each query, the first one first.
    gains : (q, n) float
        Gain of each item of the database for each query, 0 or more.

    Returns
    -------
    (q,) float
        0 to 1; NaN where no item has a gain.
    """
    ideal = ideal_dcg(gains, first.shape[1])
    out = np.full(len(first), np.nan)
    np.divide(dcg(np.take_along_axis(gains, first, axis=1)), ideal, out=out, where=ideal > 0)
    return out


def dcg(gains: Array) -> NDArray[np.float64]:
    """Σ gain / log₂(1 + rank) of answers in order: gains (q, k) to (q,)."""
    return np.asarray(gains @ (1 / np.log2(np.arange(2, gains.shape[1] + 2))))


def ideal_dcg(gains: Array, k: int) -> NDArray[np.float64]:
    """The most that `dcg` can be of k items: gains (q, n) of a database to (q,)."""
    most = gains if gains.shape[1] <= k else -np.partition(-gains, k - 1, axis=1)[:, :k]
    return dcg(-np.sort(-most, axis=1))


def query_blocks(
    Q: Array, X: Array, Lq: Array, Ld: Array, distance: Distance
) -> Iterator[tuple[Array, Array]]:
    """(distances, relevant) of a few queries at a time, so that memory does not grow with their number.

    Parameters
    ----------
    Q, X : (q, b) and (n, b) arrays
        Queries and database, as `mean_average_precision`.
    Lq, Ld : (q, L) and (n, L) bool
        Their labels.
    distance : callable
        As `mean_average_precision`.
    """
    for rows, labels, name in ((Q, Lq, "queries"), (X, Ld, "database items")):
        if labels.ndim != 2 or len(labels) != len(rows):
            raise InputError(
                f"there are {len(rows)} {name} and labels of shape {labels.shape}; give a row to each"
            )
    _same_width(Lq, Ld, "labels", "columns")
    if not len(Q):
        raise InputError("there are no queries, expected at least one")
    step = max(1, CELLS // max(1, len(X)))
    Ld_t = np.asarray(Ld, dtype=np.float32).T  # L x n
    for start in range(0, len(Q), step):
        block = slice(start, start + step)
        yield distance(Q[block], X), np.asarray(Lq[block], dtype=np.float32) @ Ld_t > 0


def _same_width(Q: Array, X: Array, name: str, unit: str) -> None:
    if Q.shape[1] != X.shape[1]:
        raise InputError(
            f"query {name} have {Q.shape[1]} {unit}, those of the database {X.shape[1]}; they must be equal"
        )


def _signs(B: Array) -> NDArray[np.float32]:
    return np.unpackbits(B, axis=1).astype(np.float32) * 2 - 1


def _inner(Xq: Array, Xd: Array, prepare: Callable[[Array], tuple[Array, Array]]) -> NDArray[np.float32]:
    """Xq @ F.T + c for F, c = prepare(rows of Xd), in float32, a block of rows at a time."""
    _same_width(Xq, Xd, "features", "columns")
    out = np.empty((len(Xq), len(Xd)), np.float32)
    Q = np.asarray(Xq, dtype=np.float32)
    for start in range(0, len(Xd), ROWS):
        F, c = prepare(np.asarray(Xd[start : start + ROWS], dtype=np.float32))
        out[:, start : start + ROWS] = Q @ F.T + c
    return out


def _tied_precision_sums(distances: Array, hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Expected sum of precisions at the relevant ranks, over all orders within equal distances.

    At rank p (from 0), in a tie of g items, r of them relevant, that starts at rank s behind R relevant
    ones, an item is relevant with chance r/g, and (r-1)/(g-1) of the p-s tied items before it are then
    expected to be: r/g * (R + 1 + (p-s)(r-1)/(g-1)) / (p+1).
    """
    q, n = hits.shape
    first = np.ones((q, n), bool)
    first[:, 1:] = distances[:, 1:] != distances[:, :-1]
    tie = np.cumsum(first) - 1  # which tie each cell is in, counted through the block
    p = np.tile(np.arange(n), q)
    g = np.bincount(tie)
    r = np.bincount(tie, hits.ravel())
    R: Array = (np.cumsum(hits, axis=1) - hits)[first]
    s = p[first.ravel()]
    inside = ((r - 1) / np.maximum(g - 1, 1))[tie]
    terms = (r / g)[tie] * (R[tie] + 1 + (p - s[tie]) * inside) / (p + 1)
    return np.asarray(terms.reshape(q, n).sum(axis=1))
