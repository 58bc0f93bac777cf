"""Vectors of tags: learned from a first chunk, filled in for unknown tags, and their means."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

#: Skip-gram pairs times epochs that learning vectors from a first chunk may take: a few seconds on one core.
PAIRS = 2_000_000
MAX_EPOCHS = 50


def mean_vectors(Y: csr_array, E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Plain mean of the vectors E (c, f) of an item's admitted tags, Y (n, c); zeros where it has none."""
    Z: NDArray[np.float64] = Y @ E
    Z /= np.maximum(np.diff(Y.indptr), 1)[:, None]
    return Z


def fill_with_means(E: NDArray[np.float64], Y: csr_array, counts: NDArray[np.int64], *, first: int) -> None:
    """Give the zero rows of E (c, f) from `first` on their means, as `Vocabulary.learn` says."""
    have = np.asarray(E.any(axis=1))
    unknown = first + np.flatnonzero(~have[first:])
    if not unknown.size or not have.any():
        return
    together = Y[:, unknown].T @ Y  # (unknown, c): items they share
    shared = together @ have.astype(np.float64)
    everywhere = (counts @ E) / counts[have].sum()
    means = (together @ E) / np.maximum(shared, 1)[:, None]
    E[unknown] = np.where(shared[:, None] > 0, means, everywhere)


def trained(
    Y: csr_array, columns: Sequence[str], tags: Sequence[str], *, seed: int, vector_size: int
) -> tuple[NDArray[np.float64], int]:
    """Vectors (len(tags), vector_size) learned from what occurs together in Y, and how many were learned.

    Skip-gram with negative sampling (Mikolov et al., 2013) over whole tag lists, its work bounded by
    `PAIRS`. If no two tags share an item there is nothing to learn: seeded random unit vectors, and 0.
    The same lists and seed give the same bytes, in every process.
    """
    lists = _lists(Y, columns)
    lengths = np.array([len(words) for words in lists])
    if lengths.max() < 2:
        E = np.random.default_rng(seed).normal(size=(len(tags), vector_size))
        return E / np.linalg.norm(E, axis=1, keepdims=True), 0
    from gensim.models import Word2Vec

    # A list has no order: every tag sees every other, unless lists are so long that it would take minutes.
    window = min(int(lengths.max()), max(5, PAIRS // int(lengths.sum())))
    pairs = int((lengths * np.minimum(lengths - 1, 2 * window)).sum())
    model: Any = Word2Vec(
        sentences=lists,
        vector_size=vector_size,
        window=window,
        shrink_windows=False,
        min_count=1,
        sample=0,  # in a small vocabulary nearly every tag is "frequent" and would be thrown away
        sg=1,
        workers=1,  # more would make the result depend on timing
        seed=seed % 2**32,  # what numpy.random.RandomState takes
        epochs=max(1, min(MAX_EPOCHS, PAIRS // pairs)),
    )
    return np.asarray(model.wv[list(tags)], np.float64), len(tags)


def _lists(Y: csr_array, tags: Sequence[str]) -> list[list[str]]:
    """The tags of each item that has any."""
    words = [tags[column] for column in Y.indices.tolist()]
    return [words[a:b] for a, b in pairwise(Y.indptr.tolist()) if b > a]
