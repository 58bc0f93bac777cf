"""What a push and a query in a database cost, against the index's own scan.

    python examples/benchmarks/push.py "postgresql://me@localhost/db?table=bench" [--rows 100000]

Makes an index of random codes of 64 + 64 bits and pushes it to that table, which is replaced. Prints codes a
second of the first push; seconds of a push of nothing, of a round of 1,000, and of one after compact (which
compares all ids); and, for k = 10, milliseconds a query one by one, and in a batch of 64, there and here:
medians, by score with and without expansion, by kind, and by Hamming distance.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import setting

#: Ways to search, by what they are called here.
WAYS = {
    "score": {},
    "score, asked once": {"expand": 0},
    "kind": {"by": "kind"},
    "hamming": {"by": "hamming"},
}


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
        WOHIndex.build(path, [first]).close()
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
                for name, way in WAYS.items():
                    answers = remote.search(xq, 10, **way), index.search(xq, 10, **way)
                    same = [np.array_equal(there, here) for there, here in zip(*answers, strict=True)]
                    print(f"by {name}: answers equal: {all(same)}")
                    for place, searched in (("there", remote), ("here", index)):
                        one = [
                            timed(lambda i=i, s=searched, w=way: s.search(xq[i : i + 1], 10, **w))
                            for i in range(args.repeat)
                        ]
                        many = [timed(lambda s=searched, w=way: s.search(xq, 10, **w)) for _ in range(3)]
                        print(
                            f"by {name}, {place}: {1000 * np.median(one):.2f} ms a query, "
                            f"{1000 * np.median(many) / len(xq):.2f} in a batch"
                        )


if __name__ == "__main__":
    main()
