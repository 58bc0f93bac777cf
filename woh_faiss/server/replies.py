"""What requests are answered with, as JSON or msgpack, and what OpenAPI says of it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from woh_faiss.store import Round

from .bodies import MSGPACK, Cell
from .service import Answers, Hit

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
#: What is told of a round.
_ROUND = ("round", "time", "kind", "n", "removed", "ntotal", "trained", "seconds", "health")


class ItemReply(BaseModel):
    """One item."""

    id: int
    key: str | None = None
    tags: list[str] = Field(default_factory=list)
    trust: float | None = Field(None, description="How far its tags are trusted, 0 to 1.")
    metadata: dict[str, Cell] | None = None


class HitReply(ItemReply):
    """One answer: an item and how near it is, by one of score, distance and cosine."""

    score: float | None = Field(None, description="Higher is nearer.")
    distance: int | None = Field(None, description="Bits that differ, of a search by hamming.")
    cosine: float | None = Field(None, description="Of the original features, of a search with refine.")
    kind: float | None = Field(None, description="With explain: how much it is of the query's kind.")
    instance: float | None = Field(None, description="With explain: how much it is the very item.")


class SearchReply(BaseModel):
    """Answers to all queries, of one committed state."""

    round: int = Field(description="The newest round of that state.")
    answers: list[list[HitReply]] = Field(description="A list a query, the nearest first.")
    notes: list[str] = Field(description="What to know of them, a line each.")


class ItemsReply(BaseModel):
    """Items, and how many there are of them in all."""

    items: list[ItemReply]
    total: int


class RoundReply(BaseModel):
    """A committed round."""

    round: int
    time: float
    kind: str
    n: int
    removed: int
    ntotal: int
    trained: int
    seconds: float
    health: dict[str, Any] | None = None
    left_out: int = Field(description="Items of the request that were left out as duplicates.")


class RemovedReply(BaseModel):
    """How many items were removed, and how many are left."""

    removed: int
    ntotal: int


class TagReply(BaseModel):
    """A tag and how often it was seen."""

    tag: str
    count: int


class TagsReply(BaseModel):
    """Tags, the most frequent first."""

    tags: list[TagReply]


class StatusReply(BaseModel):
    """That a process is there."""

    status: str


def reply(record: Any, request: Request, status: int = 200) -> Response:
    """A record in the form that the client accepts: JSON, or msgpack if it asks for that."""
    if "msgpack" in request.headers.get("accept", ""):
        import msgpack

        return Response(msgpack.packb(record), status, media_type=MSGPACK)
    return Response(_encode(record), status, media_type="application/json")


def search_record(found: Answers) -> dict[str, Any]:
    """A `SearchReply`."""
    measure = found.measure
    answers = [[{"id": hit.id, measure: hit.score} | _more(hit) for hit in hits] for hits in found.hits]
    return {"round": found.round, "answers": answers, "notes": found.notes}


def item_record(item: Hit) -> dict[str, Any]:
    """An `ItemReply`."""
    return {"id": item.id} | _more(item)


def round_record(done: Round, left_out: int) -> dict[str, Any]:
    """A `RoundReply`."""
    return {name: getattr(done, name) for name in _ROUND} | {"left_out": left_out}


def _more(hit: Hit) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if hit.tags is not None:
        record = {"key": hit.key, "tags": hit.tags, "trust": hit.trust}
        if hit.metadata:
            record["metadata"] = dict(hit.metadata)
    if hit.kind is not None:
        record["kind"], record["instance"] = hit.kind, hit.instance
    return record
