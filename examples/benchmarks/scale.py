"""The constants that docs/scale.md plans with: rates a core, bytes an item, ratios of one run.

    python examples/benchmarks/scale.py [--items 1000000] [--width 768] [--repeat 5] [--no-dask]

A JSON line a constant. Everything runs on one thread (Dask: two processes of one thread each); seconds are of
the processor, so that other work on the machine shows less.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import setting


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000, help="Codes to scan.")
    parser.add_argument("--width", type=int, default=768, help="Numbers a feature row.")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-dask", action="store_true")
    args = parser.parse_args()
    setting.threads(1)
    import numpy as np
    import workload

    from woh_faiss import WOHIndex
    from woh_faiss.index.code_files import valid_codes, write_codes

    def least(work: Callable[[], Any]) -> float:
        """Seconds of the fastest of some runs: others only had more to wait for."""
        return min(seconds(work) for _ in range(args.repeat))

    def say(what: str, **constants: float) -> None:
        print(
            json.dumps({"what": what} | {name: float(f"{x:.3g}") for name, x in constants.items()}),
            flush=True,
        )

    def size(folder: Path) -> int:
        return (folder / "catalog.db").stat().st_size

    with tempfile.TemporaryDirectory() as temporary:
        path, d = Path(temporary) / "scale.woh", args.width
        first, second = (workload.chunk(seed, d=d) for seed in range(2))
        workload.built(path, first)
        with WOHIndex.open(path) as index:
            chunks = [workload.chunk(seed, d=d) for seed in range(2, 2 + args.repeat)]
            learning = min(seconds(lambda chunk=chunk: index.update(chunk)) for chunk in chunks)
            say(
                "learn, 64 bits, 1,386 tags", items_a_second=2000 / learning, seconds_a_round_of_2000=learning
            )
            hasher = index.hasher
            encoding = least(lambda: hasher.encode(second.features))
            say("encode, 1,000 anchors", width=d, items_a_second=2000 / encoding)
            say("learn against encode", ratio=learning / encoding)
            model = sum(
                file.stat().st_size for file in path.iterdir() if file.name.startswith(("model", "anch"))
            )
            say("models and anchors", megabytes=model / 1e6)

        many = np.random.default_rng(0).integers(0, 256, (200_000, 8), np.uint8)
        for what, named in (
            ("bare", {}),
            ("key of 20 characters, 5 tags", {
                "keys": [f"picture-{i:012}" for i in range(len(many))],
                "tags": [[f"tag{j:05}" for j in range(i % 1000, i % 1000 + 5)] for i in range(len(many))],
            }),
        ):  # fmt: skip
            file = write_codes(Path(temporary) / "codes.npz", valid_codes(many, **named), hasher.fingerprint)
            before = size(path)
            with WOHIndex.open(path) as index:
                appending = seconds(lambda index=index, file=file: index.add_codes(file))
            say(
                f"append codes, {what}",
                items_a_second=len(many) / appending,
                catalogue_bytes_an_item=(size(path) - before) / len(many),
                code_file_bytes_an_item=file.stat().st_size / len(many),
            )
        workload.fill(path, args.items // 2)
        scans = []
        for _ in range(2):
            with WOHIndex.open(path) as index:
                n, query = index.ntotal, second.features[:1]
                index.search(query, 10)
                scans.append((n, least(lambda index=index, query=query: index.search(query, 10))))
            workload.fill(path, args.items // 2)
        (n, less), (twice, more) = scans
        say(
            "scan, 64 bits, k = 10",
            codes=twice,
            milliseconds=1e3 * more,
            ns_a_code=1e9 * (more - less) / (twice - n),
        )
    if not args.no_dask:
        say("a round of 16,384 on two Dask workers", **on_workers(d))


def seconds(work: Callable[[], Any]) -> float:
    """What this process's processor spends on it."""
    start = time.process_time()
    work()
    return time.process_time() - start


def on_workers(d: int) -> dict[str, float]:
    """The same round in this process and on two workers, codes compared."""
    import dask.array as da
    import workload
    from distributed import Client, LocalCluster

    from woh_faiss import WOH
    from woh_faiss.integrations import dask as workers

    first, large = workload.chunk(0, d=d), workload.chunk(1, n=16_384, d=d)
    here, there = (WOH(bits=64, vector_size=50).partial_fit(first.features, first.tags) for _ in range(2))
    alone = seconds(lambda: here.partial_fit(large.features, large.tags))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        parts = client.scatter([large.features[i : i + 3000] for i in range(0, 16_384, 3000)])
        X = da.concatenate([da.from_delayed(part, (part.result().shape[0], d), "f4") for part in parts])
        workers.partial_fit(there, X[:100], large.tags.rows(slice(100)))  # what is imported is
        there = WOH(bits=64, vector_size=50).partial_fit(first.features, first.tags)
        before = sum(client.run(time.process_time).values())
        mine = seconds(lambda: workers.partial_fit(there, X, large.tags))
        spread = sum(client.run(time.process_time).values()) - before
    return {
        "seconds_alone": alone,
        "seconds_of_workers": spread,
        "seconds_of_client_and_scheduler": mine,
        "ratio": (spread + mine) / alone,
        "differing": int((here.codes_ != there.codes_).sum()),
    }


if __name__ == "__main__":
    main()
