"""Encoding against the one product it cannot do without, and its bits against float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import reference
from measuring import figure, in_turn, ratios
from training import data

from woh_faiss import WOH, codes


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    repeat = 5 if quick else 9
    X, Y, Z = data(0)
    hasher = WOH(bits=64, preset="paper", min_count=1).partial_fit(X, Y, Z=Z).hasher_
    xq = data(1, n=1000)[0]
    A = np.asarray(hasher.kernel.A, np.float32)
    one, copy = xq[:1], np.empty_like(A)

    taken = in_turn({"encode": lambda: hasher.encode(xq), "sgemm": lambda: xq @ A.T}, repeat)
    yield figure(
        "1,000 queries: one sgemm / encode",
        ratios(taken["sgemm"], taken["encode"]),
        better="more",
        bar=0.9,
        note="(1000, 4096) x (4096, 1000) in float32; 64 bits",
        seconds=float(np.median(taken["encode"])),
    )
    reading = {
        "sum of the anchors": lambda: A.sum(),
        "sgemv with the anchors": lambda: A @ one[0],
        "copy of the anchors": lambda: np.copyto(copy, A),
    }
    taken = in_turn({"encode": lambda: hasher.encode(one), **reading}, repeat)
    for name in reading:
        yield figure(
            f"1 query: encode / {name}",
            ratios(taken["encode"], taken[name]),
            bar=None if "copy" in name else 1.3,
            note="16 MB read once",
            seconds=float(np.median(taken["encode"])),
        )
    K = np.exp(-reference.distances(xq, A) / (2 * hasher.kernel.width))
    H = (K - hasher.kernel.mean) / hasher.kernel.scale @ hasher.P
    clear = np.abs(H) > 1e-5
    wrong = (codes.unpack(hasher.encode(xq)) != reference.sign(H)) & clear
    yield figure(
        "bits that differ from float64, further than 1e-5 from 0",
        [int(wrong.sum())],
        bar=0,
        clock="count",
        note=f"of {int(clear.sum()):,}",
    )
