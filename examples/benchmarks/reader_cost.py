"""What a reader pays: refreshing at 10,000,000 codes against 10,000, and searching where a tenth was removed.

    python examples/benchmarks/reader_cost.py [--rows 10000000] [--repeat 15]

Prints, each a median of ratios taken in turn: a refresh after an addition of 100 items, large index against
small (PASS up to 1.2); the same against loading the codes file anew (PASS up to 0.05); a search of 100
queries, k = 10, among a million codes with a tenth removed against none (PASS up to 1.5), in a batch and one
by one.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--searched", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    setting.threads(args.threads)
    import faiss
    import numpy as np
    import workload

    from woh_faiss import WOHIndex

    first = workload.chunk(0, d=64, n_tags=50)

    def timed(work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def index_of(path: Path, rows: int) -> Path:
        workload.built(path, first)
        workload.fill(path, rows - len(first))
        return path

    with tempfile.TemporaryDirectory() as folder:
        small, large = index_of(Path(folder) / "small", 10_000), index_of(Path(folder) / "large", args.rows)
        by_size, by_load = [], []
        readers = {path: WOHIndex.open(path) for path in (small, large)}
        writers = {path: WOHIndex.open(path) for path in (small, large)}
        for _ in range(args.repeat + 1):
            taken = {}
            for path in (small, large):
                writers[path].add(first.features[:100])
                taken[path] = timed(readers[path].refresh)
            load = timed(lambda: faiss.read_index_binary(str(large / "codes.faiss")))
            by_size.append(taken[large] / taken[small])
            by_load.append(taken[large] / load)
        print("refresh, large against small", workload.spread(by_size[1:]), _passed(by_size, 1.2))
        print("refresh against loading anew", workload.spread(by_load[1:]), _passed(by_load, 0.05))
        for index in (*readers.values(), *writers.values()):
            index.close()

        whole = index_of(Path(folder) / "whole", args.searched)
        some = index_of(Path(folder) / "some", args.searched)
        xq = first.features[:100]
        gone = np.random.default_rng(0).choice(args.searched, args.searched // 10, replace=False)
        with WOHIndex.open(whole) as before, WOHIndex.open(some) as after:
            after.remove(gone)
            batch, single = [], []
            for _ in range(args.repeat + 1):
                batch.append(timed(lambda: after.search(xq, 10)) / timed(lambda: before.search(xq, 10)))
                one = [timed(lambda i=i: [i.search(x[None], 10) for x in xq]) for i in (after, before)]
                single.append(one[0] / one[1])
            print("search, a tenth removed, 100 at once", workload.spread(batch[1:]), _passed(batch, 1.5))
            print("search, a tenth removed, one by one", workload.spread(single[1:]), _passed(single, 1.5))


def _passed(ratios: list[float], most: float) -> str:
    return "PASS" if sorted(ratios[1:])[len(ratios[1:]) // 2] <= most else "FAIL"


if __name__ == "__main__":
    main()
