"""What the default search of a real index is worth on labelled data: MAP, P@10, self@1, self@10, recall.

    python examples/benchmarks/twin_bars.py openclipart.npz corel5k.npz --bits 64 --instance-bits 64

Each set: items with a tag and with features, 1,000 random queries, the rest built as an index from 8 chunks,
min_count 1, other settings as they are by default; means of splits 0 to 2. Beside them the learned bits alone
by Hamming distance, and float cosine.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from woh_faiss import WOHIndex, WordVectors, read_chunk
from woh_faiss.evaluation.metrics import cosine
from woh_faiss.evaluation.quality import Quality, quality


def ranking(index, rows, **how):
    """From features to minus the rank of every item, as `index.search` answers."""

    def of(Q):
        _, I = index.search(Q, rows, **how)
        D = np.empty(I.shape, np.float32)
        np.put_along_axis(D, I, np.arange(rows, dtype=np.float32)[None], axis=1)
        return D

    return of


def measured(path, bits, instance_bits, seed, word_vectors):
    """Quality of the default search, of Hamming distance of the learned bits, and of float cosine."""
    chunk = read_chunk(path)
    tagged = np.array([len(chunk.tags.of_row(row)) > 0 for row in range(len(chunk))])
    order = np.random.default_rng(seed).permutation(
        np.flatnonzero(tagged & np.asarray(chunk.features, np.float32).any(axis=1))
    )
    held_out, rest = order[:1000], order[1000:]
    X, labels = np.asarray(chunk.features, np.float32), np.asarray(chunk.labels)
    asked = X[held_out], X[rest], labels[held_out], labels[rest], seed
    parts = [chunk.rows(part) for part in np.array_split(rest, 8)]
    parts = [type(part).of(part.features, part.tags) for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        made = {"min_count": 1, "seed": seed, "bits": bits, "word_vectors": word_vectors}
        with WOHIndex.build(Path(folder, "twin"), parts, instance_bits=instance_bits, **made) as index:
            twin = quality(ranking(index, len(rest)), *asked)
        with WOHIndex.build(Path(folder, "learned"), parts, instance_bits=0, **made) as index:
            learned = quality(ranking(index, len(rest), by="hamming"), *asked)
    return twin, learned, quality(lambda Q: cosine(Q, X[rest]), *asked)


def main():
    """Print a table a set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--instance-bits", type=int, default=64)
    parser.add_argument("--word-vectors", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    given = parser.parse_args()
    vectors = given.word_vectors and WordVectors.open(given.word_vectors)
    for path in given.sets:
        found = [
            measured(path, given.bits, given.instance_bits, seed, vectors) for seed in range(given.splits)
        ]
        print(f"\n{path.stem}, means of {given.splits} splits")
        print(f"| | {' | '.join(Quality._fields)} |\n|---|{'---|' * len(Quality._fields)}")
        twin = f"{given.bits} + {given.instance_bits} bits"
        names = twin, f"{given.bits} learned bits, Hamming", "float cosine"
        for name, rows in zip(names, zip(*found, strict=True), strict=True):
            print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in np.mean(rows, axis=0))} |", flush=True)


if __name__ == "__main__":
    main()
