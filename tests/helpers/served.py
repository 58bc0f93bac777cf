"""A small index to be served, and the token of its server."""

import numpy as np

from woh_faiss import Chunk, WOHIndex

WORDS = ["sea", "beach", "hill", "snow"]
SMALL = {"bits": 16, "instance_bits": 16, "anchors": 10, "vector_size": 5}
N = 120
TOKEN = "0123456789abcdef0123"  # noqa: S105
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def stream(n=N, d=8, start=0, seed=0):
    """n items of four kinds, with a tag, a key and a price each."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(WORDS), n)
    X = (np.eye(len(WORDS), d)[kinds] * 3 + rng.normal(size=(n, d))).astype(np.float32)
    return Chunk.of(
        X,
        [[WORDS[kind]] for kind in kinds],
        keys=[f"p{start + i}.jpg" for i in range(n)],
        metadata={"price": [float(i % 50) for i in range(n)]},
    )


def built(path):
    """The path of an index that has learned `stream()`."""
    WOHIndex.build(path, [stream()], **SMALL).close()
    return path


def token_file(folder, token=TOKEN, mode=0o600):
    """A file with the token."""
    path = folder / "token.txt"
    path.write_text(f"{token}\n")
    path.chmod(mode)
    return path
