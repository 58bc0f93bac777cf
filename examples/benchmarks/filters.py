"""What a filter costs: searches of 10^6 items of which .1, 1, 10 and 50 % may answer, beside one of all.

Codes are random, 64 + 64 bits; three columns of metadata, 5 tags an item of 1,000 words. "first" is a search
with a filter that was not asked before in this state, "again" one that was. Processor time of one thread,
the least of several; the catalogue is in the system's memory.

    python examples/benchmarks/filters.py [--items 1000000]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import setting

REPEATS, BATCH, K = 4, 100_000, 10
SHARES = (0.001, 0.01, 0.1, 0.5)
WORDS = [f"word{i:03}" for i in range(1000)]


def made(path: Path, n: int) -> Any:
    """An index of n items, all but the first 2,000 with random codes."""
    import numpy as np

    from woh_faiss import WOHIndex
    from woh_faiss.inputs.chunk import Chunk
    from woh_faiss.store import NewRound

    rng = np.random.default_rng(0)
    index = WOHIndex.create(path, anchors=100, vector_size=16)
    X = rng.normal(size=(2000, 32)).astype(np.float32)
    index.update(X, [[WORDS[i] for i in rng.integers(20, size=2)] for _ in X])
    for start in range(len(X), n, BATCH):
        m = min(BATCH, n - start)
        codes = rng.integers(256, size=(m, 16), dtype=np.uint8)
        words = rng.integers(1000, size=(m, 5)).tolist()
        metadata = {
            "price": rng.random(m),
            "year": rng.integers(1990, 2030, m),
            "name": [f"camera {i}" for i in rng.integers(500, size=m)],
        }
        with index.store.writing() as writing:
            writing.commit(
                NewRound(
                    "encoded",
                    codes,
                    ids=np.arange(start, start + m),
                    keys=[f"photos/{i:07}.jpg" for i in range(start, start + m)],
                    tags=[[WORDS[i] for i in own] for own in words],
                    metadata=Chunk.of(np.zeros((m, 1), np.int8), metadata=metadata).metadata,
                )
            )
    return index


def ms(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Processor time in milliseconds."""
    times: list[float] = []
    for _ in range(REPEATS):
        before()
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1e3 * min(times)


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    n = parser.parse_args().items
    setting.threads(1)
    import numpy as np

    with tempfile.TemporaryDirectory() as folder, made(Path(folder, "i"), n) as index:
        xq = np.random.default_rng(1).normal(size=(1, 32)).astype(np.float32)
        forget = index.store.view.filters.clear
        for _ in range(3):  # codes are packed, and whatever else is made once
            index.search(xq, K)
        plain = ms(lambda: index.search(xq, K))
        print(f"{n:,} items, catalog.db {index.store.sizes()['catalog.db'] / 1e6:,.0f} MB")
        print(f"{'filter':44} {'share':>7} {'first':>9} {'again':>9} {'again, 100 queries':>19}")
        many = np.tile(xq, (100, 1)) + np.random.default_rng(2).normal(size=(100, 32)).astype(np.float32)
        each = ms(lambda: index.search(many, K)) / 100
        print(f"{'none':44} {1:7.1%} {'':>9} {plain:6.2f} ms {each:16.2f} ms")
        wheres = [f"price < {share}" for share in SHARES]
        wheres += [f"price < {share * 2} and year >= 2010" for share in SHARES]
        wheres += [
            "price < 0.01 and 'word007' in tags",
            "price < 0.5 and 'word007' in tags",
            "'word007' in tags",
            "name like 'camera 7%'",
        ]
        wheres += ["key startswith 'photos/0000'", "price < 0.001 or 'word007' in tags", "price is null"]
        for where in wheres:
            share = len(index.ids(where)) / len(index)
            first = ms(lambda where=where: index.search(xq, K, where=where), forget)
            again = ms(lambda where=where: index.search(xq, K, where=where))
            hundred = ms(lambda where=where: index.search(many, K, where=where)) / 100
            print(f"{where:44} {share:7.1%} {first:6.1f} ms {again:6.2f} ms {hundred:16.2f} ms", flush=True)
        for metadata in (None, {"price": np.ones(2000), "year": np.arange(2000), "name": ["x"] * 2000}):
            X = np.random.default_rng(3).normal(size=(2000, 32)).astype(np.float32)
            took = ms(lambda m=metadata, X=X: index.add(X, metadata=m))
            print(f"add 2,000 items {'with' if metadata else 'without'} metadata: {took:.0f} ms")


if __name__ == "__main__":
    main()
