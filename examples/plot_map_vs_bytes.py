"""Draw MAP against bytes an item on the shipped pictures: the README's figure.

python examples/plot_map_vs_bytes.py docs/map-vs-bytes.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from woh_faiss import WOHConfig, WordVectors, read_chunk
from woh_faiss.chunks import joined
from woh_faiss.protocol import stream

DATA = Path(__file__).parent / "data"
BITS = (8, 16, 32, 64, 96, 128)
SEEDS = (0, 1, 2)


def main() -> None:
    chunk = joined([read_chunk(path) for path in [*sorted(DATA.glob("chunk-*.npz")), DATA / "queries.npz"]])
    vectors = WordVectors.open(DATA / "glove-100d-tags.w2v.txt")
    configs = [WOHConfig(bits=bits) for bits in BITS]
    last: dict[tuple[str, int | None], list[float]] = {}
    for seed in SEEDS:
        results = stream(chunk, configs, chunks=3, queries=400, seed=seed, word_vectors=vectors)
        for result in results:
            if result.round == 3:
                last.setdefault((result.method, result.bits), []).append(result.map)
    mean = {key: sum(values) / len(values) for key, values in last.items()}
    for (method, bits), value in mean.items():
        print(f"{method} {bits or ''} MAP {value:.3f}")

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.plot([bits / 8 for bits in BITS], [mean["woh", bits] for bits in BITS], "o-", label="WOH codes")
    bytes_an_item = 2 * chunk.features.shape[1]  # float16, as shipped
    for method, mark in (("float-l2", "s"), ("float-cosine", "D")):
        axes.plot(
            [bytes_an_item], [mean[method, None]], mark, label=f"{method.replace('-', ' ')}, uncompressed"
        )
        axes.axhline(mean[method, None], color=axes.lines[-1].get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = [1, 2, 4, 8, 16, 64, bytes_an_item]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("bytes an item")
    axes.set_ylabel("mean average precision")
    axes.set_title(f"{len(chunk):,} clip-art pictures, 400 queries, mean of {len(SEEDS)} splits", fontsize=10)
    axes.legend(loc="best", fontsize=9)
    axes.grid(alpha=0.3)
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "map-vs-bytes.png")


if __name__ == "__main__":
    main()
