"""Latency of queries while a writer commits, against idle: 2 processes of 2 threads each read.

    python examples/benchmarks/serving.py [--rows 100000] [--updates 200] [--seconds 60]

Each thread asks one query every 20 ms and follows the writer. Prints the 50th and 99th percentile of a query,
idle and while the updates are spread over the seconds, their ratio, and PASS up to 2 for the 99th.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import setting

PAUSE = 0.02


def serve(path: str, out: str) -> None:
    """A reader: two threads, until stdin ends; at each line, how many answers there were so far."""
    import numpy as np
    import workload

    from woh_faiss import WOHIndex

    stop, seconds = threading.Event(), []
    xq = workload.chunk(7, n=100, d=512, n_tags=20).features
    with WOHIndex.open(path, auto_refresh=0.05) as index:

        def ask() -> None:
            number = 0
            while not stop.wait(PAUSE):
                number = (number + 1) % len(xq)
                start = time.perf_counter()
                index.search(xq[number : number + 1], 10)
                seconds.append(time.perf_counter() - start)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while sys.stdin.readline():
            print(len(seconds), flush=True)
        stop.set()
        for thread in threads:
            thread.join()
    np.save(out, seconds)


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--items", type=int, default=50, help="Of an update.")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    setting.threads(1)
    if args.serve:
        serve(*args.serve)
        return
    import numpy as np
    import workload

    from woh_faiss import WOHIndex

    with tempfile.TemporaryDirectory() as folder:
        path, first = Path(folder) / "index.woh", workload.chunk(0, d=512, n_tags=100)
        workload.built(path, first)
        workload.fill(path, args.rows - len(first))
        outs = [f"{folder}/{number}.npy" for number in range(2)]
        readers = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", str(path), out],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for out in outs
        ]

        def answered() -> list[int]:
            for reader in readers:
                reader.stdin.write("\n")
                reader.stdin.flush()
            return [int(reader.stdout.readline()) for reader in readers]

        answered()  # they serve
        time.sleep(3)
        begin = answered()
        time.sleep(args.seconds / 2)
        middle = answered()
        chunks = [workload.chunk(1 + i, n=args.items, d=512, n_tags=20) for i in range(10)]
        start = time.monotonic()
        with WOHIndex.open(path) as index:
            for number in range(args.updates):
                index.update(chunks[number % 10])
                late = start + (number + 1) * args.seconds / args.updates - time.monotonic()
                time.sleep(max(0, late))
        took, end = time.monotonic() - start, answered()
        for reader in readers:
            reader.stdin.close()
        failed = [reader.wait() for reader in readers]
        seconds = [np.load(out) for out in outs]
    spans = {"idle": (begin, middle), "writing": (middle, end)}
    percentiles = {}
    for name, (a, b) in spans.items():
        some = 1000 * np.concatenate([s[i:j] for s, i, j in zip(seconds, a, b, strict=True)])
        percentiles[name] = np.percentile(some, [50, 99])
        p50, p99 = percentiles[name]
        print(f"{name}: {len(some):,} queries, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    ratio = percentiles["writing"][1] / percentiles["idle"][1]
    print(f"{args.updates} updates in {took:.0f} s, readers' exit codes {failed}")
    passed = ratio <= 2 and not any(failed)
    print(f"p99 while writing against idle {ratio:.2f}: {'PASS' if passed else 'FAIL'}")


if __name__ == "__main__":
    main()
