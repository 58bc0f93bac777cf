"""Mean average precision on the shipped pictures, beside float search and Faiss's codes at the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import setting
from measuring import figure

from woh_faiss import WordVectors, read_chunk
from woh_faiss.evaluation.benchmark import Setting, cells, measure
from woh_faiss.inputs.chunk import concatenate

METHODS = ("woh", "woh-paper", "faiss-lsh", "faiss-pq", "faiss-rabitq", "float-l2", "float-cosine")


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    files = [*sorted(setting.DATA.glob("chunk-*.npz")), setting.DATA / "queries.npz"]
    chunk = concatenate([read_chunk(path) for path in files])
    vectors = WordVectors.open(setting.DATA / "glove-100d-tags.w2v.txt")
    rows = Setting(chunks=4, queries=500)
    maps: dict[tuple[str, int | None], list[float]] = {}
    sizes = {}
    for cell in cells(METHODS[:1] if quick else METHODS, [64, 128], range(1 if quick else 3)):
        done = measure(chunk, cell, rows, vectors)
        maps.setdefault((cell.method, cell.bits), []).append(done["rounds"][-1]["map"])
        sizes[cell.method, cell.bits] = done["bytes"]
    for (method, bits), values in maps.items():
        yield figure(
            f"MAP of {method}" + (f", {bits} bits" if bits else ""),
            values,
            better="more" if method.startswith("woh") else "",
            clock="count",
            note=f"{sizes[method, bits]:,} bytes an image; shipped pictures, split {len(values)} times",
            bytes=sizes[method, bits],
        )
