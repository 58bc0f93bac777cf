"""The approximate index beside the exact search: recall, items that find themselves, processor time, bytes.

    python examples/benchmarks/ann.py [FILE...] [--rows 1000000] [--nprobe 16 32 64]

An index of 64 + 64 bits learns FILEs (the shipped pictures, unless others are given) in 8 chunks, without 500
items, which are asked. Its codes and the numbers of their features are blown up to --rows: each row lies
between an item and one of its 10 nearest neighbours, with noise on each number; of two rows in five some
learned bits are flipped. Recall@10 is of the exact search: what scores no less than its tenth answer counts.
self@k is of the first rows, asked by their own numbers. Processor time of one thread; the ratios count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import setting

K, BITS = 10, 64


class Base(NamedTuple):
    """An index's stored codes, the numbers of their items and of queries, and the items' neighbours."""

    codes: Any
    numbers: tuple[Any, Any]
    queries: tuple[Any, Any]
    near: Any


def base(files: list[Path]) -> Base:
    """What an index that learned the files knows; 500 items are kept as queries."""
    import numpy as np

    from woh_faiss import WOHIndex, read_chunk
    from woh_faiss.inputs.chunk import concatenate

    chunk = concatenate([read_chunk(path) for path in files])
    order = np.random.default_rng(0).permutation(len(chunk))
    asked, rest = order[:500], order[500:]
    X = np.asarray(chunk.features, np.float32)
    with tempfile.TemporaryDirectory() as folder, WOHIndex.create(folder + "/i", bits=BITS) as index:
        for part in np.array_split(rest, 8):
            index.update(chunk.rows(part).features, chunk.rows(part).tags)
        codes = np.array(index.store.view.mapped.codes)
        known, new = (
            (index.hasher.decision_function(X[part]), index.hasher.instance.project(X[part]))
            for part in (rest, asked)
        )
    unit = X[rest] / np.linalg.norm(X[rest], axis=1, keepdims=True)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -1)
    return Base(codes, known, new, np.argsort(-similar, axis=1)[:, :10])


def blown_up(known: Base, n: int) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """Codes (n, 16), h and a of queries, and those of the first 1,000 rows."""
    import numpy as np

    from woh_faiss import codes as binary
    from woh_faiss import score

    rng = np.random.default_rng(0)
    noise = [
        np.float32(share) * half.std(axis=0) for share, half in zip((0.3, 0.4), known.numbers, strict=True)
    ]
    signs = binary.unpack(known.codes[:, : BITS // 8])
    codes, own = np.empty((n, 2 * BITS // 8), np.uint8), None
    for start in range(0, n, 1 << 17):
        m = min(n - start, 1 << 17)
        item = rng.integers(len(signs), size=m)
        other, t = known.near[item, rng.integers(10, size=m)], 0.7 * rng.random((m, 1), np.float32)
        z, a = (
            half[item] + t * (half[other] - half[item]) + scale * rng.standard_normal((m, BITS), np.float32)
            for half, scale in zip(known.numbers, noise, strict=True)
        )
        b = signs[item]
        flips = rng.random(b.shape, np.float32) < 0.12 * rng.random((m, 1), np.float32)
        b[flips & (rng.random((m, 1), np.float32) < 0.4)] *= -1
        codes[start : start + m] = np.concatenate([binary.pack(b), binary.pack(a)], axis=1)
        own = (z[:1000], a[:1000]) if own is None else own
    h, a = (
        np.concatenate([half, half + share * scale * rng.standard_normal(half.shape)])
        for half, scale, share in zip(known.queries, noise, (0.7, 0.7), strict=True)
    )
    found = [
        (score.normalised(np.tanh(2 * z)), score.normalised(a)) for z, a in ((h, a), own or (h[:0], a[:0]))
    ]
    return codes, found[0], found[1]


def main() -> None:
    parser = setting.parser(__doc__)
    shipped = sorted(setting.DATA.glob("chunk-*.npz"))
    parser.add_argument("files", type=Path, nargs="*", default=shipped, metavar="FILE")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000, help="at most 1,000")
    parser.add_argument("--nlist", type=int)
    parser.add_argument("--nprobe", type=int, nargs="+", help="the default of the index, unless given")
    args = parser.parse_args()
    setting.threads(1)
    import faiss
    import numpy as np

    from woh_faiss.store import ann, ann_search, codefile, ivf
    from woh_faiss.store.packed_codes import PackedCopies
    from woh_faiss.store.records import AnnIndex
    from woh_faiss.store.scan import Scan
    from woh_faiss.store.score_scan import ScoreScan

    faiss.omp_set_num_threads(1)
    n = args.rows
    codes, *asked = blown_up(base(args.files), n)
    queries, own = [[half[: args.queries] for half in halves] for halves in asked]
    exact = ScoreScan(
        PackedCopies(codes), Scan(codefile.MappedCodes(None, None, codes, None), None), BITS, BITS
    )

    def best(work: Callable[[], object], repeat: int) -> float:
        taken = []
        for _ in range(repeat):
            start = time.process_time()
            work()
            taken.append(1e3 * (time.process_time() - start))
        return min(taken)

    def measured(search: ScoreScan, expand: int, truth: Any, repeat: int) -> tuple[str, float, float]:
        """Qualities, and milliseconds a query alone and in a batch of 1,000."""
        S, _ = search.search(*queries, K, expand=expand)
        _, rows = search.search(*own, K, expand=expand)
        mine = rows == np.arange(len(rows))[:, None]
        some = [[half[i : i + 1] for half in queries] for i in range(20 * repeat)]
        alone = best(lambda: [search.search(*it, K, expand=expand) for it in some], repeat) / len(some)
        batch = best(lambda: search.search(*queries, K, expand=expand), repeat) / len(S)
        recall = 1.0 if truth is None else float((truth[:, -1:] <= S).mean())
        text = f"recall {recall:.3f}, self@1 {mine[:, 0].mean():.3f}, self@10 {mine.any(axis=1).mean():.3f}"
        return text, alone, batch

    print(f"{n:,} rows of {BITS} + {BITS} bits; {len(queries[0])} queries")
    truth, exact_ms = {}, {}
    for expand in (0, 3):
        truth[expand] = exact.search(*queries, K, expand=expand)[0]
        text, *exact_ms[expand] = measured(exact, expand, None, 1)
        alone, batch = exact_ms[expand]
        print(f"exact, expand {expand}: {text}; {alone:.2f} ms alone, {batch:.2f} in a batch", flush=True)
    given = {} if args.nlist is None else {"nlist": args.nlist}
    parameters = ivf.complete(given, n, BITS, BITS)
    start = time.process_time()
    clusters = ivf.halves(codes, BITS, BITS, parameters["nlist"])
    seconds = time.process_time() - start
    with tempfile.TemporaryFile() as file:
        ivf.write(file, clusters)
        size = file.tell()
        start = time.process_time()
        lists = ivf.Ivf.of(ivf.read(file, "it"), codes, 1)
        reading = time.process_time() - start
    print(
        f"{parameters['nlist']} lists: built in {seconds:.1f} s, {size / n:.1f} bytes a row, "
        f"read in {reading:.2f} s"
    )
    made_up = ann.numbers(codes, BITS, BITS, 256)
    for nprobe in args.nprobe or [parameters["nprobe"]]:
        lists.learned.index.nprobe = lists.instance.index.nprobe = nprobe
        made = AnnIndex("ivf", "", "", 1, n, parameters, 0.0)
        search = ann_search.AnnScan(
            exact.copies, exact.scan, BITS, BITS, made, lists, PackedCopies(codes[n:])
        )
        for expand in (0, 3):
            text, alone, batch = measured(search, expand, truth[expand], 3)
            faster = [was / now for was, now in zip(exact_ms[expand], (alone, batch), strict=True)]
            print(
                f"nprobe {nprobe}, expand {expand}: {text}; {alone:.2f} ms alone, {batch:.2f} in a batch: "
                f"{faster[0]:.1f} and {faster[1]:.1f} times as fast",
                flush=True,
            )
        found = search.search(*made_up, K, expand=3)[0]
        least = exact.search(*made_up, K, expand=3)[0][:, -1:]
        print(f"  recall that build_ann tells: {(found >= least).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
