"""Codes in Milvus, or Milvus Lite in a file: a BINARY_VECTOR of the same bytes that Faiss stores.

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

from woh_faiss.errors import EngineError, InputError

from .engine import Address, CodeRows, Ids, PushState, hidden

#: Milvus's own limit on answers to a query.
_MOST = 16_384
#: Neighbours that can be asked for: ties are told apart by asking for more.
_MOST_K = 10_000
#: Queries, or rows, in one message.
_QUERIES, _BLOCK = 64, 10_000
#: Where the user and password may be, instead of in the URL.
_TOKEN = "MILVUS_TOKEN"  # noqa: S105 - its name
#: What the state's collection says while the other one is being made.
_UNMADE = "unmade"
_STATE_FIELDS = {"id", "code", "state"}
#: Clusters of the approximate index, and how many of them a query looks at.
_CLUSTERS, _LOOKED_AT = 1024, 64


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
        self._push = ""
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
            self._make(self._state_name, 8, columns, {"index_type": "BIN_FLAT"})
            self._say(replace(state, busy=_UNMADE))
            columns = {name: (kind.INT64, {}) for name in ("seq", "round", "stamp")}
            columns["key"] = kind.VARCHAR, {"max_length": 65_535}
            if state.tags:
                columns["tags"] = kind.JSON, {}
            index: dict[str, Any] = {"index_type": "BIN_FLAT"}
            if state.approximate:
                index = {"index_type": "BIN_IVF_FLAT", "params": {"nlist": _CLUSTERS}}
            self._make(self._name, state.bits, columns, index)
            self._say(state)

    def _make(self, name: str, bits: int, columns: dict[str, Any], index: dict[str, Any]) -> None:
        kind = self._lib.DataType
        schema = self._run.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kind.INT64, is_primary=True)
        schema.add_field("code", kind.BINARY_VECTOR, dim=bits)
        for column, (datatype, options) in columns.items():
            schema.add_field(column, datatype, **options)
        indexes = self._run.prepare_index_params()
        indexes.add_index("code", metric_type="HAMMING", **index)
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
        self._push = uuid.uuid4().hex
        with self._failures():
            self._say(replace(state, busy=self._push))

    def delete(self, ids: Ids) -> None:
        """See `Engine.delete`."""
        if len(ids):
            with self._failures():
                self._run.delete(self._name, ids=ids.tolist())

    def put(self, rows: CodeRows, replaced: Ids) -> None:
        """See `Engine.put`; what is there is replaced, so that a push can be sent twice."""
        columns: dict[str, Any] = {
            "id": rows.ids.tolist(),
            "seq": rows.seq.tolist(),
            "round": rows.rounds.tolist(),
            "stamp": rows.stamps.tolist(),
            "code": [code.tobytes() for code in rows.codes],
            "key": [key or "" for key in rows.keys],  # no key is empty, and Milvus Lite knows no null
        }
        if rows.tags is not None:
            columns["tags"] = [list(tags) for tags in rows.tags]
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
            blocks = self._run.query_iterator(
                self._name, batch_size=_BLOCK, filter="", output_fields=["id", "stamp", "seq"]
            )
            while block := blocks.next():
                rows = [(row["id"], row["stamp"], row["seq"]) for row in block]
                ids, stamps, seq = np.array(rows, np.int64).T
                yield ids, stamps, seq
            blocks.close()

    def search(self, codes: NDArray[np.uint8], k: int, state: PushState) -> list[list[tuple[int, int]]]:
        """See `Engine.search`."""
        if k > _MOST_K:
            raise InputError(f"k is {k:,}; of Milvus at most {_MOST_K:,} neighbours can be asked for")
        found: list[list[tuple[int, int]]] = []
        with self._failures("check that it runs, then ask again"):
            for start in range(0, len(codes), _QUERIES):
                some = [code.tobytes() for code in codes[start : start + _QUERIES]]
                params = {"nprobe": _LOOKED_AT} if state.approximate else {}
                for code, hits in zip(some, self._hits(some, k + 1, params), strict=True):
                    if not state.approximate and len(hits) > k and hits[k - 1][0] == hits[k][0]:
                        edge = hits[k - 1][0]
                        nearer = [hit for hit in hits if hit[0] < edge]
                        hits = nearer + self._first(code, edge, k - len(nearer))
                    found.append([(distance, id_) for distance, _, id_ in hits[:k]])
        return found

    def _hits(
        self, codes: list[bytes], limit: int, params: dict[str, Any], among: str = ""
    ) -> list[list[tuple[int, int, int]]]:
        """(distance, seq, id) of the nearest `limit` rows, sorted; which of the farthest is by chance."""
        answers = self._run.search(
            self._name,
            data=codes,
            anns_field="code",
            limit=limit,
            filter=among,
            output_fields=["seq"],
            search_params={"metric_type": "HAMMING", "params": params},
        )
        return [
            sorted((int(hit["distance"]), hit["entity"]["seq"], hit["id"]) for hit in hits)
            for hits in answers
        ]

    def _first(self, code: bytes, distance: int, need: int) -> list[tuple[int, int, int]]:
        """The first `need` rows, by seq, at exactly this distance, of which there are that many."""
        ring, among = {"radius": distance + 1.0, "range_filter": float(distance)}, ""
        while True:
            (hits,) = self._hits([code], _MOST, ring, among)
            if len(hits) < _MOST:
                return hits[:need]
            # There may be more, but those sought are none beyond the `need` first of any that are there.
            among = f"seq <= {hits[need - 1][1]}"

    def close(self) -> None:
        """See `Engine.close`; a server for a file ends with this process."""
        with self._failures():
            self._run.close()
