"""What ordered data cost: indexes of one sorted file, with a first sample and without, and of shuffled items.

    python examples/benchmarks/order_bars.py openclipart.npz corel5k.npz [--splits 3] [--orders 7]

Each set: items with a tag, 1,000 random queries, the rest in 8 chunks, 64 + 64 bits, min_count 1. Prints MAP
and P@10 of the default search, and MAP of the learned bits by Hamming distance; with several orders of each
split also what they differ by.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from twin_bars import ranking

from woh_faiss import WOHIndex, read_chunk
from woh_faiss.evaluation.metrics import mean_average_precision
from woh_faiss.evaluation.quality import quality
from woh_faiss.inputs import open_inputs

CHUNKS = 8


def order_by_class(labels, groups, rng):
    """An order of items: `groups` of classes one after the other; an item counts for its rarest class."""
    count = labels.sum(axis=0)
    rarest = np.where(labels, count, len(labels) + 1).argmin(axis=1)
    return np.argsort((rng.permutation(labels.shape[1]) % groups)[rarest], kind="stable")


def write(file, X, tags):
    """An .npz of features and tags."""
    columns = sorted({tag for names in tags for tag in names})
    place = {tag: i for i, tag in enumerate(columns)}
    indices = [place[tag] for names in tags for tag in names]
    np.savez(
        file,
        features=X,
        tags_data=np.ones(len(indices), np.int8),
        tags_indices=np.array(indices),
        tags_indptr=np.cumsum([0, *map(len, tags)]),
        tags_shape=np.array([len(tags), len(columns)]),
        tag_names=np.array(columns),
    )


def measured(chunk, seed, place):
    """(name of a row, MAP, P@10, MAP of the learned bits) of one split; `place` tells its orders apart."""
    tagged = np.array([len(chunk.tags.of_row(row)) > 0 for row in range(len(chunk))])
    X, labels = np.asarray(chunk.features, np.float32), np.asarray(chunk.labels)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(tagged & X.any(axis=1)))
    held_out, rest = order[:1000], order[1000:]
    if place:
        rest = np.random.default_rng((seed, place, 3)).permutation(rest)
    by_class, halves = (
        rest[order_by_class(labels[rest], groups, np.random.default_rng((seed, 1, place)))]
        for groups in (labels.shape[1], 2)
    )
    orders = {
        "shuffled, no sample": (rest, 0),
        "shuffled": (rest, 2000),
        "one class after another, no sample": (by_class, 0),
        "one class after another": (by_class, 2000),
        "half of the classes first, no sample": (halves, 0),
        "half of the classes first": (halves, 2000),
    }
    for name, (rows, first_sample) in orders.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "stream.npz")
            write(file, X[rows], [chunk.tags.of_row(row) for row in rows])
            inputs = open_inputs([file], chunk_size=-(-len(rest) // CHUNKS))
            with WOHIndex.build(
                Path(folder, "index"), inputs, first_sample=first_sample, min_count=1, seed=seed
            ) as index:
                view = index.store.view
                found = quality(
                    ranking(index, len(rows)), X[held_out], X[rows], labels[held_out], labels[rows], seed
                )
                learned = mean_average_precision(
                    np.ascontiguousarray(index.encode(X[held_out])[:, :8]),
                    np.ascontiguousarray(view.mapped.codes[np.argsort(view.ids), :8]),
                    labels[held_out],
                    labels[rows],
                )
        yield name, (found.map, found.p10, learned)


def table(title, rows):
    """Print one: a cell a measure."""
    print(f"\n{title}\n| | MAP | P@10 | MAP, learned bits |\n|---|---|---|---|")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    """Print two tables a set: means, as shares of the first row too, and the spread within a split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument(
        "--orders", type=int, default=1, help="random orders, and divisions of classes, a split"
    )
    given = parser.parse_args()
    for path in given.sets:
        chunk = read_chunk(path)
        splits = [
            [dict(measured(chunk, seed, place)) for place in range(given.orders)]
            for seed in range(given.splits)
        ]
        found = {name: np.array([[run[name] for run in runs] for runs in splits]) for name in splits[0][0]}
        means = {name: values.mean(axis=(0, 1)) for name, values in found.items()}
        first = next(iter(means.values()))
        shares = {
            name: [f"{value:.4f} ({value / one:.3f})" for value, one in zip(values, first, strict=True)]
            for name, values in means.items()
        }
        table(f"{path.stem}, means of {given.splits} splits, {given.orders} orders each", shares)
        if given.orders > 1:
            spreads = {}
            for name, values in found.items():
                deviation = np.sqrt(values.var(axis=1, ddof=1).mean(axis=0))
                half = np.ptp(values, axis=1).mean(axis=0) / 2
                pairs = zip(deviation, half, strict=True)
                spreads[name] = [f"{one:.4f} {other:.4f}" for one, other in pairs]
            table("standard deviation within a split, half of the range", spreads)


if __name__ == "__main__":
    main()
