"""What a push and a query in a database cost, against the index's own flat scan.

    python examples/benchmarks/push.py "postgresql://me@localhost/db?table=bench" [--rows 100000]

Makes an index of random 64-bit codes and pushes it to that table, which is replaced. Prints codes a second of
the first push; seconds of a push of nothing, of a round of 1,000, and of one after compact (which compares
all ids); and, for k = 10, milliseconds a query one by one, and in a batch of 64, there and by flat scan:
medians.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--approximate", action="store_true")
    args = parser.parse_args()
    setting.threads(1)
    import numpy as np
    import workload

    from woh_faiss import WOHIndex
    from woh_faiss.integrations.push import push
    from woh_faiss.integrations.remote import Remote

    first = workload.chunk(0, d=64, n_tags=50)

    def timed(work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.woh"
        workload.built(path, first)
        workload.fill(path, args.rows - len(first))
        with WOHIndex.open(path) as index:
            seconds = timed(lambda: push(index, args.url, force=True, approximate=args.approximate))
            print(f"first push of {index.ntotal:,}: {index.ntotal / seconds:,.0f} codes/s")
            print(f"nothing new: {timed(lambda: push(index, args.url)):.3f} s")
            index.add(first.features[:1000])
            print(f"1,000 new: {timed(lambda: push(index, args.url)):.3f} s")
            index.remove(np.arange(0, args.rows, 100))
            index.compact()
            print(f"1% removed, and compact: {timed(lambda: push(index, args.url)):.3f} s")
            xq = workload.chunk(1, d=64, n_tags=50).features[:64]
            with Remote(index, args.url) as remote:
                same = [
                    np.array_equal(a, b)
                    for a, b in zip(remote.search(xq, 10), index.search(xq, 10, by="hamming"), strict=True)
                ]
                print(f"answers equal: {all(same)}")
                for name, searched in (("there", remote), ("flat scan", index)):
                    one = [
                        timed(lambda i=i, s=searched: s.search(xq[i : i + 1], 10)) for i in range(args.repeat)
                    ]
                    many = [timed(lambda s=searched: s.search(xq, 10)) for _ in range(3)]
                    print(
                        f"{name}: {1000 * np.median(one):.2f} ms a query, "
                        f"{1000 * np.median(many) / len(xq):.2f} in a batch"
                    )


if __name__ == "__main__":
    main()
