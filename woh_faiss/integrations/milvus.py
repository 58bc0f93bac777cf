"""Codes in Milvus, or Milvus Lite in a file: a BINARY_VECTOR of the same bytes that Faiss stores.

Milvus cannot compute with vectors, only order by one. So each half is a vector of ±1 as well, whose inner
products are one term of the score. The best by either term are the first candidates, and the last ones of
both lists bound all other rows (Fagin's threshold). Float16 holds ±1 and whole numbers up to 2,048, and
float32 sums of those, in whatever order they are added: an inner product is exact.

Milvus has no transactions. A second collection, ``<collection>_woh``, holds the state; it says "busy" before
the first change of a step, and the new state after the last. A table that is busy is compared in full by the
next push.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes as binary
from woh_faiss import score
from woh_faiss.errors import EngineError, InputError

from .candidates import Asked, Bytes, Found, Ids, Weights, short_list
from .engine import Address, CodeRows, PushState, hidden

#: Milvus's own limit on answers to a query.
_MOST = 16_384
#: Neighbours that can be asked for: ties are told apart by asking for more.
_MOST_K = 10_000
#: Rows in one message, as they are and as answers to several queries.
_BLOCK, _ANSWERS = 10_000, 65_536
#: Rows of a half's list: of k at first, and then where these prove nothing.
_TIMES, _SPARE, _LONGER = 3, 34, (1024, _MOST)
#: A half's numbers are odd and below 2^11, for float16.
_PLANES = 11
#: Where the user and password may be, instead of in the URL.
_TOKEN = "MILVUS_TOKEN"  # noqa: S105 - its name
#: What the state's collection says while the other one is being made.
_UNMADE = "unmade"
_STATE_FIELDS = {"id", "code", "state"}
#: Clusters of the approximate index, and how many of them a query looks at.
_CLUSTERS, _LOOKED_AT = 1024, 64

#: Distance or inner product, seq, id, and the code in hex.
Hit = tuple[int, int, int, str]


class Milvus:
    """One collection, and the one of its state."""

    def __init__(self, address: Address) -> None:
        local = address.scheme == "milvus+file"
        user, _, after = ("", "", address.place) if local else address.place.rpartition("@")
        found = re.fullmatch("(.+)/()([^/]+)" if local else "([^/]+)/(?:([^/]+)/)?([^/]+)", unquote(after))
        if found is None or address.options or (not local and "@" in unquote(unquote(after))):
            raise address.refused()
        host, database, name = found.groups("")
        uri = host if local else f"{'https' if address.scheme == 'milvus+https' else 'http'}://{host}"
        self.shown, self._name, self._state_name = address.shown, name, f"{name}_woh"
        token = unquote(user) or os.environ.get(_TOKEN, "")
        self._secrets = [secret for secret in (token.partition(":")[2] or token, user) if secret]
        try:
            import grpc
            import pymilvus
        except ImportError as error:
            raise EngineError(
                f"{address.scheme}:// needs pymilvus ({error}); pip install 'woh-faiss[milvus]'"
            ) from error
        self._lib: Any = pymilvus
        self._errors = pymilvus.MilvusException, grpc.RpcError, OSError
        self._push, self._approximate = "", False
        with self._failures("check that it runs, and host, port, user and password"):
            self._run: Any = pymilvus.MilvusClient(uri, token=token, db_name=database)

    @contextmanager
    def _failures(self, way_out: str = "push again") -> Iterator[None]:
        """The library's errors inside as an EngineError of one line, without the password."""
        log = logging.getLogger("pymilvus")  # it also logs each error, with a traceback
        before = log.level
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        except self._errors as error:
            text = " ".join(str(getattr(error, "message", None) or error).split()).rstrip(": ")
            told = hidden(text, self._secrets)
            raise EngineError(f"{self.shown}: {told}; {way_out}") from (error if told == text else None)
        finally:
            log.setLevel(before)

    def exists(self) -> bool:
        """See `Engine.exists`."""
        found = self._found()
        with self._failures():
            return bool(self._run.has_collection(self._name)) and not (found and found.busy == _UNMADE)

    def state(self) -> PushState | None:
        """See `Engine.state`."""
        found = self._found()
        with self._failures():
            there = found is not None and found.busy != _UNMADE and self._run.has_collection(self._name)
        return found if there else None

    def _found(self) -> PushState | None:
        """What the state's collection says."""
        with self._failures():
            rows = self._run.get(self._state_name, ids=[0], output_fields=["state"]) if self._ours() else []
            return PushState.parse(rows[0]["state"], self.shown) if len(rows) else None

    def _ours(self) -> bool:
        """Whether the collection of the state is there, and not somebody else's."""
        if not self._run.has_collection(self._state_name):
            return False
        fields = self._run.describe_collection(self._state_name)["fields"]
        return {field["name"] for field in fields} == _STATE_FIELDS

    def create(self, state: PushState) -> None:
        """See `Engine.create`; what is cut short counts as not there."""
        kind = self._lib.DataType
        with self._failures():
            if self._run.has_collection(self._state_name) and not self._ours():
                raise EngineError(
                    f"{self.shown} needs the collection {self._state_name}, which somebody else made; choose "
                    "another collection"
                )
            for name in (self._name, self._state_name):
                self._run.drop_collection(name)
            columns = {"state": (kind.VARCHAR, {"max_length": 65_535})}
            self._make(self._state_name, 8, columns, {"index_type": "BIN_FLAT"}, {})
            self._say(replace(state, busy=_UNMADE))
            columns = {name: (kind.INT64, {}) for name in ("seq", "round", "stamp")}
            columns["key"] = kind.VARCHAR, {"max_length": 65_535}
            # Milvus Lite fails where a search is to give a binary vector.
            columns["hex"] = kind.VARCHAR, {"max_length": (state.learned + state.instance) // 4}
            if state.tags:
                columns["tags"] = columns["metadata"] = kind.JSON, {}
            index: dict[str, Any] = {"index_type": "BIN_FLAT"}
            halves = {"learned": state.learned, "instance": state.instance}
            if state.approximate:
                index, halves = {"index_type": "BIN_IVF_FLAT", "params": {"nlist": _CLUSTERS}}, {}
            self._make(self._name, state.learned + state.instance, columns, index, halves)
            self._say(state)

    def _make(
        self,
        name: str,
        bits: int,
        columns: dict[str, Any],
        index: dict[str, Any],
        halves: dict[str, int],
    ) -> None:
        kind = self._lib.DataType
        schema = self._run.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kind.INT64, is_primary=True)
        schema.add_field("code", kind.BINARY_VECTOR, dim=bits)
        for column, (datatype, options) in columns.items():
            schema.add_field(column, datatype, **options)
        indexes = self._run.prepare_index_params()
        indexes.add_index("code", metric_type="HAMMING", **index)
        for half, dim in halves.items():
            if dim:
                schema.add_field(half, kind.FLOAT16_VECTOR, dim=dim)
                indexes.add_index(half, index_type="FLAT", metric_type="IP")
        # Strong: what was written is seen by whoever asks next.
        self._run.create_collection(name, schema=schema, consistency_level="Strong")
        self._run.create_index(name, indexes, sync=False)  # of nothing: not worth the half second of waiting
        self._run.load_collection(name)

    def _say(self, state: PushState) -> None:
        self._run.upsert(self._state_name, [{"id": 0, "code": b"\0", "state": state.text()}])

    def begin(self, state: PushState) -> None:
        """See `Engine.begin`; nothing keeps another push out, but `commit` tells if one came."""
        if self.state() != state:
            raise EngineError(f"another push changed {self.shown} meanwhile; push again")
        self._push, self._approximate = uuid.uuid4().hex, state.approximate
        with self._failures():
            self._say(replace(state, busy=self._push))

    def delete(self, ids: Ids) -> None:
        """See `Engine.delete`."""
        if len(ids):
            with self._failures():
                self._run.delete(self._name, ids=ids.tolist())

    def put(self, rows: CodeRows, replaced: Ids) -> None:
        """See `Engine.put`; what is there is replaced, so that a push can be sent twice."""
        packed = np.hstack([rows.learned, rows.instance])
        columns: dict[str, Any] = {
            "id": rows.ids.tolist(),
            "seq": rows.seq.tolist(),
            "round": rows.rounds.tolist(),
            "stamp": rows.stamps.tolist(),
            "code": [code.tobytes() for code in packed],
            "hex": [code.tobytes().hex() for code in packed],
            "key": [key or "" for key in rows.keys],  # no key is empty, and Milvus Lite knows no null
        }
        for half, codes in (("learned", rows.learned), ("instance", rows.instance)):
            if codes.shape[1] and not self._approximate:
                columns[half] = list(binary.unpack(codes).astype(np.float16))
        if rows.tags is not None:
            columns["tags"] = [list(tags) for tags in rows.tags]
            columns["metadata"] = [dict(held) for held in rows.metadata]
        with self._failures():
            self._run.upsert(
                self._name,
                [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            )

    def commit(self, state: PushState) -> None:
        """See `Engine.commit`."""
        found = self.state()
        with self._failures():
            if found is None or found.busy != self._push:
                self._say(replace(state, busy=self._push))  # two pushes mixed: the next compares all
                raise EngineError(f"another push changed {self.shown} at the same time; push again")
            self._say(state)

    def finish(self, state: PushState) -> None:
        """See `Engine.finish`: Milvus keeps its index itself."""

    def stored(self) -> Iterator[tuple[Ids, Ids, Ids]]:
        """See `Engine.stored`."""
        with self._failures():
            for block in self._blocks(["id", "stamp", "seq"]):
                rows = [(row["id"], row["stamp"], row["seq"]) for row in block]
                ids, stamps, seq = np.array(rows, np.int64).T
                yield ids, stamps, seq

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See `Engine.reading`; Milvus keeps no state for its readers."""
        with self._failures("check that it runs, then ask again"):
            yield

    def nearest(self, codes: Bytes, k: int, state: PushState) -> list[Found]:
        """See `Engine.nearest`."""
        _check(k)
        answers: list[Found] = []
        params = {"nprobe": _LOOKED_AT} if state.approximate else {}
        wanted = [code.tobytes() for code in codes]
        for some in _parts(len(wanted), k + 1):
            for code, hits in zip(wanted[some], self._hits(wanted[some], k + 1, params), strict=True):
                if not state.approximate and len(hits) > k and hits[k - 1][0] == hits[k][0]:
                    edge = hits[k - 1][0]
                    nearer = [hit for hit in hits if hit[0] < edge]
                    hits = nearer + self._first(code, edge, k - len(nearer))
                answers.append(_found(hits[:k], state))
        return answers

    def _hits(
        self, codes: list[bytes], limit: int, params: dict[str, Any], among: str = ""
    ) -> list[list[Hit]]:
        """The nearest `limit` rows, sorted; which of the farthest is by chance."""
        search_params = {"metric_type": "HAMMING", "params": params}
        return [sorted(hits) for hits in self._listed("code", codes, limit, search_params, among)]

    def _listed(
        self, field: str, queries: list[bytes], limit: int, params: dict[str, Any], among: str = ""
    ) -> list[list[Hit]]:
        """The first `limit` rows by a vector field, for each query."""
        answers = self._run.search(
            self._name,
            data=queries,
            anns_field=field,
            limit=limit,
            filter=among,
            output_fields=["seq", "hex"],
            search_params=params,
        )
        return [
            [(int(hit["distance"]), hit["entity"]["seq"], hit["id"], hit["entity"]["hex"]) for hit in hits]
            for hits in answers
        ]

    def _first(self, code: bytes, distance: int, need: int) -> list[Hit]:
        """The first `need` rows, by seq, at exactly this distance, of which there are that many."""
        ring, among = {"radius": distance + 1.0, "range_filter": float(distance)}, ""
        while True:
            (hits,) = self._hits([code], _MOST, ring, among)
            if len(hits) < _MOST:
                return hits[:need]
            # There may be more, but those sought are none beyond the `need` first of any that are there.
            among = f"seq <= {hits[need - 1][1]}"

    def best(self, asked: Asked, k: int, state: PushState) -> list[tuple[Found, float]]:
        """See `Engine.best`."""
        _check(k)
        if state.approximate:
            found = self.nearest(asked.codes, min(short_list(k), _MOST_K), state)
            return [(rows, -np.inf) for rows in found]
        return self._lists(asked, min(_TIMES * k + _SPARE, _MOST), state)

    def reaching(
        self, asked: Asked, least: NDArray[np.float64], k: int, state: PushState
    ) -> Iterator[tuple[int, Found]]:
        """See `Engine.reaching`; where no list is long enough, all rows are read."""
        left = list(range(len(asked)))
        for most in _LONGER:
            unproved = []
            for some in _parts(len(left), most):
                for i, (found, beyond) in zip(
                    left[some], self._lists(asked.of(left[some]), most, state), strict=True
                ):
                    if beyond < least[i]:
                        yield i, found
                    else:
                        unproved.append(i)
            left = unproved
        for block in self._blocks(["id", "seq", "hex"]) if left else ():
            found = _found([(0, row["seq"], row["id"], row["hex"]) for row in block], state)
            yield from ((i, found) for i in left)

    def _lists(self, asked: Asked, most: int, state: PushState) -> list[tuple[Found, float]]:
        """The `most` best rows by each half together, and what no other row's score exceeds."""
        ends: dict[str, list[float]] = {}
        rows: list[dict[int, Hit]] = [{} for _ in range(len(asked))]
        for half, weights in asked.weights(_PLANES).items():
            queries = [numbers.tobytes() for numbers in weights.W.astype(np.float16)]
            listed = [
                hits
                for some in _parts(len(queries), most)
                for hits in self._listed(half, queries[some], most, {"metric_type": "IP"})
            ]
            ends[half] = [_end(hits, weights, i, most) for i, hits in enumerate(listed)]
            for known, hits in zip(rows, listed, strict=True):
                known.update((hit[2], hit) for hit in hits)
        bounds = score.combined(
            *(np.array(ends[half]) if half in ends else None for half in ("learned", "instance"))
        )
        return [
            (_found(list(known.values()), state), float(bound))
            for known, bound in zip(rows, bounds, strict=True)
        ]

    def _blocks(self, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
        """All rows, some at a time."""
        blocks = self._run.query_iterator(self._name, batch_size=_BLOCK, filter="", output_fields=fields)
        while block := blocks.next():
            yield block
        blocks.close()

    def close(self) -> None:
        """See `Engine.close`; a server for a file ends with this process."""
        with self._failures():
            self._run.close()


def _check(k: int) -> None:
    """InputError for more neighbours than Milvus lists."""
    if k > _MOST_K:
        raise InputError(f"k is {k:,}; of Milvus at most {_MOST_K:,} neighbours can be asked for")


def _parts(n: int, limit: int) -> Iterator[slice]:
    """n queries for `limit` rows each, in messages of which none is too long."""
    step = max(1, _ANSWERS // limit)
    return (slice(start, start + step) for start in range(0, n, step))


def _end(hits: list[Hit], weights: Weights, query: int, most: int) -> float:
    """What no row outside a list has more of; -inf where there is none."""
    if len(hits) < most:
        return -np.inf
    return float(weights.unit[query] * hits[-1][0] + weights.error[query])


def _found(hits: list[Hit], state: PushState) -> Found:
    ids, seq = (np.array([hit[column] for hit in hits], np.int64) for column in (2, 1))
    packed = np.frombuffer(bytes.fromhex("".join(hit[3] for hit in hits)), np.uint8)
    return Found(ids, seq, packed.reshape(len(hits), (state.learned + state.instance) // 8))
