"""Requests a second and latency of `woh-index serve`, beside `index.search` and a bare endpoint.

    python examples/benchmarks/server.py [--rows 1000000] [--seconds 5] [--workers 1] [--chroma 0]

One query of 512 numbers a request, k = 10, codes of 64 + 64 bits, at 1, 8 and 64 clients, each with a
connection of its own that asks again when it has its answer. "bare" is a FastAPI endpoint that returns {};
"ids" is the same search with "describe": false. The bar is the median at one client less that of
`index.search` here: 1.5 ms. `--chroma N` also fills Chroma's server (`pip install chromadb`), and an index,
with N of the same vectors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import setting

BAR, K, D = 1.5, 10, 512
CLIENTS = (1, 8, 64)
BARE = (
    "from fastapi import FastAPI\napp = FastAPI()\n@app.post('/v1/search')\nasync def nothing(): return {}\n"
)


class Client(asyncio.Protocol):
    """One connection that asks, waits for the answer, and asks again; as little Python as there can be."""

    def __init__(self, requests: list[bytes], first: int, taken: list[float]) -> None:
        self._requests, self._number, self._taken = requests, first, taken
        self._had = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._number += 1
        self._start = time.perf_counter()
        self._transport.write(self._requests[self._number % len(self._requests)])

    def data_received(self, data: bytes) -> None:
        self._had += data
        head, end, body = self._had.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            return
        if b" 200 " not in head[:20] and b" 201 " not in head[:20]:
            raise SystemExit(f"the server answered {self._had[:500]!r}")
        self._taken.append(time.perf_counter() - self._start)
        self._had = b""
        self._ask()


def measured(port: int, route: str, bodies: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Requests a second, and percentiles of their milliseconds."""
    import numpy as np

    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n{body}".encode() for body in bodies]
    taken: list[float] = []

    async def ask() -> float:
        loop = asyncio.get_running_loop()
        for number in range(clients):
            await loop.create_connection(lambda n=number: Client(requests, 7 * n, taken), "127.0.0.1", port)
        await asyncio.sleep(0.3 * seconds)  # not measured
        taken.clear()
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        return time.perf_counter() - start

    elapsed = asyncio.run(ask())
    p50, p99 = 1e3 * np.percentile(taken, [50, 99])
    return {"a second": len(taken) / elapsed, "p50": p50, "p99": p99}


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server process until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{' '.join(command)} did not start") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def served(path: Path, workers: int, port: int) -> list[str]:
    options = ["--index", str(path), "--port", str(port), "--workers", str(workers)]
    return [sys.executable, "-m", "woh_faiss_cli", "serve", *options]


def in_process(path: Path, xq: Any, describe: bool) -> float:
    """The median of `index.search` of one query, in milliseconds; with `describe` of both."""
    import numpy as np

    from woh_faiss import WOHIndex

    taken = []
    with WOHIndex.open(path) as index:
        for number in range(-20, 300):
            row = xq[number % len(xq)][None]
            start = time.perf_counter()
            found = index.search(row, K)
            if describe:
                index.describe(*found)
            taken.append(time.perf_counter() - start)
    return float(1e3 * np.median(taken[20:]))


def told(what: str, clients: int, found: dict[str, float]) -> None:
    print(
        f"{what:10} {clients:3} clients: {found['a second']:7.0f} a second, "
        f"p50 {found['p50']:7.2f} ms, p99 {found['p99']:7.2f} ms",
        flush=True,
    )


def chroma(args: argparse.Namespace, folder: Path, bodies: list[str], xq: Any) -> None:
    """Chroma's server and ours with the same vectors, which it keeps as floats in an HNSW graph."""
    import chromadb
    import workload

    from woh_faiss import WOHIndex

    port = free_port()
    X = workload.chunk(0, n=max(args.chroma, 2000), d=D, n_tags=100)
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(folder / "chroma")]
    with running([*command, "--port", str(port)], port):
        start = time.perf_counter()
        collection = chromadb.HttpClient(port=port).create_collection("bench")
        for first in range(0, len(X), 1000):
            part = X.features[first : first + 1000]
            collection.add([str(first + i) for i in range(len(part))], embeddings=part)
        print(f"chroma: {len(X):,} vectors added in {time.perf_counter() - start:.0f} s")
        route = f"/api/v2/tenants/default_tenant/databases/default_database/collections/{collection.id}/query"
        asked = [json.dumps({"query_embeddings": json.loads(b)["vectors"], "n_results": K}) for b in bodies]
        for clients in CLIENTS:
            told("chroma", clients, measured(port, route, asked, clients, args.seconds))
    path, port = folder / "small.woh", free_port()
    WOHIndex.build(path, [X], bits=64, instance_bits=64).close()
    with running(served(path, args.workers, port), port):
        for clients in CLIENTS:
            told("serve", clients, measured(port, "/v1/search", bodies, clients, args.seconds))


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5, help="Of each measurement.")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--chroma", type=int, default=0, metavar="N", help="Vectors for Chroma; 0: without it."
    )
    args = parser.parse_args()
    setting.threads(1)
    import numpy as np
    import workload

    from woh_faiss import WOHIndex

    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        path, first = folder / "index.woh", workload.chunk(0, d=D, n_tags=100)
        WOHIndex.build(path, [first], bits=64, instance_bits=64).close()
        workload.fill(path, args.rows - len(first))
        xq = np.round(workload.chunk(7, n=300, d=D, n_tags=20).features, 6)
        search, both = (in_process(path, xq, describe) for describe in (False, True))
        print(f"index.search {search:.2f} ms, with describe {both:.2f} ms (median of 300)")
        bodies = [json.dumps({"vectors": [row], "k": K}) for row in xq.tolist()]
        ids = [json.dumps({"vectors": [row], "k": K, "describe": False}) for row in xq.tolist()]
        (folder / "bare.py").write_text(BARE)
        bare, port = free_port(), free_port()
        uvicorn = [sys.executable, "-m", "uvicorn", "--app-dir", name, "--log-level", "warning", "bare:app"]
        servers.enter_context(running([*uvicorn, "--port", str(bare)], bare))
        servers.enter_context(running(served(path, args.workers, port), port))
        alone: dict[str, float] = {}
        for clients in CLIENTS:
            for what, at, asked in (("bare", bare, bodies), ("serve", port, bodies), ("ids", port, ids)):
                found = measured(at, "/v1/search", asked, clients, args.seconds)
                told(what, clients, found)
                alone.setdefault(what, found["p50"])
        servers.close()
        for what, taken in alone.items():
            if what != "bare":
                over = taken - search
                verdict = "PASS" if over <= BAR else f"short by {over / BAR - 1:.0%}"
                print(
                    f"{what} over index.search: {over:.2f} ms at p50 with one client (bar {BAR}): {verdict}"
                )
        if args.chroma:
            chroma(args, folder, bodies, xq)


if __name__ == "__main__":
    main()
