"""Principal directions: where several methods start."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from .base import Matrix


def principal(X: Matrix, r: int) -> Matrix:
    """The min(r, d) directions of largest variance of centred X (n, d), largest first: (d, min(r, d)).

    Signs are arbitrary: the largest entry of each is made positive, so that all LAPACKs agree. O(n d² + d³).
    """
    d = X.shape[1]
    _, V = eigh(X.T @ X, subset_by_index=[d - min(r, d), d - 1])
    V = V[:, ::-1]
    largest = V[np.argmax(np.abs(V), axis=0), np.arange(V.shape[1])]
    return np.asarray(V * np.where(largest < 0, -1.0, 1.0))


def widened(H: Matrix, r: int) -> Matrix:
    """H (n, p) with columns of zeros up to r: bits for which there is no direction are all alike."""
    return np.pad(H, ((0, 0), (0, r - H.shape[1])))
