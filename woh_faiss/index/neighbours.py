"""What a search finds: items with their scores or distances."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes, score
from woh_faiss.errors import InputError, short
from woh_faiss.store import NO_DISTANCE, NO_ID

#: Ids as an array_like, or a faiss.IDSelector.
Ids = Any
#: What the items of an answer may be ordered by.
By = Literal["both", "kind", "instance", "hamming"]


class Neighbour(NamedTuple):
    """One answer to a query: an item, and its score, or how many bits of its code differ from the query's;
    how far its tags are trusted, 0 to 1; and its metadata, a value or None for each column of the index."""

    id: int
    key: str | None
    distance: float
    tags: list[str]
    trust: float = 1.0
    metadata: Mapping[str, Any] = MappingProxyType({})


def valid_by(by: str, r: int, s: int) -> By:
    """`by`; InputError unless codes of r learned and s instance bits can be ordered by it."""
    if not isinstance(by, str) or by not in get_args(By):
        raise InputError(f"by is {short(by)}, expected one of {', '.join(get_args(By))}")
    if {"kind": not r, "instance": not s}.get(by):
        raise InputError(f"by is {by!r}, but the index has no such bits; leave it out")
    valid: By = by  # type: ignore[assignment]
    return valid


def halves_of_codes(
    stored: NDArray[np.uint8], r: int, s: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Stored codes (n, bytes) as queries, each bit -1 or 1: what `Hasher.halves` has of features."""
    signs = codes.unpack(codes.unpad(stored, r + s))
    h, a = (score.normalised(half) if half.shape[1] else None for half in (signs[:, :r], signs[:, r:]))
    return h, a


def no_answers(nq: int, k: int, by: By) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Scores or distances, and ids, where there is no item: (nq, k) both."""
    D = np.full((nq, k), NO_DISTANCE, np.int32) if by == "hamming" else np.full((nq, k), -np.inf, np.float32)
    return D, np.full((nq, k), NO_ID, np.int64)


def without_own(
    D: NDArray[Any], I: NDArray[np.int64], ids: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The k nearest other items of each of `ids`, out of the k + 1 nearest to its code."""
    # Behind more than k duplicates of it an item was not found: drop the last then.
    own = ids.astype(np.int64)[:, None] == I
    own[~own.any(axis=1), -1] = True
    shape = len(ids), D.shape[1] - 1
    return D[~own].reshape(shape), I[~own].reshape(shape)
