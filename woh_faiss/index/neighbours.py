"""What a search finds: items with their scores or distances."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes, score
from woh_faiss.store import NO_ID, Searcher, View

#: Ids as an array_like, or a faiss.IDSelector.
Ids = Any
#: What the items of an answer may be ordered by.
By = Literal["both", "kind", "instance", "hamming"]
#: Nearest codes that an approximate index gives to be scored, at least.
_SHORT_LIST = 1000


class Neighbour(NamedTuple):
    """One answer to a query: an item, and its score, or how many bits of its code differ from the query's."""

    id: int
    key: str | None
    distance: float
    tags: list[str]


def without_own(
    D: NDArray[Any], I: NDArray[np.int64], ids: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The k nearest other items of each of `ids`, out of the k + 1 nearest to its code."""
    # Behind more than k duplicates of it an item was not found: drop the last then.
    own = ids.astype(np.int64)[:, None] == I
    own[~own.any(axis=1), -1] = True
    shape = len(ids), D.shape[1] - 1
    return D[~own].reshape(shape), I[~own].reshape(shape)


def scored_short_list(
    view: View,
    searcher: Searcher,
    packed: NDArray[np.uint8],
    h: NDArray[np.float32] | None,
    a: NDArray[np.float32] | None,
    k: int,
    by: By,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and ids of the k best of the nearest codes that an approximate index finds.

    `packed` (nq, bytes) are the queries' codes, h and a their `Hasher.halves`.
    """
    most = min(max(4 * k, _SHORT_LIST), max(k, view.snapshot.ntotal))
    _, rows = searcher.nearest(codes.pad(packed), most)
    rows = np.sort(np.where(rows == NO_ID, view.snapshot.rows, rows), axis=1)  # of equal scores the earlier
    missing = rows == view.snapshot.rows
    stored = view.mapped.codes[np.where(missing, 0, rows)]
    r = 0 if h is None else h.shape[1] // 8
    kind = None if h is None or by == "instance" else score.sums(score.tables(h), stored[:, :, :r])
    same = None
    if a is not None and by != "kind":
        same = score.sums(score.tables(a), stored[:, :, r : r + a.shape[1] // 8])
    S = np.where(missing, np.float32(-np.inf), score.combined(kind, same))
    best = np.argsort(-S, axis=1, kind="stable")[:, :k]
    rows = np.take_along_axis(np.where(missing, NO_ID, rows), best, axis=1)
    return np.take_along_axis(S, best, axis=1), view.ids_at(rows)
