"""What people would use instead, on the same codes or at the same bytes: time of a query, recall, bytes.

Slow engines get 100,000 rows, and ours is then measured on as many: the ratio is a row's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import workload
from engines import ENGINES
from measuring import figure, in_turn, ratios

from woh_faiss import WOHIndex
from woh_faiss.evaluation.metrics import hamming

WIDTH, FLOATS, K = 1280, 100_000, 10


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    faiss.omp_set_num_threads(1)
    repeat = 3 if quick else 7
    for rows in (1_000_000, 100_000):
        path = folder / f"rivals-{rows}.woh"
        first = workload.chunk(0, d=512, n_tags=100)
        workload.built(path, first)
        workload.fill(path, rows - len(first))
        with WOHIndex.open(path) as index:
            view = index._store.view
            x = np.array(view.mapped.codes)
            for name, engine, wanted in ENGINES:
                if wanted == rows and not (quick and rows < 10**6):
                    yield _engine(name, engine, x, view, folder, repeat)
            if rows == FLOATS and not quick:
                yield from _floats(view, x, repeat)


def _engine(name: str, engine: Any, x: np.ndarray, view: Any, folder: Path, repeat: int) -> dict[str, Any]:
    asked = np.random.default_rng(1).integers(0, 256, size=(5, x.shape[1]), dtype=np.uint8)
    what = f"{name} / woh-faiss, one query"
    try:
        with engine(x, folder) as (search, clock, size):
            best = np.sort(hamming(asked, x), axis=1)[:, :K]
            recall = _recall(np.array([search(code, K) for code in asked]), best)
            both = {
                "theirs": lambda: [search(code, K) for code in asked],
                "ours": lambda: [view.search(code[None], K) for code in asked],
            }
            taken = in_turn(both, repeat, clock)
    except ImportError as error:
        return figure(what, [float("nan")], better="", note=f"skipped: {error.name} is not installed")
    return figure(
        what,
        ratios(taken["theirs"], taken["ours"]),
        better="",
        note=f"{len(x):,} codes of 64 bits; recall@10 {recall:.3f}; {size / len(x):.0f} bytes an image",
        seconds=float(np.median(taken["theirs"])) / len(asked),
        recall=recall,
        bytes=size / len(x),
    )


def _recall(found: np.ndarray, best: np.ndarray) -> float:
    """Share of the answers at no more than the distance of the true K-th: whoever is right about ties."""
    return float((found <= best[:, -1:]).mean())


def _floats(view: Any, x: np.ndarray, repeat: int) -> Iterator[dict[str, Any]]:
    """Float search, and Faiss's own compression at 16 bytes, of as many vectors of 1280 floats."""
    rng = np.random.default_rng(2)
    # Like features of pictures: most of what differs lies in few directions.
    directions = (
        rng.standard_normal((64, WIDTH), dtype=np.float32) / np.arange(1, 65, dtype=np.float32)[:, None]
    )

    def drawn(n: int) -> np.ndarray:
        noise = rng.standard_normal((n, WIDTH), dtype=np.float32) / 20
        return rng.standard_normal((n, 64), dtype=np.float32) @ directions + noise

    X, xq = drawn(FLOATS), drawn(100)
    flat = faiss.IndexFlatL2(WIDTH)
    indexes: dict[str, Any] = {"Faiss Flat L2, 5,120 bytes": flat}
    indexes["Faiss PQ, 16 bytes"] = pq = faiss.IndexPQ(WIDTH, 16, 8)
    pq.pq.cp.niter = 8
    turned = faiss.PCAMatrix(WIDTH, 64, 0, True)
    rabitq = faiss.IndexPreTransform(turned, faiss.IndexRaBitQ(64, faiss.METRIC_L2))
    indexes["Faiss RaBitQ, 16 bytes"] = rabitq
    for index in indexes.values():
        index.train(X[:10_000])
        index.add(X)
    best = flat.search(xq, K)[1]
    asked = x[:100]
    for name, index in indexes.items():
        both = {"theirs": lambda index=index: index.search(xq, K), "ours": lambda: view.search(asked, K)}
        taken = in_turn(both, repeat)
        found = index.search(xq, K)[1]
        recall = np.mean([len(np.intersect1d(*pair)) / K for pair in zip(found, best, strict=True)])
        yield figure(
            f"{name} / woh-faiss, 100 queries",
            ratios(taken["theirs"], taken["ours"]),
            better="",
            note=f"{FLOATS:,} made-up rows; recall@10 of float L2 {recall:.3f}",
            seconds=float(np.median(taken["theirs"])) / len(xq),
            recall=float(recall),
        )
