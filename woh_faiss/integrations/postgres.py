"""Codes in PostgreSQL with pgvector: a `bit(n)` column, `<~>`, steps that are seen whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import EngineError, InputError
from woh_faiss.validate import short

from .engine import Address, CodeRows, Ids, PushState, hidden

if TYPE_CHECKING:
    from psycopg.sql import Composed, Identifier

#: Seconds to wait for a server, unless the URL has connect_timeout.
_PATIENCE = 10
#: Rows the server sends at a time.
_BLOCK = 50_000
#: pgvector's own limits: of what an HNSW search looks at, unless more is asked for.
_EF_SEARCH, _MOST_EF_SEARCH = 40, 1000


class Postgres:
    """One table; its state is the table's comment, which is written in the same transaction as its rows."""

    def __init__(self, address: Address) -> None:
        before, at, after = address.place.rpartition("@")
        host, _, path = after.partition("/")
        database, _, in_path = path.partition("/")
        named = dict(address.options).get("table", "")
        table = unquote(named or in_path)
        # libpq takes a database of "host=... password=..." for all settings; no host has a quoted "@".
        misplaced = "=" in unquote(unquote(database)) or "@" in unquote(unquote(host))
        if not (database and table) or (named and in_path) or misplaced:
            raise address.refused()
        if table.rpartition(".")[0].rpartition(".")[2].startswith("pg_"):
            raise InputError(
                f"table is {short(table)}, whose schema is PostgreSQL's own or ends with the connection; "
                "give another one"
            )
        self.shown = f"{address.shown.partition('/' + path)[0]}/{database}?table={table}"
        try:
            import psycopg
            from psycopg import conninfo, sql
        except ImportError as error:
            raise EngineError(
                f"postgresql:// needs psycopg ({error}); pip install 'woh-faiss[postgres]'"
            ) from error
        self._sql, self._error = sql, psycopg.Error
        self._idle = psycopg.pq.TransactionStatus.IDLE
        options = "&".join(f"{name}={value}" for name, value in address.options if name != "table")
        try:
            settings: Any = conninfo.conninfo_to_dict(f"postgresql://{before}{at}{host}/{database}?{options}")
        except psycopg.Error:  # its message may quote the password
            raise address.refused() from None
        self._secrets = [str(settings[name]) for name in ("password", "sslpassword") if settings.get(name)]
        self._table: Identifier = sql.Identifier(*table.split("."))
        self._index: Identifier = sql.Identifier(f"{table.rpartition('.')[2][:50]}_woh_hnsw")
        with self._failures("check that it runs, and host, port, user and password"):
            # No transaction but those of a step: a reader holds nothing between its queries.
            self._run = psycopg.connect(**{"connect_timeout": _PATIENCE, **settings}, autocommit=True)

    @contextmanager
    def _failures(self, way_out: str = "nothing of this step was kept") -> Iterator[None]:
        """The server's errors inside as an EngineError of one line, without the password."""
        try:
            yield
        except self._error as error:
            text = " ".join(str(error).split())
            told = hidden(text, self._secrets)
            raise EngineError(f"{self.shown}: {told}; {way_out}") from (error if told == text else None)

    def _compose(self, text: str, **parts: Any) -> Composed:
        made: Composed = self._sql.SQL(text).format(table=self._table, **parts)
        return made

    def _one(self, text: str, *values: Any) -> Any:
        row = self._run.execute(self._compose(text), values).fetchone()
        return None if row is None else row[0]

    def exists(self) -> bool:
        """See `Engine.exists`."""
        with self._failures():
            return self._one("SELECT to_regclass(%s)", self._table.as_string(self._run)) is not None

    def state(self) -> PushState | None:
        """See `Engine.state`."""
        with self._failures():
            name = self._table.as_string(self._run)
            comment = self._one("SELECT obj_description(to_regclass(%s), 'pg_class')", name)
        return PushState.parse(comment, self.shown)

    def create(self, state: PushState) -> None:
        """See `Engine.create`; committed with the first step."""
        columns = "id bigint PRIMARY KEY, seq bigint NOT NULL, round integer NOT NULL, stamp bigint NOT NULL"
        columns += f", code bit({state.bits}) NOT NULL, key text"
        columns += ", tags text[] NOT NULL" if state.tags else ""
        with self._failures():
            self._run.execute("BEGIN")
            self._run.execute("CREATE EXTENSION IF NOT EXISTS vector")
            self._run.execute(self._compose("DROP TABLE IF EXISTS {table}"))
            self._run.execute(self._compose(f"CREATE TABLE {{table}} ({columns})"))
            self._comment(state)

    def _comment(self, state: PushState) -> None:
        self._run.execute(self._compose("COMMENT ON TABLE {table} IS {state}", state=state.text()))

    def begin(self, state: PushState) -> None:
        """See `Engine.begin`; readers go on, another push waits."""
        with self._failures():
            if self._run.info.transaction_status == self._idle:
                self._run.execute("BEGIN")
            self._run.execute(self._compose("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
        if self.state() != state:
            raise EngineError(f"another push changed {self.shown} meanwhile; push again")

    def delete(self, ids: Ids) -> None:
        """See `Engine.delete`."""
        if len(ids):
            with self._failures():
                self._run.execute(self._compose("DELETE FROM {table} WHERE id = ANY(%s)"), (ids.tolist(),))

    def put(self, rows: CodeRows, replaced: Ids) -> None:
        """See `Engine.put`."""
        self.delete(replaced)
        columns: list[Any] = [
            *(column.tolist() for column in (rows.ids, rows.seq, rows.rounds, rows.stamps)),
            bit_strings(rows.codes),
            rows.keys,
        ]
        names = "id, seq, round, stamp, code, key"
        if rows.tags is not None:
            columns, names = [*columns, [list(tags) for tags in rows.tags]], names + ", tags"
        with self._failures():
            copy = self._compose(f"COPY {{table}} ({names}) FROM STDIN")
            with self._run.cursor() as cursor, cursor.copy(copy) as sending:
                for row in zip(*columns, strict=True):
                    sending.write_row(row)

    def commit(self, state: PushState) -> None:
        """See `Engine.commit`."""
        with self._failures():
            self._comment(state)
            self._run.commit()

    def finish(self, state: PushState) -> None:
        """See `Engine.finish`; an index is built faster over rows that are there."""
        if state.approximate:
            with self._failures("the rows are there, push again for the index"):
                self._run.execute(
                    self._compose(
                        "CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw (code bit_hamming_ops)",
                        index=self._index,
                    )
                )

    def stored(self) -> Iterator[tuple[Ids, Ids, Ids]]:
        """See `Engine.stored`."""
        with (
            self._failures(),
            self._run.transaction(),
            self._run.cursor(name="woh_stored") as cursor,
        ):
            cursor.execute(self._compose("SELECT id, stamp, seq FROM {table}"))
            while block := cursor.fetchmany(_BLOCK):
                ids, stamps, seq = np.array(block, np.int64).T
                yield ids, stamps, seq

    def search(self, codes: NDArray[np.uint8], k: int, state: PushState) -> list[list[tuple[int, int]]]:
        """See `Engine.search`; a statement a query, which large tables share out to parallel workers."""
        distance = f"code <~> %s::bit({state.bits})"
        # The bare operator may go through HNSW, ours or somebody's; a sum of it never does.
        order = distance if state.approximate else f"({distance}) + 0"
        select = self._compose(f"SELECT {order} AS far, id FROM {{table}} ORDER BY far, seq LIMIT %s")  # noqa: S608
        found = []
        with self._failures("check that it runs, then ask again"), self._run.transaction():
            if state.approximate:
                wide = str(min(max(k, _EF_SEARCH), _MOST_EF_SEARCH))
                self._run.execute("SELECT set_config('hnsw.ef_search', %s, true)", (wide,))
            for code in bit_strings(codes):
                rows = self._run.execute(select, (code, k))
                found.append([(int(far), id_) for far, id_ in rows])
        return found

    def close(self) -> None:
        """See `Engine.close`."""
        self._run.close()


def bit_strings(codes: NDArray[np.uint8]) -> list[str]:
    """Codes as PostgreSQL writes them: the first character is bit 0, the lowest of the first byte."""
    bits = np.unpackbits(codes, axis=1, bitorder="little") + np.uint8(ord("0"))
    return [row.tobytes().decode("ascii") for row in bits]
