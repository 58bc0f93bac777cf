"""What a search costs beyond Faiss's own scan, and what padding of odd code lengths saves; 10^6 codes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
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
            views, queries = view.mapped.index, f"{n} quer{'ies' if n > 1 else 'y'}"
            assert np.array_equal(view.search(packed, 10)[0], raw.search(packed, 10)[0])  # noqa: S101
            ours, whole = partial(view.search, packed, 10), partial(index.search, some, 10, by="hamming")
            same, read = partial(views.search, packed, 10), partial(raw.search, packed, 10)

            def apart(some: Any = some) -> Any:
                return raw.search(codes.pad(index.encode(some)), 10)

            pages = "faiss.read_index_binary: where its pages lie in memory counts for 10 %"
            for what, left, right, bar, note in (
                ("search of packed codes / Faiss on the same memory", ours, same, 1.05, "View.search alone"),
                ("search of packed codes / raw Faiss", ours, read, None, pages),
                ("WOHIndex.search / encode, then raw Faiss", whole, apart, 1.05, "512 features in, ids out"),
            ):
                taken = in_turn({"ours": left, "theirs": right}, repeat)
                yield figure(
                    f"{queries}: {what}",
                    ratios(taken["ours"], taken["theirs"]),
                    bar=bar,
                    note=f"10^6 codes of 64 bits, k = 10; {note}",
                    seconds=float(np.median(taken["ours"])),
                )
        for clock, now in (("cpu", time.thread_time), ("wall", time.perf_counter)):
            seconds = []
            for query in xq[: 200 if quick else 500]:
                start = now()
                index.search(query[None], 10, by="hamming")
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
        padded = codes.pad(plain)
        indexes = {}
        for name, stored in (("plain", plain), ("padded", padded)):
            indexes[name] = faiss.IndexBinaryFlat(8 * stored.shape[1])
            indexes[name].add(stored)
        words = faiss.vector_to_array(indexes["padded"].xb).view(np.uint32)
        for n in (100, 1):
            asked, queries = plain[:n] ^ 1, f"{n} quer{'ies' if n > 1 else 'y'}"
            scans = {
                "plain": partial(indexes["plain"].search, asked, 10),
                "padded": partial(indexes["padded"].search, codes.pad(asked), 10),
            }
            taken = in_turn(scans | ({"read": words.max} if n == 1 else {}), repeat)
            same = np.array_equal(scans["plain"]()[0], scans["padded"]()[0])
            yield figure(
                f"{bits} bits, {queries}: scan unpadded / padded as stored",
                ratios(taken["plain"], taken["padded"]),
                better="more",
                bar=2.5,
                note=f"padded to {8 * padded.shape[1]}; distances {'equal' if same else 'DIFFER'}",
            )
        yield figure(
            f"{bits} bits, 1 query: scan padded / reading the padded codes once",
            ratios(taken["padded"], taken["read"]),
            note="NumPy's maximum of as many words",
        )
