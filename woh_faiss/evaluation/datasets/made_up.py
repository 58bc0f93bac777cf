"""Made-up sets on which learned codes cannot pay: tags that say nothing, and tags finer than codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.validate import whole_number

#: Of `random_tags`: classes of features, tags there are.
_CLASSES, _WORDS = 20, 200
#: Of `fine_tags`: tags of an item, and items at most.
_NEAREST, MOST = 2, 20_000


def random_tags(n: int, d: int = 64, *, seed: int = 0) -> Chunk:
    """Items of clustered features whose tags are drawn at random: they say nothing about features.

    Parameters
    ----------
    n, d : int
        Items, and numbers an item.
    seed : int
        Decides every random draw.

    Returns
    -------
    Chunk
        float32 features around 20 centres, 1 to about 10 of 200 tags an item, a few far more frequent than
        others, and the centres as labels (n, 20).

    Raises
    ------
    InputError
        n, d or seed is out of its range.
    """
    n, d = whole_number(n, "n", 1), whole_number(d, "d", 1)
    rng = np.random.default_rng((whole_number(seed, "seed", 0), 0))
    centres = rng.normal(size=(_CLASSES, d))
    own = rng.integers(_CLASSES, size=n)
    X = (centres[own] + rng.normal(size=(n, d))).astype(np.float32)
    popularity = np.arange(1, _WORDS + 1) ** -0.7
    words = rng.choice(_WORDS, size=(n, 1 + 10), p=popularity / popularity.sum())
    typed = np.arange(words.shape[1]) <= rng.poisson(3, size=n)[:, None]
    lists = [[f"word{word}" for word in row[kept].tolist()] for row, kept in zip(words, typed, strict=True)]
    return Chunk.of(X, TagLists.from_lists(lists), labels=np.eye(_CLASSES, dtype=bool)[own])


def fine_tags(n: int, d: int = 8, *, seed: int = 0) -> Chunk:
    """Items whose tags are the two nearest of n landmarks: a tag is shared by a few near neighbours.

    Few bits cannot tell so many places apart, while product quantisation of a few bytes keeps so few numbers
    nearly whole.

    Parameters
    ----------
    n, d : int
        Items and landmarks, and numbers an item.
    seed : int
        Decides every random draw.

    Returns
    -------
    Chunk
        float32 features, normally distributed; tags; and as label the nearest of n // 4 other landmarks, at
        least one.

    Raises
    ------
    InputError
        n, d or seed is out of its range; n above `MOST`, for each item is compared with each landmark.
    """
    n, d = whole_number(n, "n", 1), whole_number(d, "d", 1)
    if n > MOST:
        raise InputError(f"n is {n}, expected at most {MOST}: each item is compared with n landmarks")
    rng = np.random.default_rng((whole_number(seed, "seed", 0), 1))
    landmarks, places, X = (rng.normal(size=(m, d)) for m in (n, max(1, n // 4), n))
    tags = [[f"place{place}" for place in row] for row in _nearest(X, landmarks, _NEAREST).tolist()]
    labels = np.zeros((n, len(places)), bool)
    labels[np.arange(n), _nearest(X, places, 1)[:, 0]] = True
    return Chunk.of(X.astype(np.float32), TagLists.from_lists(tags), labels=labels)


def _nearest(X: NDArray[np.float64], landmarks: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """The k landmarks of the largest cosine to each row: (n, k), a few rows at a time."""
    unit = landmarks / np.linalg.norm(landmarks, axis=1, keepdims=True)
    parts = np.array_split(X, max(1, len(X) // 1000))
    return np.concatenate([np.argsort(-part @ unit.T, axis=1, kind="stable")[:, :k] for part in parts])
