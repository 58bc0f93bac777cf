"""What a search finds: items with their scores or distances."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Ids as an array_like, or a faiss.IDSelector.
Ids = Any
#: What the items of an answer may be ordered by.
By = Literal["both", "kind", "instance", "hamming"]


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
