"""A later round against the floor of its own products, its memory, and its codes against plain float64."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import reference
import setting
from floor import floor
from measuring import figure, in_turn, ratios
from scipy.sparse import csr_array

from woh_faiss import WOH, WordVectors, codes, read_chunk

#: Share of the floor's speed that is asked for, by bits.
BARS = {16: 0.75, 64: 0.65, 128: 0.60}


def data(seed: int, n: int = 2000, d: int = 4096, c: int = 1386, f: int = 300) -> Any:
    """Features (n, d), tags (n, c) of which few are common, about 5 an item, and word vectors (n, f)."""
    rng = np.random.default_rng(seed)
    X = np.maximum(rng.standard_normal((n, d), dtype=np.float32), 0)
    share = 1 / np.arange(1, c + 1)
    columns = rng.choice(c, 5 * n, p=share / share.sum())
    Y = csr_array((np.ones(5 * n), (np.repeat(np.arange(n), 5), columns)), shape=(n, c))
    Y.sum_duplicates()
    Y.data[:] = 1
    return X, Y, rng.standard_normal((n, f)) / np.sqrt(f)


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    chunks = [data(seed) for seed in range(3)]
    for preset, lengths in (("paper", (16, 64, 128)), ("adaptive", (64,))):
        for bits in lengths:
            yield _against_the_floor(preset, bits, chunks, 3 if quick else 7)
    yield _memory()
    yield _parity()


def _against_the_floor(preset: str, bits: int, chunks: list[Any], repeat: int) -> dict[str, Any]:
    woh = WOH(bits=bits, preset=preset, min_count=1)
    coming = cycle(chunks)

    def learn() -> None:
        X, Y, Z = next(coming)
        woh.partial_fit(X, Y, Z=Z)

    learn()  # the first round: later ones are measured
    taken = in_turn({"round": learn, "floor": floor(chunks[0][1], bits)}, repeat)
    return figure(
        f"{preset} preset, {bits} bits: floor / round",
        ratios(taken["floor"], taken["round"]),
        better="more",
        bar=BARS[bits] if preset == "paper" else None,
        note="2,000 x 4096 features, 1,000 anchors, 1,386 tags; floor of the paper's 7 iterations",
        seconds=float(np.median(taken["round"])),
    )


def _memory() -> dict[str, Any]:
    """The peak that tracemalloc sees in a later round, against what has to be there."""
    tracemalloc.start()
    woh = WOH(bits=64, preset="paper", min_count=1)
    X, Y, Z = data(0)
    woh.partial_fit(X, Y, Z=Z)
    del X, Y, Z
    X, Y, Z = data(1)
    tracemalloc.reset_peak()
    woh.partial_fit(X, Y, Z=Z)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    state = sum(array.nbytes for array in woh.state().values()) + woh.anchors_.nbytes
    needed = X.nbytes + 8 * len(X) * len(woh.anchors_) + state
    return figure(
        "peak memory of a round / (features + φ + state)",
        [peak / needed],
        bar=2.5,
        clock="bytes",
        note=f"{peak / 1e6:.0f} MB of {needed / 1e6:.0f} MB, 64 bits",
    )


def _parity() -> dict[str, Any]:
    """Bits of two rounds on the shipped pictures that differ from the plain reference's."""
    chunks = [read_chunk(path) for path in sorted(setting.DATA.glob("chunk-*.npz"))[:2]]
    vectors = WordVectors.open(setting.DATA / "glove-100d-tags.w2v.txt")
    wrong, total = reference.differing(WOH, codes, chunks, vectors, bits=64)
    return figure(
        "bits that differ from a plain float64 round",
        [wrong],
        bar=0,
        clock="count",
        note=f"of {total:,}, two rounds of the shipped pictures, 64 bits",
    )
