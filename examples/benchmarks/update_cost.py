"""Seconds of one update against the size of the index: 2,000 items, 4096 features, 1,386 tags, 64 bits.

    python examples/benchmarks/update_cost.py [--rows 10000000] [--repeat 7] [--threads 2]

Two indexes that learned the same first chunk, one of them filled with codes, take the same updates in turn.
The last line is the median of the ratios taken pair by pair, and PASS up to 1.1.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    setting.threads(args.threads)
    import numpy as np
    import workload

    from woh_faiss import WOHIndex

    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in ("small.woh", "large.woh")}
        for path in paths.values():
            workload.built(path, workload.chunk(0))
        workload.fill(paths["large.woh"], args.rows)
        indexes = {name: WOHIndex.open(path) for name, path in paths.items()}
        seconds: dict[str, list[float]] = {name: [] for name in paths}
        learning: dict[str, list[float]] = {name: [] for name in paths}
        for number in range(args.repeat + 1):
            chunk = workload.chunk(number + 1)
            for name, index in indexes.items():
                start = time.perf_counter()
                done = index.update(chunk)
                taken = time.perf_counter() - start
                if number:  # the first of each warms up
                    seconds[name].append(taken)
                    learning[name].append(done.seconds)
        for name, index in indexes.items():
            record = {"index": name, "ntotal": index.ntotal, "threads": args.threads}
            record["update_seconds"] = workload.spread(seconds[name])
            record["of_which_learning"] = workload.spread(learning[name])
            print(json.dumps(record))
            index.close()
    ratios = [large / small for small, large in zip(*seconds.values(), strict=True)]
    ratio = float(np.median(ratios))
    print(f"ratio {workload.spread(ratios)}, {'PASS' if ratio <= 1.1 else 'ABOVE'} the bar of 1.1")


if __name__ == "__main__":
    main()
