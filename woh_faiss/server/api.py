"""The routes of /v1, and those that a supervisor asks.

Bodies are read by the event loop; whatever computes, parses or prints runs in a thread of a few, in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from woh_faiss.index.neighbours import By

from .problems import Problem
from .service import Answers, Hit, How, Queries, Service

T = TypeVar("T")
Id = Annotated[int, Field(ge=0, lt=2**63)]


class SearchBody(BaseModel):
    """One or several queries, each of one kind, and how they are answered."""

    model_config = ConfigDict(extra="forbid")

    vectors: list[list[float]] | None = Field(None, description="Rows of features, (nq, d).")
    ids: list[Id] | None = Field(None, description="Ids of items: what is like them.")
    keys: list[str] | None = Field(None, description="Keys of items: what is like them.")
    tags: list[list[str]] | None = Field(None, description="A list of tags a query.")
    texts: list[str] | None = Field(
        None, description="Texts, by the encoder, or else by their words as tags."
    )
    k: int = Field(10, ge=1, description="Answers a query.")
    offset: int = Field(0, ge=0, description="Answers that are passed over.")
    by: By = Field("both", description="What answers are ordered by.")
    where: str | None = Field(None, description="A filter, such as \"price < 20 and 'beach' in tags\".")
    expand: int = Field(3, ge=0, description="First answers that are asked with again.")
    ann: str | None = Field(None, description='"ivf": look at a part of the codes only.')
    refine: bool = Field(False, description="Order by the original features that the server has.")
    refine_k: int | None = Field(None, ge=1, description="How many answers `refine` orders.")
    explain: bool = Field(False, description="Answer with `kind` and `instance`, the terms of the score.")

    def queries(self) -> Queries:
        """What is asked with."""
        names = ("vectors", "ids", "keys", "tags", "texts")
        return Queries(**{name: getattr(self, name) for name in names})

    def how(self) -> How:
        """How it is answered."""
        names = ("k", "offset", "by", "where", "expand", "ann", "refine", "refine_k", "explain")
        return How(**{name: getattr(self, name) for name in names})


class Turns:
    """Threads that compute, as many at once as there are cores: more would only wait for each other."""

    def __init__(self, threads: int, timeout: float) -> None:
        self._limiter, self._timeout = anyio.CapacityLimiter(threads), timeout

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives; HTTPException where its turn does not come in time."""
        me = object()
        try:
            with anyio.fail_after(self._timeout):
                await self._limiter.acquire_on_behalf_of(me)
        except TimeoutError:
            raise HTTPException(
                503, "too many requests are waiting; try again", {"Retry-After": "1"}
            ) from None
        try:
            return await anyio.to_thread.run_sync(work)
        finally:
            self._limiter.release_on_behalf_of(me)


def api_routes(service: Service) -> APIRouter:
    """The routes of an API for a service."""
    router = APIRouter(responses={"4XX": {"model": Problem}, "5XX": {"model": Problem}})
    turns = Turns(2, service.settings.timeout)

    @router.post("/v1/search", openapi_extra=_body(SearchBody))
    async def search(request: Request) -> Response:
        """Find the items nearest to each query."""
        body = await request.body()

        def work() -> Response:
            asked = SearchBody.model_validate_json(body)
            return _json(_answers(service.search_all(asked.queries(), asked.how())))

        return await turns.run(work)

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    return router


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that a route reads itself."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _json(record: Any, status: int = 200) -> Response:
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return Response(text, status, media_type="application/json")


def _answers(found: Answers) -> dict[str, Any]:
    """Answers as JSON has them."""
    answers = [[_record(hit, found.measure) for hit in hits] for hits in found.hits]
    return {"round": found.round, "answers": answers, "notes": found.notes}


def _record(hit: Hit, measure: str = "score") -> dict[str, Any]:
    record = asdict(hit)
    record[measure] = record.pop("score")
    return {name: value for name, value in record.items() if value is not None or name == "key"}
