"""An index that lives long: 10,000 times 100 items added and removed, then 500 rounds learned.

    python examples/benchmarks/long_life.py [--cycles 10000] [--compact 100] [--rounds 500] [--own-ids]

Prints a line a tenth of the way: resident memory, bytes of the files, seconds of a cycle and of a compaction;
then seconds to open the index and to update it. Items have 16 features, codes 64 bits. With --own-ids
the catalogue grows by a digest of each id.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import setting

FILES = ("catalog.db", "codes.faiss", "ids.i64")
WORDS = ["sea", "beach", "hill", "snow", "city", "night"]


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--compact", type=int, default=100, help="cycles from one compaction to the next")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--own-ids", action="store_true", help="ids at random, as a user gives them")
    args = parser.parse_args()
    setting.threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for record in [
            *_coming_and_going(Path(folder) / "a.woh", args.cycles, args.compact, args.own_ids),
            *_learning(Path(folder) / "b.woh", args.rounds),
        ]:
            print(json.dumps(record), flush=True)


def _tagged(rng: Any, n: int) -> tuple[Any, list[str]]:
    import numpy as np

    topic = rng.integers(6, size=n)
    return np.eye(6, 16)[topic] * 3 + rng.normal(size=(n, 16)), [WORDS[t] for t in topic]


def _catalogue(index: Any) -> int:
    return int((index.path / "catalog.db").stat().st_size)


def _coming_and_going(path: Path, cycles: int, between: int, own_ids: bool) -> Iterator[dict[str, object]]:
    """Items that stay and others that come and go; a record a tenth of the cycles."""
    import numpy as np
    import psutil

    from woh_faiss import WOHIndex

    rng, process = np.random.default_rng(0), psutil.Process()
    with WOHIndex.create(path, bits=64, anchors=100) as index:
        index.update(*_tagged(rng, 2000))
        index.remove([0])
        index.compact()
        empty = _catalogue(index)
        spent, compacting = 0.0, 0.0
        for cycle in range(1, cycles + 1):
            next_ = range(2000 + 100 * (cycle - 1), 2000 + 100 * cycle)
            ids = rng.integers(2**62, size=100) if own_ids else None
            X, _ = _tagged(rng, 100)
            start = time.perf_counter()
            index.add(X, ids=ids)
            index.remove(next_ if ids is None else ids)
            spent += time.perf_counter() - start
            if cycle % between == 0:
                start = time.perf_counter()
                index.compact()
                compacting = time.perf_counter() - start
            if cycle % max(1, cycles // 10) == 0:
                yield {
                    "cycles": cycle,
                    "resident_MB": round(process.memory_info().rss / 1e6, 1),
                    "bytes": {name: (path / name).stat().st_size for name in FILES},
                    "catalogue_bytes_a_round": round((_catalogue(index) - empty) / (2 * cycle)),
                    "seconds_a_cycle": round(spent / max(1, cycles // 10), 5),
                    "seconds_a_compaction": round(compacting, 4),
                }
                spent = 0.0


def _learning(path: Path, rounds: int) -> Iterator[dict[str, object]]:
    """Rounds of 100 items; a record a tenth of them."""
    import numpy as np

    from woh_faiss import WOHIndex

    rng, step = np.random.default_rng(1), max(1, rounds // 10)
    index = WOHIndex.create(path, bits=64, anchors=100)
    index.update(*_tagged(rng, 2000))
    seconds = []
    for number in range(1, rounds + 1):
        chunk = _tagged(rng, 100)
        start = time.perf_counter()
        index.update(*chunk)
        seconds.append(time.perf_counter() - start)
        if number % step == 0:
            opening = []
            for _ in range(20):
                start = time.perf_counter()
                with WOHIndex.open(path) as other:
                    other.search(chunk[0][:1], 10)
                opening.append(time.perf_counter() - start)
            yield {
                "rounds": number,
                "ntotal": index.ntotal,
                "seconds_an_update": round(float(np.median(seconds[-step:])), 5),
                "seconds_to_open_and_search": round(float(np.median(opening)), 5),
            }
    index.close()


if __name__ == "__main__":
    main()
