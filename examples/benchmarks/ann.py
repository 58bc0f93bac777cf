"""Approximate indexes against the flat scan: time of a query and recall of the 10 nearest, one thread.

    python examples/benchmarks/ann.py [--rows 1000000] [--kinds ivf hnsw multihash] [--queries 200]

Codes of 64 bits in clusters of about 200, each bit of a code flipped with probability .08; queries are codes
with 4 bits flipped, asked one at a time. The flat and the approximate
index take turns within one run; a ratio is that of the medians. PASS where a kind finds at least .9 and takes
less than half of flat's time. HNSW takes minutes a million to build.
"""

from __future__ import annotations

import time

import faiss
import numpy as np
import setting

from woh_faiss.store import faiss_indexes

BITS, K = 64, 10


def clustered(n: int, seed: int = 0) -> np.ndarray:
    """Codes (n, 8) around n / 200 centres."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 256, (max(1, n // 200), BITS // 8), np.uint8)
    codes = centres[rng.integers(len(centres), size=n)]
    for start in range(0, n, 1 << 18):
        part = codes[start : start + (1 << 18)]
        flips = rng.random((len(part), BITS), np.float32) < 0.08
        part ^= np.packbits(flips, axis=1, bitorder="little")
    return codes


def asked(index, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each query, and the distances found."""
    seconds, found = [], []
    for query in queries:
        start = time.perf_counter()
        D, _ = faiss_indexes.nearest(index, query[None], K)
        seconds.append(time.perf_counter() - start)
        found.append(D[0])
    return np.array(seconds), np.array(found)


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--kinds", nargs="+", default=list(faiss_indexes.SUBLINEAR), choices=faiss_indexes.SUBLINEAR
    )
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--set", nargs="*", default=[], help="Parameters, NAME=NUMBER; with one kind.")
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    codes = clustered(arguments.rows)
    queries = faiss_indexes.probes(codes, BITS, arguments.queries)
    flat = faiss_indexes.built("flat", codes, {})
    given = {name: int(number) for name, number in (pair.split("=") for pair in arguments.set)}
    print(f"{arguments.rows:,} codes of {BITS} bits, {len(queries)} queries, k = {K}")
    for kind in arguments.kinds:
        parameters = faiss_indexes.complete(kind, given, arguments.rows, BITS)
        start = time.perf_counter()
        index = faiss_indexes.built(kind, codes, parameters)
        seconds = time.perf_counter() - start
        flat_times, times, recalls = [], [], []
        for part in np.array_split(queries, 4):  # in turns: what else the machine does meets both
            took, truth = asked(flat, part)
            flat_times.append(took)
            took, D = asked(index, part)
            times.append(took)
            recalls.append(faiss_indexes.recall(D, truth))
        by_flat, by_kind = np.median(np.concatenate(flat_times)), np.median(np.concatenate(times))
        recall = float(np.mean(recalls))
        verdict = "PASS" if recall >= 0.9 and by_kind < 0.5 * by_flat else "FAIL"
        shown = ", ".join(f"{name} {value}" for name, value in parameters.items())
        print(
            f"{kind} ({shown}): built in {seconds:.1f} s; {1e3 * by_kind:.3f} ms against flat's "
            f"{1e3 * by_flat:.3f}, {by_flat / by_kind:.1f} times faster; recall {recall:.3f}  {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
