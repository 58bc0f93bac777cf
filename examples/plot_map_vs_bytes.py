"""Draw MAP against the bytes of a code on the shipped pictures: the README's figure.

python examples/plot_map_vs_bytes.py docs/map-vs-bytes.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from woh_faiss import WOHConfig, WordVectors, read_chunk
from woh_faiss.evaluation.metrics import mean_average_precision
from woh_faiss.evaluation.streaming import split, stream
from woh_faiss.inputs.chunk import Chunk, concatenate

DATA = Path(__file__).parent / "data"
BITS = (8, 16, 32, 64, 96, 128)
SEEDS = (0, 1, 2)
QUERIES = 400


def chance(chunk: Chunk, seed: int) -> float:
    """MAP of ranking the split's database in a random order."""
    held_out, rest = split(chunk, QUERIES, seed)
    rng, X, L = np.random.default_rng(seed), chunk.features, np.asarray(chunk.labels)
    return mean_average_precision(
        X[held_out], X[rest], L[held_out], L[rest], distance=lambda Q, D: rng.random((len(Q), len(D)))
    )


def main() -> None:
    chunk = concatenate(
        [read_chunk(path) for path in [*sorted(DATA.glob("chunk-*.npz")), DATA / "queries.npz"]]
    )
    vectors = WordVectors.open(DATA / "glove-100d-tags.w2v.txt")
    configs = [WOHConfig(bits=bits) for bits in BITS]
    last: dict[tuple[str, int | None], list[float]] = {}
    for seed in SEEDS:
        results = stream(chunk, configs, chunks=3, queries=QUERIES, seed=seed, word_vectors=vectors)
        for result in results:
            if result.round == 3:
                last.setdefault((result.method, result.bits), []).append(result.map)
        last.setdefault(("random order", None), []).append(chance(chunk, seed))
    mean = {key: sum(values) / len(values) for key, values in last.items()}
    for (method, bits), value in mean.items():
        print(f"{method} {bits or ''} MAP {value:.3f}")

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [bits / 8 for bits in BITS], [mean["woh", bits] for bits in BITS], "o-", label="codes, 8 to 128 bits"
    )
    feature_bytes = 2 * chunk.features.shape[1]  # float16, as shipped
    for method, mark in (("float-l2", "s"), ("float-cosine", "D")):
        axes.plot(
            [feature_bytes], [mean[method, None]], mark, label=f"{method.replace('-', ' ')}, uncompressed"
        )
        axes.axhline(mean[method, None], color=axes.lines[-1].get_color(), linestyle=":", linewidth=1)
    axes.axhline(mean["random order", None], color="0.4", linestyle="--", linewidth=1, label="random order")
    axes.set_xscale("log", base=2)
    ticks = [1, 2, 4, 8, 16, 64, feature_bytes]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("bytes of a code, or of float16 features")
    axes.set_ylabel("mean average precision")
    axes.set_ylim(bottom=0)
    axes.set_title(
        f"{len(chunk):,} clip-art pictures, {QUERIES} queries, mean of {len(SEEDS)} splits", fontsize=10
    )
    axes.legend(loc="best", fontsize=9)
    axes.grid(alpha=0.3)
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "map-vs-bytes.png")


if __name__ == "__main__":
    main()
