"""The routes of /v1, and those that a supervisor asks.

The event loop reads bodies; whatever computes runs in `Turns`' threads.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from . import replies
from .bodies import FORM, PICTURES, Id, ItemsBody, SearchBody, body_of, form_fields, media_of, parsed
from .metrics import Metrics
from .problems import MEDIA, Problem
from .replies import reply
from .service import Service
from .turns import TOGETHER, Batches, Turns

#: Bytes of a body up to which the event loop parses it: some 0.1 ms.
_SMALL = 1 << 16
_Ids = Annotated[list[Id] | None, Query(alias="id", description="May be given many times.")]
_Keys = Annotated[list[str] | None, Query(alias="key", description="May be given many times.")]
_Where = Annotated[str | None, Query(description="A filter, such as \"price < 20 and 'beach' in tags\".")]


def api_routes(service: Service, turns: Turns, writing: Turns, metrics: Metrics) -> APIRouter:
    """The routes of an API for a service; threads of `turns` answer, that of `writing` writes."""
    problem = {"description": "What went wrong, in one line", "content": {MEDIA: {}}, "model": Problem}
    router = APIRouter(responses={"4XX": problem, "5XX": problem})
    settings = service.settings
    batches = Batches(service, turns)

    def width() -> int:
        return service.current().d

    # ---- searches ------------------------------------------------------------------------------------

    @router.post(
        "/v1/search",
        openapi_extra=body_of(SearchBody, form=True),
        responses={200: {"model": replies.SearchReply}},
    )
    async def search(request: Request) -> Response:
        """Find the items nearest to each query, the nearest first."""
        media = media_of(request.headers.get("content-type", ""))
        if media == FORM:
            return await by_form(request)
        body = await request.body()
        asked = packed = None
        if len(body) <= _SMALL:
            asked, packed = parsed(SearchBody, body, media)
            xq = asked.rows(packed, width)
            if xq is not None and len(xq) <= TOGETHER and _vectors_alone(asked):
                xq = np.asarray(xq) if _even(asked.vectors) else None
                if xq is not None:
                    found = await batches.search(xq, asked.how())
                    metrics.queries.inc(len(found.hits))
                    return reply(replies.search_record(found), request)

        def work() -> Response:
            one, of_one = (asked, packed) if asked is not None else parsed(SearchBody, body, media)
            found = service.search_all(one.queries(one.rows(of_one, width)), one.how())
            metrics.queries.inc(len(found.hits))
            return reply(replies.search_record(found), request)

        return await turns.run(work)

    async def by_form(request: Request) -> Response:
        async with request.form(max_files=settings.max_queries, max_fields=1000) as form:

            def work() -> Response:
                asked, pictures = form_fields(form)
                if not pictures:
                    raise HTTPException(422, f"{PICTURES}: Field required")
                found = service.search_all(asked.queries(images=pictures), asked.how())
                metrics.queries.inc(len(found.hits))
                return reply(replies.search_record(found), request)

            return await turns.run(work)

    # ---- items ---------------------------------------------------------------------------------------

    @router.get("/v1/items/{id}", responses={200: {"model": replies.ItemReply}})
    async def item(request: Request, id: Id) -> Response:  # noqa: A002 - what it is called everywhere
        """One item by its id."""
        return await turns.run(lambda: reply(replies.item_record(service.item(id)), request))

    @router.get("/v1/items", responses={200: {"model": replies.ItemsReply}})
    async def items(
        request: Request,
        ids: _Ids = None,
        keys: _Keys = None,
        where: _Where = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """Items by id, key or filter, or all of them, in the order they were appended."""

        def work() -> Response:
            found, total = service.items(ids=ids, keys=keys, where=where, limit=limit, offset=offset)
            return reply({"items": [*map(replies.item_record, found)], "total": total}, request)

        return await turns.run(work)

    @router.get("/v1/tags", responses={200: {"model": replies.TagsReply}})
    async def tags(
        request: Request,
        prefix: str = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> Response:
        """Tags that begin with a text, the most frequent first."""

        def work() -> Response:
            found = service.tags(prefix, limit)
            return reply({"tags": [{"tag": tag, "count": count} for tag, count in found]}, request)

        return await turns.run(work)

    # ---- writes --------------------------------------------------------------------------------------

    def check_writer(request: Request) -> None:
        if not settings.writable:
            raise HTTPException(403, "this server only reads; start it with --writable and --token-file")
        if not request.scope["state"]["bearer"]:
            raise HTTPException(403, "writing needs the token as Authorization: Bearer TOKEN")

    async def written(request: Request, learn: bool) -> Response:
        check_writer(request)
        media = media_of(request.headers.get("content-type", ""))
        if media == FORM:
            raise HTTPException(415, "items come as JSON or msgpack, not as a form")
        body = await request.body()

        def work() -> Response:
            asked, packed = parsed(ItemsBody, body, media)
            done, left_out = service.add(
                vectors=asked.rows(packed, width),
                texts=asked.texts,
                tags=asked.tags,
                ids=asked.ids,
                keys=asked.keys,
                metadata=asked.metadata,
                learn=learn,
                on_duplicate=asked.on_duplicate,
            )
            return reply(replies.round_record(done, left_out), request, 201)

        return await writing.run(work)

    @router.post(
        "/v1/items",
        status_code=201,
        openapi_extra=body_of(ItemsBody),
        responses={201: {"model": replies.RoundReply}},
    )
    async def add(request: Request) -> Response:
        """Encode items with the newest hash function and append them; nothing is learned."""
        return await written(request, learn=False)

    @router.post(
        "/v1/rounds",
        status_code=201,
        openapi_extra=body_of(ItemsBody),
        responses={201: {"model": replies.RoundReply}},
    )
    async def update(request: Request) -> Response:
        """Learn from items and append them: a round."""
        return await written(request, learn=True)

    @router.delete("/v1/items", responses={200: {"model": replies.RemovedReply}})
    async def remove(
        request: Request,
        ids: _Ids = None,
        keys: _Keys = None,
        where: _Where = None,
        ignore_missing: bool = False,
    ) -> Response:
        """Take items out of every answer, by id, key or filter, in one commit."""
        check_writer(request)

        def work() -> Response:
            gone = service.remove(ids=ids, keys=keys, where=where, ignore_missing=ignore_missing)
            return reply({"removed": gone, "ntotal": len(service.current())}, request)

        return await writing.run(work)

    # ---- what there is -------------------------------------------------------------------------------

    @router.get("/v1/info", responses={200: {"model": dict[str, Any]}})
    async def info(
        request: Request, history: Annotated[int, Query(ge=0, le=10_000, description="Rounds.")] = 10
    ) -> Response:
        """What the index is: counts, sizes, model, encoder, and its newest rounds."""

        def work() -> Response:
            found = service.info()
            found["history"] = found["history"][-history:] if history else []
            return reply({**found, "writable": settings.writable}, request)

        return await turns.run(work)

    @router.get("/healthz", responses={200: {"model": replies.StatusReply}})
    async def healthz(request: Request) -> Response:
        """Whether the process answers."""
        return reply({"status": "ok"}, request)

    @router.get("/readyz", responses={200: {"model": replies.StatusReply}})
    def readyz(request: Request) -> Response:
        """Whether it can answer searches; 503 says why not."""
        service.current()
        return reply({"status": "ready"}, request)

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    def figures() -> Response:
        """Figures for Prometheus."""
        return metrics.told(service)

    return router


def _vectors_alone(asked: SearchBody) -> bool:
    others = (asked.ids, asked.keys, asked.tags, asked.texts)
    return not asked.refine and all(other is None for other in others)


def _even(vectors: list[list[float]] | None) -> bool:
    """Whether they are rows of one width, or came otherwise."""
    return vectors is None or (bool(vectors) and len({len(row) for row in vectors}) == 1)
