"""Items of six topics with tags, and small configs: for tests, and for processes that import no pytest."""

import numpy as np

WORDS = ["sea", "beach", "hill", "snow", "city", "night"]
SMALL = {"bits": 16, "anchors": 10, "vector_size": 5}
#: An index of learned bits alone.
LEARNED = {**SMALL, "instance_bits": 0}


def tagged(seed, n=40, d=7):
    """(features, tag lists) of n items of six topics."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(6, size=n)
    X = (np.eye(6, d)[topic] * 3 + rng.normal(size=(n, d))).astype(np.float32)
    return X, [[WORDS[t], WORDS[(t + 1) % 6]] if rng.random() < 0.6 else [WORDS[t]] for t in topic]
