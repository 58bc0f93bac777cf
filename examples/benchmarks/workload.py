"""What the benchmarks share: a tagged stream of any shape, and indexes filled up to any size."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from woh_faiss import Chunk, WOHIndex
from woh_faiss.inputs.chunk import TagLists
from woh_faiss.store import NewRound, Store

#: Codes a commit while filling: large enough to be quick, small enough for memory.
BATCH = 250_000


def chunk(seed: int, n: int = 2000, d: int = 4096, n_tags: int = 1386, per_item: int = 5) -> Chunk:
    """n items of d features and about `per_item` of `n_tags` tags each; every tag is used at least twice."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).standard_normal((50, d), dtype=np.float32)
    X = topics[rng.integers(50, size=n)] + rng.standard_normal((n, d), dtype=np.float32)
    columns = np.concatenate(
        [np.arange(n_tags), np.arange(n_tags), rng.integers(n_tags, size=n * per_item - 2 * n_tags)]
    )
    names = tuple(f"tag{j:05d}" for j in range(n_tags))
    per_row = np.array_split(rng.permutation(columns), n)
    indptr = np.concatenate([[0], np.cumsum([len(np.unique(row)) for row in per_row])])
    indices = np.concatenate([np.unique(row) for row in per_row])
    return Chunk.of(X, TagLists(names, indptr.astype(np.int64), indices.astype(np.int64)))


def fill(path: Path, n: int, seed: int = 0) -> None:
    """Append n random codes to the index at `path`, its size without the time to encode."""
    rng = np.random.default_rng(seed)
    with Store.open(path) as store:
        for start in range(0, n, BATCH):
            size = min(BATCH, n - start)
            with store.writing() as writing:
                first = writing.next_id
                writing.commit(
                    NewRound(
                        kind="encoded",
                        codes=rng.integers(0, 256, size=(size, store.d // 8), dtype=np.uint8),
                        ids=np.arange(first, first + size, dtype=np.int64),
                        keys=[None] * size,
                        tags=[[]] * size,
                        trained=0,
                        seconds=0.0,
                    )
                )
            print(f"\rfilled {start + size:,} of {n:,}", end="", file=sys.stderr)
    print(file=sys.stderr)


def built(path: Path, first: Chunk, bits: int = 64) -> None:
    """A new index of learned bits alone at `path`, which has learned one chunk."""
    WOHIndex.build(path, [first], bits=bits, instance_bits=0).close()


def spread(values: list[float]) -> str:
    """Median and range, for people."""
    return f"{np.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
