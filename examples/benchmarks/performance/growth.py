"""How the time of a round grows: with items, bits and tags; the power of each, and the points for a plot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import figure, in_turn, slope
from training import data

from woh_faiss import WOH

ITEMS = (1000, 2000, 4000, 8000, 16_000)
BITS = (16, 32, 64, 128)
TAGS = (100, 1000, 10_000, 100_000)


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    repeat = 2 if quick else 3
    # Narrow features: the time of φ is that of one product, and known.
    items = (*ITEMS, 100_000) if os.environ.get("WOH_BENCH_LARGE") else ITEMS
    lines: dict[str, tuple[Any, ...]] = {
        "items": tuple((x, {"n": x}, 64) for x in items),
        "bits": tuple((x, {}, x) for x in BITS),
        "tags": tuple((x, {"c": x}, 64) for x in TAGS),
    }
    for name, points in lines.items():
        rounds = {
            str(x): _later(shape, bits)
            for x, shape, bits in (points[:: len(points) - 1] if quick else points)
        }
        taken = in_turn(rounds, repeat)
        x = [float(value) for value in taken]
        powers = [slope(x, list(column)) for column in zip(*taken.values(), strict=True)]
        yield figure(
            f"growth with {name}: time ~ {name} ^",
            powers,
            note=f"{x[0]:,.0f} to {x[-1]:,.0f}; else 2,000 items of 512 features, 64 bits, 1,386 tags",
            points={"x": x, "seconds": [float(np.median(column)) for column in taken.values()]},
        )


def _later(shape: dict[str, int], bits: int) -> Callable[[], object]:
    """A later round of the paper's preset; the state goes on from call to call."""
    X, Y, Z = data(0, d=512, **shape)
    woh = WOH(bits=bits, preset="paper", min_count=1)
    woh.partial_fit(X[:2000], Y[:2000], Z=Z[:2000])
    return lambda: woh.partial_fit(X, Y, Z=Z)
