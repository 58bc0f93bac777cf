"""Measure MAP on the shipped pictures and draw it against the bytes of a code: the README's table and figure.

python examples/plot_map_vs_bytes.py docs/map-vs-bytes.png docs/results/map-vs-bytes.csv
"""

from __future__ import annotations

import csv
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
#: method, bits and split of one measured MAP; bits are None for float search.
Cell = tuple[str, int | None, int]


def chance(chunk: Chunk, seed: int) -> float:
    """MAP of ranking the split's database in a random order."""
    held_out, rest = split(chunk, QUERIES, seed)
    rng, X, L = np.random.default_rng(seed), chunk.features, np.asarray(chunk.labels)
    return mean_average_precision(
        X[held_out], X[rest], L[held_out], L[rest], distance=lambda Q, D: rng.random((len(Q), len(D)))
    )


def pictures() -> Chunk:
    """All shipped pictures as one chunk."""
    return concatenate(
        [read_chunk(path) for path in [*sorted(DATA.glob("chunk-*.npz")), DATA / "queries.npz"]]
    )


def measure(chunk: Chunk, bits: tuple[int, ...], seed: int) -> dict[Cell, float]:
    """MAP after the last of three rounds, of both presets, of float search and of a random order."""
    vectors = WordVectors.open(DATA / "glove-100d-tags.w2v.txt")
    configs = [WOHConfig(bits=r, preset=preset) for preset in ("adaptive", "paper") for r in bits]
    results = stream(chunk, configs, chunks=3, queries=QUERIES, seed=seed, word_vectors=vectors)
    last = {(r.preset or r.method, r.bits, seed): r.map for r in results if r.round == 3}
    return last | {("random order", None, seed): chance(chunk, seed)}


def means(measured: dict[Cell, float]) -> dict[tuple[str, int | None], float]:
    """The mean over all splits."""
    values: dict[tuple[str, int | None], list[float]] = {}
    for (method, bits, _), value in measured.items():
        values.setdefault((method, bits), []).append(value)
    return {key: sum(each) / len(each) for key, each in values.items()}


def read(path: Path) -> dict[Cell, float]:
    """What `main` wrote."""
    with path.open(newline="") as file:
        return {
            (row["method"], int(row["bits"]) if row["bits"] else None, int(row["seed"])): float(row["map"])
            for row in csv.DictReader(file)
        }


def table(path: Path) -> str:
    """The README's table."""
    mean = means(read(path))

    def cell(method: str, bits: int | None = None) -> str:
        return f"{mean[method, bits]:.3f}".removeprefix("0")

    shown = (16, 64, 128)
    adaptive, paper = ([cell(preset, bits) for bits in shown] for preset in ("adaptive", "paper"))
    others = [cell("float-l2"), cell("float-cosine"), cell("random order")]
    rows = [
        [
            "MAP, mean of 3 splits",
            *(f"{bits} bits" for bits in shown),
            "float L2",
            "float cosine",
            "random order",
        ],
        ["---"] * 7,
        ["`adaptive`, the default preset", *adaptive, *others],
        ["`paper`, the published constants", *paper, "", "", ""],
    ]
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |").replace("|  |", "| |") for row in rows)


def main() -> None:
    chunk, measured = pictures(), {}
    for seed in SEEDS:
        measured |= measure(chunk, BITS, seed)
    mean = means(measured)
    for (method, bits), value in mean.items():
        print(f"{method} {bits or ''} MAP {value:.3f}")
    with Path(sys.argv[2] if len(sys.argv) > 2 else "map-vs-bytes.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "bits", "seed", "map"])
        writer.writerows([*cell, f"{value:.4f}"] for cell, value in measured.items())

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [bits / 8 for bits in BITS],
        [mean["adaptive", bits] for bits in BITS],
        "o-",
        label="codes, 8 to 128 bits",
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
