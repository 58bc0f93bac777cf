"""Float's ten nearest neighbours among the answers: without features, and refined by them.

    python examples/benchmarks/refine_bars.py openclipart.npz corel5k.npz debtags-a.npz mirflickr25k.npz

Each set: 500 random queries, the rest built as an index of 64 + 64 bits. The last set is made up: 100,000
items of 64 numbers, of which the first 4,000 are learned. Features are an .npy. Milliseconds are those of one
query, asked alone.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from woh_faiss import Chunk, Refine, WOHIndex, read_chunk
from woh_faiss.evaluation.datasets import synthetic
from woh_faiss.evaluation.metrics import cosine

ORDERED = (None, 100, 1000)


def recalls(index, features, xq, near, by):
    """(recall, milliseconds a query) for each number of ordered answers."""
    refine = Refine(features)
    for ordered in ORDERED:
        how = {"by": by} if ordered is None else {"by": by, "refine": refine, "refine_k": ordered}
        _, I = index.search(xq, 10, **how)
        start = time.perf_counter()
        for x in xq[:50]:
            index.search(x[None], 10, **how)
        seconds = time.perf_counter() - start
        yield (I[:, :, None] == near[:, None]).any(axis=2).mean(), 20 * seconds


def measured(name, chunk):
    """Print a row for each order of answers."""
    order = np.random.default_rng(0).permutation(len(chunk))
    X = np.asarray(chunk.features, np.float32)
    xq, database, tags = X[order[:500]], X[order[500:]], chunk.tags.rows(order[500:])
    near = np.concatenate(
        [np.argsort(cosine(part, database), axis=1, kind="stable")[:, :10] for part in np.split(xq, 50)]
    )
    parts = [slice(start, start + 2000) for start in range(0, len(database), 2000)]
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder, "features.npy")
        np.save(features, database)
        made = (Chunk.of(database[part], tags.rows(part).own()) for part in parts[:2])
        with WOHIndex.build(Path(folder, "index"), made) as index:
            for part in parts[2:]:
                chunk = Chunk.of(database[part], tags.rows(part).own())
                index.add(chunk) if len(database) > 50_000 else index.update(chunk)
            for by in ("both", "instance"):
                cells = " | ".join(f"{r:.3f} | {ms:.1f}" for r, ms in recalls(index, features, xq, near, by))
                print(f"| {name}, {len(database):,} | `{by}` | {cells} |", flush=True)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", type=Path)
    given = parser.parse_args()
    print("| set | `by` | codes alone | ms | K = 100 | ms | K = 1,000 | ms |\n|" + "---|" * 8)
    for path in given.sets:
        measured(path.stem, read_chunk(path))
    (chunk,) = synthetic(100_500, 64, noise=2.0, size=100_500)
    measured("made up", chunk)


if __name__ == "__main__":
    main()
