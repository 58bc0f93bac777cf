"""Codes in PostgreSQL with pgvector: `bit(n)` columns, `<~>`, steps that are seen whole or not at all.

A score is bounded in SQL by distances. Whole numbers W = Σ 2^p s_p, each s_p of ±1, have with a code of ±1
the product Σ 2^p (bits - 2 d_p), where d_p is the distance of the code and s_p. One scan finds the rows with
the highest bounds; the lowest of these bounds is one for all other rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import EngineError, InputError
from woh_faiss.validate import short

from .candidates import Asked, Bytes, Found, Ids, Weights, short_list
from .engine import Address, CodeRows, PushState, hidden

if TYPE_CHECKING:
    from psycopg.sql import Composed, Identifier

#: Seconds to wait for a server, unless the URL has connect_timeout.
_PATIENCE = 10
#: Rows the server sends at a time.
_BLOCK = 50_000
#: Distances a half that a bound is made of. It is off by 4% of the score. One distance more halves that and
#: costs some 8 ms among 100,000 rows.
_PLANES = 4
#: Rows asked for at first, of k.
_TIMES, _SPARE = 4, 200
#: What a bound of the instance term is the eighth power of, at least: far less than any rounding, and no
#: underflow, which PostgreSQL takes for an error.
_LEAST = 0.01
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
        columns += "".join(f", {half} bit({bits}) NOT NULL" for half, bits in _halves(state)) + ", key text"
        columns += ", tags text[] NOT NULL, metadata jsonb NOT NULL" if state.tags else ""
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
        columns: dict[str, Any] = {
            "id": rows.ids.tolist(),
            "seq": rows.seq.tolist(),
            "round": rows.rounds.tolist(),
            "stamp": rows.stamps.tolist(),
            "key": rows.keys,
        }
        for half, codes in (("learned", rows.learned), ("instance", rows.instance)):
            if codes.shape[1]:
                columns[half] = _bit_strings(codes)
        if rows.tags is not None:
            columns["tags"] = [list(tags) for tags in rows.tags]
            columns["metadata"] = [json.dumps(held) for held in rows.metadata]
        with self._failures():
            copy = self._compose(f"COPY {{table}} ({', '.join(columns)}) FROM STDIN")
            with self._run.cursor() as cursor, cursor.copy(copy) as sending:
                for row in zip(*columns.values(), strict=True):
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
                        "CREATE INDEX IF NOT EXISTS {index} ON {table} "
                        f"USING hnsw (({_code(state)}) bit_hamming_ops)",
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See `Engine.reading`."""
        with self._failures("check that it runs, then ask again"), self._run.transaction():
            self._run.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def nearest(self, codes: Bytes, k: int, state: PushState) -> list[Found]:
        """See `Engine.nearest`; a statement a query, which large tables share out to parallel workers."""
        r = state.learned
        if state.approximate:
            wide = str(min(max(k, _EF_SEARCH), _MOST_EF_SEARCH))
            self._run.execute("SELECT set_config('hnsw.ef_search', %s, true)", (wide,))
            far = f"{_code(state)} <~> %s::bit({r + state.instance})"
            asked = [[text] for text in _bit_strings(codes)]
        else:  # a bare distance may go through an index that somebody made, a sum never does
            far = "0 + " + " + ".join(f"({half} <~> %s::bit({bits}))" for half, bits in _halves(state))
            asked = [[part for part in (text[:r], text[r:]) if part] for text in _bit_strings(codes)]
        select = f"SELECT {_columns(state)}, {far} AS far FROM {{table}} ORDER BY far, seq LIMIT %s"  # noqa: S608
        return [_found(self._rows(select, [*texts, k]), state) for texts in asked]

    def best(self, asked: Asked, k: int, state: PushState) -> list[tuple[Found, float]]:
        """See `Engine.best`."""
        if state.approximate:
            return [(found, -np.inf) for found in self.nearest(asked.codes, short_list(k), state)]
        most, answers = _TIMES * k + _SPARE, []
        for bound, values in _bounds(asked, state):
            select = f"SELECT {_columns(state)}, {bound} AS bound FROM {{table}} ORDER BY bound DESC LIMIT %s"  # noqa: S608
            rows = self._rows(select, [*values, most])
            answers.append((_found(rows, state), rows[-1][-1] if len(rows) == most else -np.inf))
        return answers

    def reaching(
        self, asked: Asked, least: NDArray[np.float64], k: int, state: PushState
    ) -> Iterator[tuple[int, Found]]:
        """See `Engine.reaching`; rows of a crowd of equal codes stay there, but for the first."""
        counting = ", ".join(asked.counting)
        for i, (bound, values) in enumerate(_bounds(asked, state)):
            select = (
                f"SELECT {_columns(state)} FROM ("  # noqa: S608
                f"SELECT *, row_number() OVER (PARTITION BY {counting} ORDER BY seq) AS place "
                f"FROM {{table}} WHERE {bound} >= %s) AS near WHERE place <= %s"
            )
            with self._run.cursor() as cursor:
                rows = cursor.stream(self._compose(select), [*values, float(least[i]), k])
                while block := list(islice(rows, _BLOCK)):
                    yield i, _found(block, state)

    def _rows(self, select: str, values: list[Any]) -> list[Any]:
        # Planned for these values: a plan for any would convert the bits for each row.
        return self._run.execute(self._compose(select), values, prepare=False).fetchall()

    def close(self) -> None:
        """See `Engine.close`."""
        self._run.close()


