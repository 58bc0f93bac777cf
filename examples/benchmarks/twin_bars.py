"""What the default search of a real index is worth on labelled data, beside Faiss at equal bytes; its bars.

    python examples/benchmarks/twin_bars.py openclipart.npz corel5k.npz debtags-a.npz mirflickr25k.npz

Each set: items with a tag and with features, 1,000 random queries, the rest built as an index from 8 chunks,
min_count 1, other settings as they are by default; means of splits 0 to 2. Faiss's quantisers are trained on
the whole database; the queries of ITQ, PQ and RaBitQ stay real-valued.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from woh_faiss import WOHIndex, WordVectors, read_chunk
from woh_faiss.evaluation.baselines.faiss_yardsticks import ranker
from woh_faiss.evaluation.metrics import cosine
from woh_faiss.evaluation.quality import Quality, quality

TWIN, HALF, LEARNED, FLOAT = "64 + 64 bits", "32 + 32 bits", "64 learned bits, Hamming", "float cosine"
#: Name, learned bits, instance bits, what a search is asked.
INDEXES = (
    (TWIN, 64, 64, {}),
    (HALF, 32, 32, {}),
    (LEARNED, 64, 0, {"by": "hamming"}),
    ("128 instance bits", 0, 128, {}),
)
#: Of 16 bytes an item.
QUANTISERS = {"ITQ": "faiss-itq", "PQ": "faiss-pq", "RaBitQ": "faiss-rabitq", "LSH": "faiss-lsh"}
BYTES = 16

#: The least that is wanted: set, row, values by measure.
BARS = (
    ("openclipart", TWIN,
     {"map": 0.645, "p10": 0.695, "self1": 0.965, "self10": 0.996, "float_recall10": 0.41}),
    ("corel5k", TWIN, {"map": 0.398, "p10": 0.463, "self1": 0.99, "self10": 0.998, "float_recall10": 0.31}),
    ("debtags-a", TWIN, {"map": 0.51, "p10": 0.665, "self1": 0.98, "self10": 0.995, "float_recall10": 0.26}),
    ("openclipart", HALF, {"map": 0.605, "self10": 0.99}),
    ("corel5k", HALF, {"map": 0.36, "self10": 0.99}),
    ("debtags-a", HALF, {"self10": 0.99}),
)  # fmt: skip
#: The same, where another row is the bar.
ABOVE = (
    *((name, HALF, FLOAT, ("p10",)) for name in ("openclipart", "corel5k", "debtags-a")),
    ("mirflickr25k", TWIN, LEARNED, ("map", "p10")),
)


def ranking(index, rows, **how):
    """From features to the rank of every item, as `index.search` answers."""

    def of(Q):
        _, I = index.search(Q, rows, **how)
        D = np.empty(I.shape, np.float32)
        np.put_along_axis(D, I, np.arange(rows, dtype=np.float32)[None], axis=1)
        return D

    return of


def measured(path, seed, word_vectors):
    """(name of a row, Quality) of one split."""
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
    for name, bits, instance_bits, how in INDEXES:
        made = {"bits": bits, "instance_bits": instance_bits, "seed": seed}
        made |= {"min_count": 1, "word_vectors": word_vectors} if bits else {}
        with (
            tempfile.TemporaryDirectory() as folder,
            WOHIndex.build(Path(folder, "index"), parts, **made) as index,
        ):
            yield name, quality(ranking(index, len(rest), **how), *asked)
    for name, maker in QUANTISERS.items():
        distance = ranker(maker, X[rest], BYTES)
        yield f"{name}, {BYTES} bytes", quality(lambda Q, of=distance: of(Q, X[rest]), *asked)
    yield FLOAT, quality(lambda Q: cosine(Q, X[rest]), *asked)


def bars(found):
    """(what, least, reached) of each bar of the sets in `found`, {set: {row: Quality}}."""
    for data, row, least in BARS:
        for measure, value in least.items() if data in found else ():
            yield f"{data}, {row}: {measure}", value, getattr(found[data][row], measure)
    for data, row, other, measures in ABOVE:
        for measure in measures if data in found else ():
            what = f"{data}, {row}: {measure} of {other}"
            yield what, getattr(found[data][other], measure), getattr(found[data][row], measure)


def main():
    """Print a table a set, means and the spread of splits, then the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--word-vectors", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    given = parser.parse_args()
    vectors = given.word_vectors and WordVectors.open(given.word_vectors)
    found = {}
    for path in given.sets:
        splits = [dict(measured(path, seed, vectors)) for seed in range(given.splits)]
        print(f"\n{path.stem}, means of {given.splits} splits ± their standard deviation")
        print(f"| | {' | '.join(Quality._fields)} |\n|---|{'---|' * len(Quality._fields)}")
        found[path.stem] = {}
        for name in splits[0]:
            values = np.array([split[name] for split in splits])
            found[path.stem][name] = Quality(*values.mean(axis=0))
            pairs = zip(values.mean(axis=0), values.std(axis=0), strict=True)
            print(f"| {name} | {' | '.join(f'{m:.4f} ± {sd:.3f}' for m, sd in pairs)} |", flush=True)
    print("\n| bar | at least | reached | |\n|---|---|---|---|")
    for what, least, reached in bars(found):
        print(f"| {what} | {least:.4f} | {reached:.4f} | {'' if reached >= least else 'MISSED'} |")


if __name__ == "__main__":
    main()
