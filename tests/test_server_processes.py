"""A server as processes: it starts and ends, workers share, writes outlive it, slow clients wait alone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
import served
from conftest import length
from test_paths import run

import woh_faiss.server.app  # noqa: F401 - what a fork then need not import
from woh_faiss import WOHIndex

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return served.built(tmp_path / "index.woh")


class Server:
    """A running server, its port, and all that it wrote on stderr."""

    def __init__(self, path, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "woh_faiss_cli", "serve", "--index", path, "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        first = self.process.stderr.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", first)[1])
        self.lines = [first]
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        for _ in range(1200):
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    break
            except OSError:
                time.sleep(0.05)

    def connection(self, timeout=60):
        return HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, route, body=None, headers=None, connection=None):
        """The status and the body of an answer."""
        one = connection or self.connection()
        try:
            data = None if body is None else json.dumps(body)
            one.request(method, route, data, {"Content-Type": "application/json", **(headers or {})})
            answer = one.getresponse()
            text = answer.read().decode()
            return answer.status, json.loads(text) if text[:1] in "{[" else text
        finally:
            if connection is None:
                one.close()

    def search(self, **body):
        return self.ask("POST", "/v1/search", body)

    def workers(self):
        """The processes that answer: those that have the codes mapped."""
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        ).stdout.split()
        return [pid for pid in map(int, [self.process.pid, *children]) if "codes.faiss" in _maps(pid)]

    def wait_for(self, workers):
        """Those processes when there are so many."""
        while len(found := self.workers()) < workers:
            time.sleep(0.05)
        assert len(found) == workers
        return found

    def end(self, number=signal.SIGTERM):
        """Its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.close()
        return code

    def close(self):
        self._reader.join(60)
        self.process.stderr.close()


def _maps(pid):
    try:
        return Path(f"/proc/{pid}/smaps").read_text()
    except OSError:
        return ""


