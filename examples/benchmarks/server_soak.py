"""Reads, updates and removals through a server for minutes: no error, no mixed answer, no growing memory.

    python examples/benchmarks/server_soak.py [--minutes 10] [--workers 2] [--readers 4] [--rows 20000]

Writers add families of items, which share a vector and a tag of their own, with one request each, and remove
them with one request each; a round in ten learns. Whatever round an answer tells, of each family it has all
items or none. Another process does the same past the server. Readers ask by vector, key, tag and filter.
Prints requests, how long requests missed a commit, and memory of each process after a quarter of the time and
at the end; faults are errors and mixed answers. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import server as bench
import setting

#: Items of a family, and families that a writer has at a time.
FAMILY, LIVE, D = 5, 20, 64
TOKEN = "0123456789abcdef" * 2
#: Growth of memory, from a quarter of the time to its end, that is no leak: items come and go.
GROWTH = 1.1


class Asker:
    """One connection to the server."""

    def __init__(self, port: int) -> None:
        self._http = HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, route: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        self._http.request(method, route, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        return answer.status, json.loads(answer.read())


class Soak:
    """What is shared by the threads."""

    def __init__(self, port: int) -> None:
        self.port, self.stop = port, threading.Event()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.live: dict[str, list[float]] = {}
        self.late: list[float] = []

    def write(self, name: str, seed: int) -> None:
        import numpy as np

        rng, mine, number = np.random.default_rng(seed), [], 0
        while not self.stop.is_set():
            number += 1
            asker = Asker(self.port)  # the server closes connections that are idle for seconds
            if len(mine) >= LIVE:
                gone = mine.pop(int(rng.integers(len(mine))))
                self.live.pop(gone, None)
                query = urlencode([("key", f"{gone}.{i}") for i in range(FAMILY)])
                self.expect(asker.ask("DELETE", f"/v1/items?{query}"), 200, "removals")
            family, vector = f"{name}{number}", rng.normal(size=D).tolist()
            body = {
                "vectors": [vector] * FAMILY,
                "keys": [f"{family}.{i}" for i in range(FAMILY)],
                "tags": [["common", name]] * FAMILY,
                "metadata": {"number": [number] * FAMILY},
            }
            learn = number % 10 == 0
            self.expect(asker.ask("POST", "/v1/rounds" if learn else "/v1/items", body), 201, "writes")
            committed, seen, late = time.monotonic(), 0, 0.0
            while seen < 5 and not self.stop.is_set():  # by whichever worker a new connection leads to
                asked = time.monotonic()
                status, _ = Asker(self.port).ask("POST", "/v1/search", {"keys": [f"{family}.0"], "k": 1})
                if status == 200:
                    seen += 1
                else:
                    late = asked - committed  # what was asked then was still answered without it
            self.late.append(late)
            mine.append(family)
            self.live[family] = vector
            time.sleep(0.05)

    def read(self, seed: int) -> None:
        import numpy as np

        rng, asker = np.random.default_rng(seed), Asker(self.port)
        while not self.stop.is_set():
            known = list(self.live.items())
            kind = int(rng.integers(4))
            if kind == 0 or not known:
                body: dict[str, Any] = {"vectors": [rng.normal(size=D).tolist()], "k": 50, "by": "instance"}
            elif kind == 1:
                body = {"vectors": [known[int(rng.integers(len(known)))][1]], "k": 50, "by": "instance"}
            elif kind == 2:
                body = {"tags": [["common"]], "k": 50, "where": f"number >= {int(rng.integers(100))}"}
            else:
                family = known[int(rng.integers(len(known)))][0]
                status, found = asker.ask(
                    "GET", "/v1/items?" + urlencode({"where": f"key like '{family}.%'"})
                )
                self.expect((status, found), 200, "lists")
                if status == 200 and found["total"] not in (0, FAMILY):
                    self.faults.append(f"{found['total']} of {FAMILY} items of {family}")
                continue
            answer = asker.ask("POST", "/v1/search", {**body, "explain": True})
            if self.expect(answer, 200, "searches"):
                self.check(answer[1])

    def check(self, found: dict[str, Any]) -> None:
        """A family has one score: all of it is in an answer, unless the answer ends there."""
        (hits,) = found["answers"]
        families = Counter(hit["key"].rsplit(".", 1)[0] for hit in hits if hit["key"].startswith("w"))
        last = hits[-1]["score"] if hits else 0
        ends = {hit["key"].rsplit(".", 1)[0] for hit in hits if hit["score"] == last}
        for family, n in families.items():
            if n != FAMILY and family not in ends:
                self.faults.append(f"round {found['round']}: {n} of {FAMILY} items of {family}")

    def expect(self, answer: tuple[int, Any], status: int, what: str) -> bool:
        self.counts[what] += 1
        if answer[0] != status:
            self.faults.append(f"{what}: {answer[0]} {answer[1]}")
        return answer[0] == status


def guarded(soak: Soak, work: Any, *args: Any) -> None:
    try:
        work(*args)
    except Exception as error:
        soak.faults.append(f"{work.__name__}: {type(error).__name__} {error}")


def past_the_server(path: Path, stop: threading.Event, soak: Soak) -> None:
    """Another process's writer, in its own words."""
    code = (
        "import sys, numpy as np\nfrom woh_faiss import WOHIndex\n"
        "with WOHIndex.open(sys.argv[1]) as index:\n    rng = np.random.default_rng(9)\n"
        "    for number, line in enumerate(sys.stdin):\n"
        f"        keys = [f'wx{{number}}.{{i}}' for i in range({FAMILY})]\n"
        f"        X = np.tile(rng.normal(size={D}), ({FAMILY}, 1))\n"
        f"        index.add(X, [['common']] * {FAMILY}, keys=keys,\n"
        f"            metadata={{'number': [number] * {FAMILY}}}, timeout=60)\n"
        f"        if number >= {LIVE}:\n"
        f"            keys = [f'wx{{number - {LIVE}}}.{{i}}' for i in range({FAMILY})]\n"
        f"            index.remove(keys=keys, timeout=60)\n"
        "        print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines, done = process.stdin, process.stdout
        while lines is not None and done is not None and not stop.wait(0.5):
            lines.write("\n")
            lines.flush()
            if not done.readline():
                soak.faults.append("the other process ended")
                return
            soak.counts["writes of another process"] += 1


def memory(pid: int) -> dict[int, int]:
    """Bytes of a process and of its children."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    found = {}
    for each in [pid, *map(int, listed.split())]:
        try:
            status = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        found[each] = 1024 * int(status.split("RssAnon:")[1].split()[0])
    return found


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=20_000)
    args = parser.parse_args()
    setting.threads(1)
    import numpy as np

    from woh_faiss import Chunk, WOHIndex

    with tempfile.TemporaryDirectory() as name:
        path, token, port = Path(name, "index.woh"), Path(name, "token.txt"), bench.free_port()
        token.write_text(TOKEN)
        token.chmod(0o600)
        X = np.random.default_rng(0).normal(size=(args.rows, D)).astype(np.float32)
        first = Chunk.of(
            X,
            [["common" if i % 2 else "rare"] for i in range(args.rows)],
            keys=[f"k{i}" for i in range(args.rows)],
            metadata={"number": list(range(args.rows))},
        )
        WOHIndex.build(path, [first], bits=32, instance_bits=64, anchors=100).close()
        command = bench.served(path, args.workers, port)
        process = subprocess.Popen([*command, "--writable", "--token-file", str(token)])
        try:
            soak = Soak(port)
            for _ in range(600):
                try:
                    if Asker(port).ask("GET", "/readyz")[0] == 200:
                        break
                except OSError:
                    time.sleep(0.1)

            def doing(work: Any, *given: Any) -> threading.Thread:
                return threading.Thread(target=guarded, args=(soak, work, *given))

            threads = [
                doing(past_the_server, path, soak.stop, soak),
                *(doing(soak.write, f"w{letter}", i) for i, letter in enumerate("ab")),
                *(doing(soak.read, 10 + i) for i in range(args.readers)),
            ]
            for thread in threads:
                thread.start()
            seconds = 60 * args.minutes
            time.sleep(seconds / 4)
            early = memory(process.pid)
            time.sleep(3 * seconds / 4)
            late = memory(process.pid)
            soak.stop.set()
            for thread in threads:
                thread.join(120)
        finally:
            process.terminate()
            code = process.wait(60)
        faults = [*soak.faults, *map(str, WOHIndex.verify(path))]
        grown = [f"{b / 2**20:.0f} → {late[pid] / 2**20:.0f} MB" for pid, b in early.items() if pid in late]
        leaks = [pid for pid, before in early.items() if late.get(pid, 0) > GROWTH * before]
        print(", ".join(f"{n:,} {what}" for what, n in soak.counts.items()))
        median, most = 1e3 * np.median(soak.late), 1e3 * max(soak.late)
        print(f"requests missed a commit up to {median:.0f} ms after it (median), {most:.0f} ms (most)")
        print(f"memory of its own, at a quarter and at the end: {', '.join(grown)}; exit code {code}")
        for fault in faults[:10]:
            print("FAULT", fault)
        if faults or leaks or code or max(soak.late) > 1:
            raise SystemExit(f"{len(faults)} faults, {len(leaks)} processes grew, exit code {code}")
        print("no fault")


if __name__ == "__main__":
    main()
