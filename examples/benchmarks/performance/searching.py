"""What a search costs beyond Faiss's own scan, and what padding of odd code lengths saves; 10^6 codes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import workload
from measuring import figure, in_turn, ratios

from woh_faiss import WOHIndex, codes

ROWS = 1_000_000


def million(folder: Path, bits: int = 64) -> Path:
    """An index of 10^6 codes that has learned one chunk of 512 features; made once."""
    path = folder / f"million-{bits}.woh"
    if not path.exists():
        first = workload.chunk(0, d=512, n_tags=100)
        workload.built(path, first, bits=bits)
        workload.fill(path, ROWS - len(first))
    return path


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    repeat = 5 if quick else 9
    faiss.omp_set_num_threads(1)
    yield from _wrapped(million(folder), repeat, quick)
    yield from _padded(3 if quick else 7)


def _wrapped(path: Path, repeat: int, quick: bool) -> Iterator[dict[str, Any]]:
    xq = workload.chunk(7, n=500, d=512, n_tags=20).features
    raw = faiss.read_index_binary(str(path / "codes.faiss"))
    with WOHIndex.open(path) as index:
        view = index._store.view
        for n in (100, 1):
            some = xq[:n]
            packed = codes.pad(index.encode(some))
            taken = in_turn(
                {
                    "view": lambda packed=packed: view.search(packed, 10),
                    "same": lambda packed=packed: view.mapped.index.search(packed, 10),
                    "raw": lambda packed=packed: raw.search(packed, 10),
                    "whole": lambda some=some: index.search(some, 10),
                    "apart": lambda some=some: raw.search(codes.pad(index.encode(some)), 10),
                },
                repeat,
            )
            ours, theirs = view.search(packed, 10), raw.search(packed, 10)
            assert np.array_equal(ours[0], theirs[0])  # noqa: S101
            queries = f"{n} quer{'ies' if n > 1 else 'y'}"
            for name, against, bar in (
                ("same", "Faiss on the same memory", 1.05),
                ("raw", "raw Faiss", None),
            ):
                yield figure(
                    f"{queries}: search of packed codes / {against}",
                    ratios(taken["view"], taken[name]),
                    bar=bar,
                    note="10^6 codes of 64 bits, k = 10; the wrapper alone (View.search)"
                    if bar
                    else "read into memory by faiss.read_index_binary: where its pages lie counts for 10 %",
                    seconds=float(np.median(taken[name])),
                )
            yield figure(
                f"{queries}: WOHIndex.search / encode, then raw Faiss",
                ratios(taken["whole"], taken["apart"]),
                bar=1.05,
                note="features of 512 in, ids out",
                seconds=float(np.median(taken["whole"])),
            )
        for clock, now in (("cpu", time.thread_time), ("wall", time.perf_counter)):
            seconds = []
            for query in xq[: 200 if quick else 500]:
                start = now()
                index.search(query[None], 10)
                seconds.append(now() - start)
            yield figure(
                f"single queries: 99th percentile / median, {clock}",
                [float(np.percentile(seconds, 99) / np.median(seconds))],
                bar=10,
                clock=clock,
                note=f"{len(seconds)} queries",
                seconds=float(np.median(seconds)),
            )


def _padded(repeat: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for bits in (8, 16, 48, 96):
        plain = rng.integers(0, 256, size=(ROWS, bits // 8), dtype=np.uint8)
        asked = plain[:10] ^ 1
        padded = codes.pad(plain)
        indexes = {}
        for name, stored in (("plain", plain), ("padded", padded)):
            indexes[name] = faiss.IndexBinaryFlat(8 * stored.shape[1])
            indexes[name].add(stored)
        taken = in_turn(
            {
                "plain": lambda asked=asked, index=indexes["plain"]: index.search(asked, 10),
                "padded": lambda asked=codes.pad(asked), index=indexes["padded"]: index.search(asked, 10),
            },
            repeat,
        )
        same = np.array_equal(
            indexes["plain"].search(asked, 10)[0], indexes["padded"].search(codes.pad(asked), 10)[0]
        )
        yield figure(
            f"{bits} bits: scan unpadded / padded as stored",
            ratios(taken["plain"], taken["padded"]),
            better="more",
            bar=2.5,
            note=f"padded to {8 * padded.shape[1]}; distances {'equal' if same else 'DIFFER'}",
        )
