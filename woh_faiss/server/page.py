"""The page for people: searches, what the index knows, thumbnails, and the files that they need.

Forms and links do all of it; `static/page.js` makes it quicker. What computes runs in threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from markupsafe import escape
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from woh_faiss.errors import InputError, WOHError
from woh_faiss.html_template import html_template
from woh_faiss.index.index import WOHIndex
from woh_faiss.store import Round
from woh_faiss.tags.tag_text import normalise
from woh_faiss.thumbnails import Thumbnails

from .page_query import LONGEST, MOST_K, PageQuery, completions
from .problems import status_of
from .service import Hit, SearchRequest, Service
from .sessions import LOGIN, LOGOUT, PAGES, Sessions
from .turns import Turns

_HERE = Path(__file__).parent
#: Pixels of the longest side of a thumbnail: of twice the width at which it is shown.
SIDE = 384
#: Pictures that are drawn at once: each may need 400 MB while it is decoded.
DRAWN_AT_ONCE = 2
#: Tags that a card shows at once, and letters of a key.
MOST_TAGS, MOST_KEY = 12, 120
#: Bytes of a form beside its picture.
FIELDS = 1024
#: What the second page lists at most: doubted items, tags, rounds; and points of its chart.
DOUBTED, TAGS, ROUNDS, POINTS = 24, 60, 50, 400
_HEADERS = {
    "Cache-Control": "private, no-cache",  # not no-store: going back finds what scrolling has brought
    "Referrer-Policy": "same-origin",  # without any, a browser does not say that a form is of this server
}
_FILES = {
    "look.css": (_HERE.parent / "templates" / "look.css", "text/css; charset=utf-8"),
    "page.css": (_HERE / "static" / "page.css", "text/css; charset=utf-8"),
    "page.js": (_HERE / "static" / "page.js", "text/javascript; charset=utf-8"),
    "icon.svg": (_HERE / "static" / "icon.svg", "image/svg+xml"),
}
_ORDERS = (("both", "kind and instance"), ("kind", "kind"), ("instance", "instance"), ("hamming", "bits"))
_HEADS = ("round", "time (UTC)", "kind", "items", "learned", "removed", "in all", "seconds")


class Terms(NamedTuple):
    """What a score is made of, as text, and the share of the instance in percent where both are positive."""

    kind: str
    instance: str
    share: int | None


@dataclass(frozen=True)
class Card:
    """An item as a template shows it.

    Attributes
    ----------
    id, key
        As of the item.
    long : bool
        Whether the key is folded.
    alt, label : str
        The key cut short, or the id; what stands in a picture's place.
    picture : str, optional
        The address of its thumbnail.
    like : str
        Where more like it are.
    score : str, optional
    terms : Terms, optional
    tags : list of (tag, address or None)
        Each with where the answers that have it are.
    metadata : list of (name, value)
    predicted : list of (tag, score), optional
        The tags that its code predicts.
    """

    id: int
    key: str | None
    long: bool
    alt: str
    label: str
    picture: str | None
    like: str
    score: str | None
    terms: Terms | None
    tags: list[tuple[str, str | None]]
    metadata: list[tuple[str, str]]
    predicted: list[tuple[str, float]] | None = None


class Growth(NamedTuple):
    """Items by round as two paths in a square of 100 by 100, and in words."""

    line: str
    area: str
    text: str


def page_routes(service: Service, turns: Turns, drawing: Turns) -> APIRouter:
    """The routes of the page for a service; `drawing` are threads that make thumbnails."""
    router = APIRouter(include_in_schema=False, default_response_class=Response)
    token = service.settings.token()
    sessions = None if token is None else Sessions(token)
    page = _Page(service, can_leave=sessions is not None)

    @router.get("/")
    async def search(request: Request) -> Response:
        given = request.query_params.multi_items()
        return await turns.run(lambda: page.answer(given))

    @router.post("/")
    async def search_by_picture(request: Request) -> Response:
        try:
            async with request.form(max_files=1, max_fields=200) as form:
                return await turns.run(lambda: page.answer_form(form))
        except HTTPException as error:  # of a body that is too large, too slow or none
            status, told = error.status_code, str(error.detail)
            return await turns.run(lambda: page.failed(PageQuery(), told, status))

    @router.get("/about")
    async def about() -> Response:
        return await turns.run(page.about)

    @router.get("/complete")
    async def complete(q: str = "") -> Response:
        found = await turns.run(lambda: completions(q, service.tags)) if len(q) <= LONGEST else []
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    @router.get("/thumbnails/{item}")
    async def thumbnail(request: Request, item: int) -> Response:
        held = request.headers.get("if-none-match")
        return await drawing.run(lambda: page.thumbnail(item, held))

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404, "there is no such file")
        content, media = _file(name)
        return Response(content, media_type=media, headers={"Cache-Control": "max-age=31536000, immutable"})

    @router.get(LOGIN)
    def login(next: str = "/") -> Response:  # noqa: A002 - what an address has
        return RedirectResponse("/", 303) if sessions is None else page.login(next)

    @router.post(LOGIN)
    async def logged_in(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=5) as form:
            token, wanted = str(form.get("token", "")), str(form.get("next", "/"))
        if sessions is None:
            return RedirectResponse("/", 303)
        if not sessions.is_token(token.strip().encode(errors="replace")):
            return page.login(wanted, "this is not the token of this server; look into its token file", 403)
        return sessions.begin(RedirectResponse(_own(wanted), 303), request.url.scheme == "https")

    @router.post(LOGOUT)
    def logged_out() -> Response:
        leaving = RedirectResponse("/", 303, {"Clear-Site-Data": '"cache"'})
        return leaving if sessions is None else sessions.end(leaving)

    return router


class _Page:
    """What the routes answer."""

    def __init__(self, service: Service, can_leave: bool) -> None:
        self._service, self._can_leave = service, can_leave
        self._thumbnails = Thumbnails(service.settings.images, side=SIDE)
        self._templates = {
            name: html_template(_HERE / "templates" / f"{name}.html") for name in ("search", "about", "login")
        }
        self._takes = cache(service.takes)  # which may open a model
        self._about: tuple[Any, dict[str, Any]] | None = None
        self._knowing = threading.Lock()

    # ---- searches ------------------------------------------------------------------------------------

    def answer(self, given: Sequence[tuple[str, Any]], picture: tuple[bytes, str] | None = None) -> Response:
        """The page of answers to what an address or a form asks."""
        query, notes = PageQuery(), list[str]()
        try:
            query = PageQuery.of(given)
            if picture is not None:
                query = query.but(
                    vector=self._service.picture_features(picture[0]), name=picture[1], like=None
                )
            return self._answers(query, *self._found(query, notes), notes)
        except WOHError as error:
            return self.failed(query, str(error), status_of(error), notes)

    def answer_form(self, form: FormData) -> Response:
        """The same of a form, which may bring a picture."""
        upload = form.get("picture")
        if not isinstance(upload, UploadFile) or not upload.size:
            if form.get("vector"):
                return self.answer(form.multi_items())
            return self.failed(PageQuery(), "no picture was sent; choose one, or drop or paste it", 400)
        return self.answer(form.multi_items(), (upload.file.read(), upload.filename or ""))

    def failed(self, query: PageQuery, error: str, status: int, notes: Sequence[str] = ()) -> Response:
        """The page with one line on what went wrong."""
        return self._answers(query, [], 0, notes, error, status)

    def _found(self, query: PageQuery, notes: list[str]) -> tuple[list[Hit], int]:
        """The answers of one page, and how many items may be answers."""
        service = self._service
        if query.where and query.tags:
            service.current().ids(query.where)  # whose error counts the letters that were typed
        k = min(query.k, service.settings.max_k - query.offset)
        if k < 1:
            raise InputError(f"this server shows the first {service.settings.max_k:,} answers; filter them")
        by_text = query.words == "text" and query.vector is None and query.q
        tags = None if by_text else query.asked_tags(notes)
        if tags is None and not by_text and query.like is None and query.vector is None:
            return self._newest(query, k)
        asked: dict[str, Any] = {}
        if query.vector is not None:
            asked["vector"] = query.vector
        elif not query.q:
            asked["id"] = query.like
        if by_text:
            asked["text"] = query.q
        elif tags is not None:
            asked["tags"] = tags
        by = query.by
        if by != "both" and query.q and not (by_text and self._takes("texts")):
            by = "both"
            notes.append("tags ask for a kind: the order is theirs")
        request = SearchRequest(**asked, k=k, offset=query.offset, by=by, where=query.filter)
        answer = service.search(request)
        notes.extend(answer.notes)
        return answer.hits, answer.total - (
            "id" in asked and query.filter is None
        )  # which is no answer itself

    def _newest(self, query: PageQuery, k: int) -> tuple[list[Hit], int]:
        """Items in the order in which they came, the last first."""
        _, total = self._service.items(where=query.filter, limit=0)
        last = total - query.offset
        first = max(0, last - k)
        if last <= 0:
            return [], total
        found, total = self._service.items(where=query.filter, limit=last - first, offset=first)
        return found[::-1], total

    def _answers(
        self,
        query: PageQuery,
        hits: Sequence[Hit],
        total: int,
        notes: Sequence[str],
        error: str | None = None,
        status: int = 200,
    ) -> Response:
        service, index = self._service, self._service.current()
        cards = [self._card(hit, query) for hit in hits]
        asked = None
        if query.like is not None and not query.q and error is None:
            asked = self._card(service.item(query.like), query)
        heading = _heading(query, asked)
        end = query.offset + len(hits)
        limit = min(total, service.settings.max_k)
        more = query.but(offset=end) if len(hits) == query.k and end < limit else None
        before = query.but(offset=max(0, query.offset - query.k)) if query.offset else None
        columns = [("tags", "tags"), ("key", "text"), ("id", "integer"), *index.metadata_types.items()]
        values = {
            "title": f"{heading} – {index.path.name}",
            "here": "search" if query == PageQuery() and query.vector is None else "results",
            "query": query,
            "error": error,
            "notes": notes,
            "cards": cards,
            "asked": asked,
            "heading": heading,
            "count": _count(query, len(hits), total) if error is None else "",
            "more": None if more is None else more.address,
            "next_offset": end,
            "before": None if before is None else before.address,
            "ended": f"The first {limit:,} are shown: filter them to see others."
            if hits and end >= limit and total > limit
            else None,
            "empty": not index.ntotal,
            "chips": [
                (tag, query.but(tags=tuple(each for each in query.tags if each != tag)).address)
                for tag in query.tags
            ],
            "without_like": query.but(like=None).address,
            "without_picture": query.but(vector=None, q="", name="").address,
            "columns": columns,
            "example": _example(hits),
            "example_filter": _example_filter(index.metadata_types),
            "orders": [(by, name) for by, name in _ORDERS if _has_order(index, by)],
            "most_k": MOST_K,
            "most_bytes": service.settings.max_body - FIELDS,
            "takes_texts": self._takes("texts"),
            "as_text": query.words == "text" or not (query.q or index.config.bits),
            "takes_images": self._takes("images"),
            "why_no_images": _why_no_images(index, service.settings.encoder),
        }
        return self._html("search", values, status)

    def _card(self, hit: Hit, query: PageQuery | None = None, predicted: Any = None) -> Card:
        query = query or PageQuery()
        name = f"id {hit.id}" if not hit.key else hit.key
        file = self._thumbnails.file(hit.key)
        terms = None
        if hit.kind is not None and hit.instance is not None:
            both = hit.kind + hit.instance
            positive = hit.kind >= 0 and hit.instance >= 0 and both > 0
            share = round(100 * hit.instance / both) if positive else None
            terms = Terms(f"{hit.kind:.2f}", f"{hit.instance:.2f}", share)
        unit = "bits" if query.by == "hamming" and not query.q else "score"
        return Card(
            id=hit.id,
            key=hit.key,
            long=len(name) > MOST_KEY,
            alt=name if len(name) <= MOST_KEY else f"{name[:MOST_KEY]}…",
            label=(PurePath(name).stem or name)[:MOST_KEY],
            picture=None if file is None else f"/thumbnails/{hit.id}?v={file.modified:x}",
            like=PageQuery(like=hit.id, tags=query.tags, where=query.where, by=query.by, k=query.k).address,
            score=None if hit.score is None else f"{unit} {hit.score:{'.0f' if unit == 'bits' else '.3f'}}",
            terms=terms,
            tags=[(tag, _with(query, tag)) for tag in dict.fromkeys(hit.tags or [])],
            metadata=[
                (key, _shown(value)) for key, value in (hit.metadata or {}).items() if value is not None
            ],
            predicted=predicted,
        )

    # ---- what the index knows ------------------------------------------------------------------------

    def about(self) -> Response:
        """The page of what the index knows; made once for each of its states, by one thread."""
        index, held = self._service.current(), self._about
        if held is not None and (held[0] == index.store.snapshot or self._knowing.locked()):
            return self._html("about", held[1])
        with self._knowing:
            held = self._about
            if held is None or held[0] != index.store.snapshot:
                try:
                    held = self._about = index.store.snapshot, self._knowledge(index)
                except WOHError as error:
                    values = {"title": "What it knows", "here": "about", "error": str(error)}
                    return self._html("about", values, status_of(error))
        return self._html("about", held[1])

    def _knowledge(self, index: WOHIndex) -> dict[str, Any]:
        info, health, rounds = index.info(TAGS), index.health(DOUBTED), index.rounds()
        doubted = [
            Hit(it["id"], it["key"], None, None, None, it["tags"], {"trust": f"{it['trust']:.2f}"})
            for it in health["doubted"]
        ]
        predicted = index.explain([hit.id for hit in doubted], 3) if doubted else []
        encoder = info["encoder"]
        facts = [
            ("items", f"{info['ntotal']:,}"),
            ("rounds", f"{info['rounds']:,}"),
            ("bits of a code", f"{info['bits']} learned, {info['instance_bits']} of the instance"),
            ("numbers of a feature", "none yet" if info["d"] is None else f"{info['d']:,}"),
            ("preset", info["preset"]),
            ("encoder", "not known" if encoder is None else PurePath(encoder["name"].split("?")[0]).name),
            ("tags", f"{info['tags_known']:,} learned from, {info['tags_seen']:,} seen"),
            ("bytes", f"{sum(info['sizes'].values()):,}"),
        ]
        if info["removed"]:
            facts.insert(1, ("removed items", f"{info['removed']:,}"))
        return {
            "title": f"What {index.path.name} knows",
            "here": "about",
            "error": None,
            "facts": facts,
            "growth": growth(rounds),
            "warnings": health["warnings"],
            "drift": [_drift(moved) for moved in health["drift"]],
            "cards": [self._card(hit, None, tags) for hit, tags in zip(doubted, predicted, strict=True)],
            "tags_seen": info["tags_seen"],
            "tags": [(tag, count, _with(PageQuery(), tag)) for tag, count in info["tags_top"]],
            "heads": _HEADS,
            "rounds": [_round(each) for each in rounds[: -ROUNDS - 1 : -1]],
            "earlier": max(0, len(rounds) - ROUNDS),
        }

    # ---- pictures ------------------------------------------------------------------------------------

    def thumbnail(self, item: int, held: str | None) -> Response:
        """The picture that an item's key is the path of, small; `held` is the ETag of a browser's copy."""
        key = self._service.item(item).key
        file = self._thumbnails.file(key)
        if file is None:
            raise HTTPException(404, "this item has no picture here")
        tag = f'"{file.modified:x}-{file.size:x}-{SIDE}"'
        headers = {"ETag": tag, "Cache-Control": "private, max-age=3600"}
        if held is not None and tag in held:
            return Response(status_code=304, headers=headers)
        thumbnail = self._thumbnails.drawn(file)
        if thumbnail is None:
            raise HTTPException(404, "this item's file is no picture that can be read")
        return Response(thumbnail.jpeg, media_type="image/jpeg", headers=headers)

    def login(self, wanted: str, error: str | None = None, status: int = 200) -> Response:
        """The form for the token, which leads to `wanted`."""
        values = {"title": "Log in", "here": "login", "error": error, "next": _own(wanted)}
        return self._html("login", values, status)

    def _html(self, template: str, values: dict[str, Any], status: int = 200) -> Response:
        html = self._templates[template].render(
            **values,
            index_name="woh-index" if template == "login" else self._service.current().path.name,
            pictures=self._service.settings.images is not None,
            can_leave=self._can_leave and template != "login",
            most_tags=MOST_TAGS,
            static=_address_of,
            typed=escape,
        )
        return Response(html, status, _HEADERS, "text/html; charset=utf-8")


def growth(rounds: Sequence[Round]) -> Growth | None:
    """Items by round: None where there is no round."""
    if not rounds:
        return None
    step = -(-len(rounds) // POINTS)
    points = [(0, 0), *((each.round, each.ntotal) for each in rounds[::step])]
    if points[-1][0] != rounds[-1].round:
        points.append((rounds[-1].round, rounds[-1].ntotal))
    last, most = points[-1][0], max(1, *(n for _, n in points))
    path = " ".join(f"{100 * x / last:.2f},{100 - 100 * n / most:.2f}" for x, n in points)
    now = rounds[-1].ntotal
    text = f"{now:,} items after {'1 round' if last == 1 else f'{last:,} rounds'}"
    text += f", {most:,} at most" if most > now else ""
    return Growth(f"M{path}", f"M{path} 100,100 0,100Z", text)


@cache
def _file(name: str) -> tuple[bytes, str]:
    path, media = _FILES[name]
    return path.read_bytes(), media


@cache
def _address_of(name: str) -> str:
    """Where a file of the page is: another address when it changes, so that browsers keep it."""
    return f"/static/{name}?v={hashlib.sha256(_file(name)[0]).hexdigest()[:12]}"


def _own(address: str) -> str:
    """An address of a page of this server; the first one for any other."""
    return address if address.partition("?")[0] in PAGES else "/"


def _heading(query: PageQuery, asked: Card | None) -> str:
    if query.vector is not None:
        what = f"Like the picture {query.name}".strip()
        return f"{what} and {query.q}" if query.q else what
    if query.q:
        return query.q if len(query.q) <= MOST_KEY else f"{query.q[:MOST_KEY]}…"
    if query.like is not None:
        return f"Like {asked.alt if asked else f'id {query.like}'}"
    return "Newest items"


def _count(query: PageQuery, n: int, total: int) -> str:
    if not n:
        return f"None of {total:,}" if total else ""
    every = f"{total:,} {'item' if total == 1 else 'items'}"
    return f"{query.offset + 1:,} to {query.offset + n:,} of {every}"


def _with(query: PageQuery, tag: str) -> str | None:
    """Where the answers that have one more tag are; None for a tag that no filter can ask for."""
    if not normalise(tag):
        return None
    return query.but(tags=(*(each for each in query.tags if each != tag), tag)).address


def _shown(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _has_order(index: WOHIndex, by: str) -> bool:
    return not {"kind": not index.config.bits, "instance": not index.instance_bits}.get(by, False)


def _example(hits: Sequence[Hit]) -> str:
    """Two tags of the first answers that one may ask for."""
    tags = dict.fromkeys(tag for hit in hits[:5] for tag in hit.tags or [] if tag.isalnum())
    return " ".join([*tags][:2])[:60]


def _example_filter(types: Mapping[str, str]) -> str:
    """A filter that this index understands."""
    examples = {"integer": "> 100", "real": "< 20", "text": "like 'a%'", "date": ">= '2026-01-01'"}
    for name, kind in types.items():
        if kind in examples and name.isidentifier():
            return f"{name} {examples[kind]}"
    return "'beach' in tags"


def _why_no_images(index: WOHIndex, encoder: str | None) -> str:
    if encoder is None and index.encoder is None:
        return "the index does not say which encoder made its features; start the server with --encoder"
    return "the encoder cannot be opened, or takes no pictures; 'woh-index query --image' says why"


def _drift(moved: dict[str, Any]) -> str:
    return f"Since round {moved['round']} the hash function sets {moved['turned']:.1%} of the bits otherwise."


def _round(each: Round) -> list[str]:
    from datetime import UTC, datetime

    time = f"{datetime.fromtimestamp(each.time, UTC):%Y-%m-%d %H:%M}"
    counts = [f"{n:,}" for n in (each.n, each.trained, each.removed, each.ntotal)]
    return [f"{each.round:,}", time, each.kind, *counts, f"{each.seconds:.2f}"]