def _halves(state: PushState) -> list[tuple[str, int]]:
    """The columns of codes, and their bits."""
    halves = ("learned", state.learned), ("instance", state.instance)
    return [(half, bits) for half, bits in halves if bits]


def _columns(state: PushState) -> str:
    """The columns of rows that are found. A whole code in their place would be made for each row there is."""
    return ", ".join(["id", "seq", *(half for half, _ in _halves(state))])


def _code(state: PushState) -> str:
    """A whole code, in SQL."""
    halves = _halves(state)
    if len(halves) == 1:
        return halves[0][0]
    return f"(learned || instance)::bit({state.learned + state.instance})"


def _bounds(asked: Asked, state: PushState) -> Iterator[tuple[str, list[Any]]]:
    """Of each query what is at least the score of a row, in SQL, and its values."""
    halves, bits = asked.weights(_PLANES), dict(_halves(state))
    for i in range(len(asked)):
        terms, values = [], []
        for half, weights in halves.items():
            sums, more = _bound_of_sum(half, bits[half], weights, i)
            terms.append(sums)
            values += more
        if len(terms) == 2:
            terms[1] = f"greatest({terms[1]}, {_LEAST}) ^ 8"
        yield " + ".join(terms), values


def _bound_of_sum(half: str, bits: int, weights: Weights, query: int) -> tuple[str, list[Any]]:
    """What is at least h·b, in SQL, and its values."""
    unit, error = float(weights.unit[query]), float(weights.error[query])
    planes = weights.planes(query)
    distances = " + ".join(f"{1 << p} * ({half} <~> %s::bit({bits}))" for p in range(len(planes)))
    first = weights.top * bits * unit + error
    return f"(%s::float8 - %s::float8 * ({distances}))", [first, 2 * unit, *map(_text, planes)]


def _found(rows: list[Any], state: PushState) -> Found:
    """Rows that begin with `_columns`."""
    ids, seq = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    end = 2 + len(_halves(state))
    text = np.frombuffer("".join(half for row in rows for half in row[2:end]).encode("ascii"), np.uint8)
    bits = (text - np.uint8(ord("0"))).reshape(len(rows), state.learned + state.instance)
    return Found(ids, seq, np.packbits(bits, axis=1, bitorder="little"))


def _bit_strings(codes: Bytes) -> list[str]:
    """Codes as PostgreSQL writes them: the first character is bit 0, the lowest of the first byte."""
    return [_text(row) for row in np.unpackbits(codes, axis=1, bitorder="little")]


def _text(bits: NDArray[Any]) -> str:
    return (bits + np.uint8(ord("0"))).tobytes().decode("ascii")
