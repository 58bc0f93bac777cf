"""What wrong tags and items without tags cost, beside float cosine and ITQ at equal bytes; the bars for it.

    python examples/benchmarks/trouble_bars.py openclipart.npz corel5k.npz [--splits 3]

Each set: items with a tag and with features, 1,000 random queries, the rest in 8 chunks, 64 learned bits,
min_count 1; means of splits. Wrong: tags of a share of the items exchanged among them. Tagged: the share that
keeps its tags. ITQ has 64 bits and real-valued queries. Other methods than adaptive are
by Hamming distance.
"""

import argparse
from pathlib import Path

import numpy as np

from woh_faiss import WOH, WOHConfig, read_chunk
from woh_faiss.evaluation.baselines import RPTWOH
from woh_faiss.evaluation.baselines.faiss_yardsticks import ranker
from woh_faiss.evaluation.metrics import cosine
from woh_faiss.evaluation.quality import quality
from woh_faiss.evaluation.streaming import split, stream

HAMMING, DEFAULT = {"by": "hamming"}, {"by": "both", "instance_bits": 64, "expand": 3}
#: Name, what is wrong with the tags, how items are ranked.
ROWS = (
    ("clean, Hamming", {}, HAMMING),
    ("10 % wrong, Hamming", {"wrong_tags": 0.1}, HAMMING),
    ("30 % wrong, Hamming", {"wrong_tags": 0.3}, HAMMING),
    ("60 % wrong, Hamming", {"wrong_tags": 0.6}, HAMMING),
    ("clean", {}, DEFAULT),
    ("30 % wrong", {"wrong_tags": 0.3}, DEFAULT),
    ("30 % tagged", {"untagged": 0.7}, DEFAULT),
    ("10 % tagged", {"untagged": 0.9}, DEFAULT),
    ("3 % tagged", {"untagged": 0.97}, DEFAULT),
)


#: What is measured: preset and trainer.
METHODS = {"adaptive": ("adaptive", WOH), "paper": ("paper", WOH), "rpt-woh": ("paper", RPTWOH.of)}


def measured(path, seed, method, rows):
    """(name of a row, (MAP, P@10)) of one split."""
    chunk = read_chunk(path)
    X = np.asarray(chunk.features, np.float32)
    tagged = np.array([len(chunk.tags.of_row(row)) > 0 for row in range(len(chunk))])
    chunk = chunk.rows(np.flatnonzero(tagged & X.any(axis=1)))
    preset, make = METHODS[method]
    config = WOHConfig(bits=64, preset=preset, min_count=1, seed=seed)
    for name, troubles, how in ROWS:
        if rows and name not in rows:
            continue
        how = {"make": make, "last_only": True, **troubles, **(how if method == "adaptive" else HAMMING)}
        last = [r for r in stream(chunk, [config], queries=1000, seed=seed, **how) if r.bits][-1]
        yield name, (last.map, last.p10)
    if method != "adaptive":
        return
    X, labels = np.asarray(chunk.features, np.float32), np.asarray(chunk.labels)
    held_out, rest = split(chunk, 1000, seed)
    asked = X[held_out], X[rest], labels[held_out], labels[rest], seed
    itq = ranker("faiss-itq", X[rest], 8)
    yield "float cosine", quality(lambda Q: cosine(Q, X[rest]), *asked)[:2]
    yield "ITQ, 8 bytes", quality(lambda Q: itq(Q, X[rest]), *asked)[:2]


def main():
    """Print a table a set, means of splits and their standard deviation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--method", default="adaptive", choices=METHODS)
    parser.add_argument("--rows", nargs="*", help="Names of rows; all without.")
    given = parser.parse_args()
    for path in given.sets:
        splits = [dict(measured(path, seed, given.method, given.rows)) for seed in range(given.splits)]
        print(
            f"\n{path.stem}, means of {given.splits} splits, {given.method}\n| | MAP | P@10 |\n|---|---|---|"
        )
        for name in splits[0]:
            values = np.array([split_[name] for split_ in splits])
            pairs = zip(values.mean(axis=0), values.std(axis=0), strict=True)
            print(f"| {name} | {' | '.join(f'{mean:.4f} ± {sd:.3f}' for mean, sd in pairs)} |", flush=True)


if __name__ == "__main__":
    main()
