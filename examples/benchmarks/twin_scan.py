"""Searches by score and by Hamming distance against Faiss's IndexBinaryFlat: CPU time of one thread, one run.

    python examples/benchmarks/twin_scan.py [--rows 1000000] [--queries 132] [--repeat 7]

Prints ratios, the best of all repetitions each: Hamming as times as fast as IndexBinaryFlat of the same bits
(bars: 32 bits 2.5, 64 2.0, 96 3.5, 128 1.4); the score at 64 + 64 bits, without expansion and with it, as a
share of the time of IndexBinaryFlat at 128 bits (bars: 1.0 and 1.3); the same where learned codes are equal
in crowds, with the worst query alone; what a first question costs; a refresh of 2,000 rows; memory.

"Bare" are the calls of Faiss that a search makes at least: of an IndexPQFastScan of the same codes for
Hamming; for the score one of each half, and one more of the learned half with expansion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=132)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    setting.threads(1)
    import faiss
    import numpy as np

    from woh_faiss import codes as binary
    from woh_faiss import score
    from woh_faiss.store import codefile
    from woh_faiss.store.packed_codes import Hamming, PackedCodes, PackedCopies
    from woh_faiss.store.scan import Scan
    from woh_faiss.store.score_scan import ScoreScan

    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    n, nq = args.rows, args.queries
    some = min(nq, 20)

    def best(work: Callable[[], object]) -> float:
        """Milliseconds of CPU time, the best of all repetitions."""
        taken = []
        for _ in range(args.repeat):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
        return 1e3 * min(taken)

    def both(search: Callable[..., object], *queries: np.ndarray) -> tuple[float, float]:
        """Milliseconds a query, in a batch and alone."""
        alone = [[each[i : i + 1] for each in queries] for i in range(some)]
        return best(lambda: search(*queries)) / nq, best(lambda: [search(*it) for it in alone]) / some

    def mapped(codes: np.ndarray) -> codefile.MappedCodes:
        flat = faiss.IndexBinaryFlat(8 * codes.shape[1])
        flat.add(codes)
        return codefile.MappedCodes(flat, flat, codes, None)

    def told(what: str, faiss_ms: tuple[float, float], ours: tuple[float, float], faster: bool) -> None:
        ratios = [f / o if faster else o / f for f, o in zip(faiss_ms, ours, strict=True)]
        times = "times as fast" if faster else "of its time"
        print(
            f"{what}: batch {ratios[0]:.2f}, one query {ratios[1]:.2f} {times} "
            f"(ms: Faiss {faiss_ms[0]:.2f} {faiss_ms[1]:.2f}, here {ours[0]:.2f} {ours[1]:.2f})",
            flush=True,
        )

    print(f"{n} rows, {nq} queries")
    for bits in (32, 64, 96, 128):
        codes, xq = (rng.integers(0, 256, (m, bits // 8), dtype=np.uint8) for m in (n, nq))
        # as in an index, padded where the width is not one of those that Faiss is fast with
        padded, asked = binary.pad(codes), binary.pad(xq)
        hamming = Hamming(PackedCopies(padded), Scan(mapped(padded), None), bits // 8)
        hamming.nearest(asked, 10)
        plain = faiss.IndexBinaryFlat(bits)
        plain.add(codes)
        for k in (10, 100):
            flat = both(lambda x, k=k, flat=plain: flat.search(x, k), xq)
            ours = both(lambda x, k=k, ours=hamming: ours.nearest(x, k), asked)
            told(f"Hamming, {bits} bits, k {k}", flat, ours, faster=True)
            packed = hamming.copies.of(0, bits // 8, 0, 0)
            scan = both(partial(_bare, [packed], k), binary.unpack(xq).astype(np.float32))
            told(f"  bare, {bits} bits, k {k}", flat, scan, faster=True)

    def numbers(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Queries near some rows."""
        signs = binary.unpack(codes[rng.integers(n, size=nq)])
        H = signs * rng.exponential(size=signs.shape) + rng.normal(size=signs.shape)
        return score.normalised(H[:, :64]), score.normalised(H[:, 64:])

    def crowded(distinct: int, popular: bool) -> np.ndarray:
        codes = rng.integers(0, 256, (n, 16), dtype=np.uint8)
        learned = rng.integers(0, 256, (distinct, 8), dtype=np.uint8)
        which = np.minimum(rng.zipf(1.3, n), distinct) - 1 if popular else rng.integers(distinct, size=n)
        codes[:, :8] = learned[which]
        return codes

    def proofs(search: ScoreScan, h: np.ndarray, a: np.ndarray, expand: int) -> str:
        lists, kept = [], PackedCodes.best

        def counting(self: PackedCodes, H: np.ndarray, K: int) -> object:
            lists.append(len(H))
            return kept(self, H, K)

        PackedCodes.best = counting  # type: ignore[method-assign,assignment]
        try:
            search.search(h, a, 10, expand=expand)
        finally:
            PackedCodes.best = kept  # type: ignore[method-assign]
        worst = max(
            best(lambda i=i: search.search(h[i : i + 1], a[i : i + 1], 10, expand=expand))
            for i in range(some)
        )
        return f"{sum(lists) / nq:.2f} scans a query (at least {3 if expand else 2}), worst {worst:.1f} ms"

    sets = {
        "random": lambda: rng.integers(0, 256, (n, 16), dtype=np.uint8),
        "27 % of learned codes distinct": lambda: crowded(27 * n // 100, False),
        "2 % distinct": lambda: crowded(n // 50, False),
        "300 distinct": lambda: crowded(300, False),
        "27 % to choose from, unequally popular": lambda: crowded(27 * n // 100, True),
    }

    def measure(name: str, codes: np.ndarray) -> None:
        h, a = numbers(codes)
        search = ScoreScan(PackedCopies(codes), Scan(mapped(codes), None), 64, 64)
        first, packing = (best_of_one(lambda: search.search(h[:1], a[:1], 10)) for _ in range(2))
        xq = np.ascontiguousarray(codes[rng.integers(n, size=nq)])
        for k in (10, 100):
            flat = both(partial(_nearest, search.scan.mapped.index, k), xq)
            for expand in (0, 3):
                ours = both(partial(_best, search, k, expand), h, a)
                told(f"score, {name}, k {k}, expand {expand}", flat, ours, faster=False)
                halves = list(search.copies)
                scan = both(partial(_bare, halves[: 1 if expand else 0] + halves, k), h)
                told(f"  bare, k {k}, expand {expand}", flat, scan, faster=False)
        for expand in (0, 3):
            print(f"  expand {expand}: {proofs(search, h, a, expand)}")
        print(f"  first question {first:.1f} ms, second, which packs, {packing:.1f} ms")
        held = sum(packed.nbytes for packed in search.copies)
        print(f"  mapped {codes.nbytes / n:.1f} bytes a row, packed {held / n:.1f}", flush=True)

    for name, make in sets.items():
        measure(name, make())

    for rows in (100_000, n):
        codes = rng.integers(0, 256, (rows + 60_000, 8), dtype=np.uint8)
        packed, taken = PackedCodes.of(codes[:rows], 0, 8), []
        for end in range(rows + 2000, len(codes) + 1, 2000):
            start = time.process_time()
            packed = packed.extended(codes[:end])
            taken.append(1e3 * (time.process_time() - start))
        print(
            f"2,000 rows of 64 bits added to {rows}: {np.mean(taken):.2f} ms on average, at most "
            f"{max(taken):.2f}; {len(packed.segments)} segments after {len(taken)} times"
        )


def _nearest(index: Any, k: int, xq: Any) -> object:
    return index.search(xq, k)


def _bare(packed: list[Any], k: int, H: Any) -> None:
    """As many rows as are asked for, of codes as wide as H (n, bits)."""
    for each in packed:
        each.segments[0].index.search(H, k)


def _best(search: Any, k: int, expand: int, h: Any, a: Any) -> object:
    return search.search(h, a, k, expand=expand)


def best_of_one(work: Callable[[], object]) -> float:
    """Milliseconds of CPU time, once."""
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


if __name__ == "__main__":
    main()
