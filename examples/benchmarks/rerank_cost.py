"""Seconds of a re-ranked search against a plain one: 100 queries, k = 10, a million 64-bit codes.

    python examples/benchmarks/rerank_cost.py [--rows 1000000] [--repeat 15] [--threads 2]

The two run in turn; the last line is the median of the ratios taken pair by pair, and PASS up to 2.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    setting.threads(args.threads)
    import workload

    from woh_faiss import WOHIndex

    with tempfile.TemporaryDirectory() as folder:
        path, first = Path(folder) / "index.woh", workload.chunk(0, d=512)
        workload.built(path, first)
        workload.fill(path, args.rows - len(first))
        seconds: dict[int | None, list[float]] = {None: [], 1000: []}
        with WOHIndex.open(path) as index:
            for number in range(args.repeat + 1):
                for rerank, taken in seconds.items():
                    start = time.perf_counter()
                    index.search(first.features[:100], 10, rerank=rerank)
                    if number:  # the first of each warms up
                        taken.append(time.perf_counter() - start)
    plain, reranked = seconds[None], seconds[1000]
    ratios = [slow / fast for slow, fast in zip(reranked, plain, strict=True)]
    print(
        f"plain {workload.spread(plain)} s, re-ranked {workload.spread(reranked)} s, {args.threads} threads"
    )
    median = sorted(ratios)[len(ratios) // 2]
    print(f"ratio {workload.spread(ratios)}, {'PASS' if median <= 2 else 'ABOVE'} the bar of 2")


if __name__ == "__main__":
    main()
