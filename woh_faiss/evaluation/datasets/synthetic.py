"""A synthetic social stream: labels decide features and tags, and users type tags as users do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists, row_ends
from woh_faiss.validate import short, whole_number

#: Words of a label, and words that say nothing about any.
WORDS = 30


def synthetic(
    n: int,
    d: int = 64,
    *,
    labels: int = 10,
    tags: float = 4.0,
    missing: float = 0.2,
    wrong: float = 0.1,
    off_topic: float = 0.2,
    noise: float = 1.0,
    size: int = 2000,
    seed: int = 0,
) -> Iterator[Chunk]:
    """Chunks of n items: the same arguments give the same bytes, and a longer stream begins like a shorter.

    An item has one label, or in a third of the cases two. Its features are the mean of its labels'
    centres (normally distributed, of length about 1) plus noise. Each of its tags is a word of one of
    its labels, a few words being far more frequent than the others; or a word of a label that it does
    not have; or one that says nothing.

    Parameters
    ----------
    n, d : int
        Items, and numbers an item.
    labels : int
        How many there are; tags are named ``label3word0``, those that say nothing ``anyword0``.
    tags : float
        Mean number of tags typed for a tagged item, at least 1; a tag that is typed twice counts once.
    missing : float
        Share of items without any tag, 0 to 1.
    wrong, off_topic : float
        Shares of the typed tags; together at most 1. A wrong one needs a third label.
    noise : float
        Length of the noise, about, in units of a centre's length.
    size : int
        Items a chunk; the last may have fewer.
    seed : int

    Yields
    ------
    Chunk
        float32 features, tags, labels (m, `labels`), ids from 0 on.

    Raises
    ------
    InputError
        At once, where an argument is out of its range.
    """
    n, d, labels = whole_number(n, "n", 1), whole_number(d, "d", 1), whole_number(labels, "labels", 1)
    size, seed = whole_number(size, "size", 1), whole_number(seed, "seed", 0)
    for name, share in (("missing", missing), ("wrong", wrong), ("off_topic", off_topic)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} is {short(share)}, expected a share, 0 to 1")
    if wrong + off_topic > 1:
        raise InputError(f"wrong and off_topic are {wrong} and {off_topic}, expected at most 1 together")
    if wrong > 0 and labels < 3:
        raise InputError(f"wrong is {wrong} with {labels} labels; wrong tags need at least 3, or wrong=0")
    if not 1 <= tags < WORDS or not 0 <= noise < np.inf:
        raise InputError(f"tags and noise are {tags} and {noise}, expected 1 to {WORDS} and 0 or more")
    return _stream(n, d, labels, tags, missing, wrong, off_topic, noise, size, seed)


def _stream(
    n: int,
    d: int,
    labels: int,
    tags: float,
    missing: float,
    wrong: float,
    off_topic: float,
    noise: float,
    size: int,
    seed: int,
) -> Iterator[Chunk]:
    centres = np.random.default_rng((seed, 0)).normal(size=(labels, d)) / np.sqrt(d)
    names = (
        *(f"label{label}word{word}" for label in range(labels) for word in range(WORDS)),
        *(f"anyword{word}" for word in range(WORDS)),
    )
    for t, start in enumerate(range(0, n, size), start=1):
        # Each chunk is drawn whole, from numbers of its own: how long the stream is must not matter.
        rng = np.random.default_rng((seed, t))
        first = rng.integers(labels, size=size)
        other = (first + rng.integers(1, labels, size=size)) % labels if labels > 1 else first
        second = np.where(rng.random(size) < 1 / 3, other, first)
        X = (centres[first] + centres[second]) / 2 + rng.normal(size=(size, d)) * (noise / np.sqrt(d))
        typed = np.where(rng.random(size) < missing, 0, 1 + rng.poisson(tags - 1, size))
        lists = _typed(rng, typed, first, second, labels, (wrong, off_topic), names)
        hot = np.zeros((size, labels), bool)
        hot[np.arange(size), first] = hot[np.arange(size), second] = True
        whole = Chunk.of(X.astype(np.float32), lists, ids=np.arange(start, start + size), labels=hot)
        yield whole.rows(slice(0, min(size, n - start)))


def _typed(
    rng: np.random.Generator,
    typed: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    labels: int,
    shares: tuple[float, float],
    names: tuple[str, ...],
) -> TagLists:
    """Tags of items that typed so many each."""
    item = np.repeat(np.arange(len(typed)), typed)
    a, b = first[item], second[item]
    right = np.where(rng.random(len(item)) < 0.5, a, b)
    chance = rng.random(len(item))
    topic = right
    if labels > 2:
        low, high = np.minimum(a, b), np.maximum(a, b)
        strange = rng.integers(labels - 1 - (low != high))
        strange = strange + (strange >= low)
        strange = strange + ((strange >= high) & (low != high))
        topic = np.where(chance < shares[0], strange, topic)
    topic = np.where((chance >= shares[0]) & (chance < sum(shares)), labels, topic)
    popularity = 1 / np.arange(1, WORDS + 1)
    word = rng.choice(WORDS, size=len(item), p=popularity / popularity.sum())
    cells = np.unique(item * len(names) + topic * WORDS + word)
    return TagLists(names, row_ends(cells // len(names), len(typed)), (cells % len(names)).astype(np.int64))