@contextmanager
def serving(path, *options):
    server = Server(path, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(60)
        server.close()


def vectors(n=1, seed=1):
    return served.stream(n, seed=seed).features.tolist()


def test_the_client_of_the_documentation(path, capsys):
    page = Path(__file__).parents[1] / "docs" / "server.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    with serving(path) as server, WOHIndex.open(path) as index:
        xq = served.stream(3, seed=1).features
        exec(block.replace("8765", str(server.port)), {"xq": xq})  # noqa: S102 - our own page
        D, I = index.search(xq, 5, where="price < 20")
        best = [hits[0] for hits in index.describe(D, I)]
        assert capsys.readouterr().out.splitlines() == [f"{it.id} {it.key} {it.tags}" for it in best]


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_ends_it_when_it_has_answered(path, workers):
    with serving(path, "--workers", str(workers)) as server:
        server.wait_for(workers)
        body = {"vectors": vectors(300), "k": 20}
        answers = []

        def ask():
            status, found = server.search(**body)
            answers.append((status, len(found["answers"])))

        threads = [threading.Thread(target=ask) for _ in range(length(8) + 2)]
        for thread in threads:
            thread.start()
        while f"woh_requests_running {len(threads) + 1}.0" not in server.ask("GET", "/metrics")[1]:
            assert not answers
        assert server.end() == 0
        for thread in threads:
            thread.join(60)
        assert answers == [(200, 300)] * len(threads)
        assert len(server.lines) == 1, server.lines
        with pytest.raises(OSError, match="refused"):
            server.ask("GET", "/healthz")


def test_workers_map_the_codes_and_count_together(path):
    with WOHIndex.open(path) as index:
        index.add(served.stream(20_000, seed=2).features)
    with serving(path, "--workers", "2") as server:
        for pid in server.wait_for(2):
            (part,) = re.findall(r"codes\.faiss\n.*?VmFlags", _maps(pid), re.DOTALL)
            size, own = (int(re.search(rf"{name}: +(\d+) kB", part)[1]) for name in ("Size", "Anonymous"))
            assert size > 50
            assert own <= 4  # of the page of the header alone
        for _ in range(30):
            assert server.search(ids=[1], k=1)[0] == 200
        _, figures = server.ask("GET", "/metrics")
        assert re.search(r"^woh_queries_total 30\.0$", figures, re.MULTILINE)
        assert server.end(signal.SIGINT) == 0


def test_commits_of_others_are_seen_within_a_second(path):
    with serving(path, "--workers", "2") as server, WOHIndex.open(path) as writer:
        for number in range(length(3)):
            writer.add(
                served.stream(5, start=1000 + 10 * number).features, keys=[f"n{number}.{i}" for i in range(5)]
            )
            time.sleep(1)
            for _ in range(10):  # whichever worker it is
                assert server.search(keys=[f"n{number}.4"], k=1)[0] == 200
                _, found = server.ask("GET", "/v1/items?limit=1")
                assert found["total"] == served.N + 5 * (number + 1)


def test_a_slow_client_holds_nobody_up(path):
    with serving(path, "--timeout", "2") as server:
        slow = []
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for number in range(60):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall([head[:20], head + b"Content-Length: 900\r\n\r\n{", head][number % 3])
            slow.append(connection)
        taken = []
        for _ in range(20):
            start = time.monotonic()
            assert server.search(vectors=vectors(), k=1)[0] == 200
            taken.append(time.monotonic() - start)
        assert np.median(taken) < 1
        slow[1].settimeout(30)
        assert slow[1].recv(100).startswith(b"HTTP/1.1 408")
        for connection in slow:
            connection.close()


def test_the_token_is_in_no_log_and_no_list_of_processes(path, tmp_path):
    file = served.token_file(tmp_path)
    with serving(path, "--token-file", str(file), "--workers", "2", "--access-log") as server:
        for headers in (served.BEARER, {"Authorization": f"Bearer {served.TOKEN}x"}):
            server.ask("GET", "/v1/info", headers=headers)
        told = ""
        for pid in {server.process.pid, *server.workers()}:
            for what in ("cmdline", "environ"):
                told += Path(f"/proc/{pid}/{what}").read_text()
        assert server.end() == 0
        assert any("/v1/info" in line for line in server.lines)
        assert served.TOKEN not in told + "".join(server.lines)


@pytest.mark.disk
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_during_writes_leaves_what_the_store_promises(path, tmp_path, workers):
    """What was answered with 201 is there; the rest is there whole or not at all; verify finds no fault."""
    options = ["--writable", "--token-file", str(served.token_file(tmp_path)), "--workers", str(workers)]
    rng, acknowledged, removed = np.random.default_rng(0), set(), set()
    for life in range(length(8)):
        with serving(path, *options) as server:
            stop = threading.Event()

            def write(life=life, server=server, stop=stop):
                number = 0
                while not stop.is_set():
                    number += 1
                    keys = [f"w{life}.{number}.{i}" for i in range(3)]
                    body = {"vectors": vectors(3, number), "keys": keys, "tags": [["sea"]] * 3}
                    route = "/v1/rounds" if number % 3 else "/v1/items"
                    try:
                        status, found = server.ask("POST", route, body, served.BEARER)
                        assert status == 201, found
                        acknowledged.add((keys[0], 3))
                        if number % 4 == 0:
                            status, found = server.ask(
                                "DELETE", f"/v1/items?key={keys[0]}", None, served.BEARER
                            )
                            assert status == 200, found
                            removed.add(keys[0])
                    except (OSError, ConnectionError, json.JSONDecodeError):
                        return
                    except Exception:
                        if not stop.is_set():
                            raise

            thread = threading.Thread(target=write)
            before = len(acknowledged)
            thread.start()
            while len(acknowledged) == before and thread.is_alive():
                time.sleep(0.01)
            time.sleep(float(rng.uniform(0, 0.5)))
            victims = [server.process.pid, *server.workers()]
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            stop.set()
            thread.join(60)
        with WOHIndex.open(path) as index:
            for key, _ in acknowledged:
                assert key in index or key in removed or _unsure(index, key)
                assert f"{key[:-2]}.1" in index
            for item in index.items():
                if (item.key or "").startswith("w"):
                    family = [f"{item.key.rsplit('.', 1)[0]}.{i}" for i in (1, 2)]
                    assert all(key in index for key in family)
            for key in removed:
                assert key not in index
            index.add(served.stream(1, start=10_000 + life).features)  # the next writer repairs
        assert WOHIndex.verify(path) == []
    assert acknowledged


def _unsure(index, key):
    """Whether its removal may have been committed, though nobody was told."""
    return int(key.split(".")[1]) % 4 == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--index", "missing.woh"], "no index"),
        (["--host", "0.0.0.0"], "--token-file"),  # noqa: S104
        (["--writable"], "--token-file"),
        (["--token-file", "missing.txt"], "missing.txt"),
        (["--encoder", "onnx:missing.onnx"], "missing.onnx"),
        (["--refine", "missing.npy"], "missing.npy"),
        (["--host", "no.such.host.invalid", "--token-file", "token.txt"], "cannot listen"),
        (["--port", "{taken}"], "in use"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(path, tmp_path, options, told):
    served.token_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = [option.replace("{taken}", port) for option in options]
        done = run(tmp_path, "serve", "--index", path, "--port", "0", *options)
    assert done.returncode == 1
    assert told.encode() in done.stderr
    assert done.stderr.startswith(b"Error: ")
    assert done.stderr.count(b"\n") == 1
