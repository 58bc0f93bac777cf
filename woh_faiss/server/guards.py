"""What stands before every route: the token, who may send, and how long; and headers behind it.

Starlette's middleware does the rest: the Host header, other origins, the size of bodies. What it refuses as
plain text is told here as every error is.
"""

from __future__ import annotations

import base64
import binascii
import logging
from urllib.parse import quote, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woh_faiss.display import display_text

from .problems import problem, too_large
from .sessions import LOGIN, PAGES, Sessions, is_open
from .settings import Settings

_log = logging.getLogger("uvicorn.error")
#: Paths that say nothing of the index: a supervisor asks them without a token.
OPEN = frozenset(("/healthz", "/readyz"))
#: Methods that change nothing.
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_HEADERS = {
    # A page may load files of this server, and no script or style that is in it.
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guards:
    """An ASGI application in front of another.

    A request that passes has ``scope["state"]["bearer"]``, whether it had the token in a header that no
    browser sends by itself.

    Parameters
    ----------
    app : ASGI application
    settings : Settings
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        token = settings.token()
        self._sessions = None if token is None else Sessions(token)
        self._headers = dict(_HEADERS)
        # What Starlette refuses as plain text, by status.
        self._plain = {
            400: "the Host header is not a name of this server; --allow-host gives it one",
            413: too_large(settings.max_body),
        }
        if not settings.allow_origins:
            self._headers["Cross-Origin-Resource-Policy"] = "same-origin"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = replaced = False

        async def with_headers(message: Message) -> None:
            nonlocal started, replaced
            if replaced:
                return
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                plain = headers.get("content-type", "").startswith("text/plain")
                if plain and (line := self._plain.get(message["status"])):
                    await problem(message["status"], line)(scope, receive, with_headers)
                    replaced = True
                    return
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, with_headers)
            return
        try:
            await self._app(scope, self._in_time(receive), with_headers)
        except Exception:
            _log.exception("%s %s failed", scope["method"], display_text(scope["path"]))
            if started:
                raise
            await problem(500, "the server failed; its log says where")(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        given, bearer = _credentials(headers.get("authorization", ""))
        known = self._sessions is not None and self._sessions.is_token(given or b"")
        scope.setdefault("state", {})["bearer"] = known and bearer
        if not known and self._sessions is not None and not self._is_open(scope, headers):
            if scope["path"] in PAGES and scope["method"] == "GET" and given is None:
                return _to_form(scope)
            return problem(
                401,
                "this server needs its token: Authorization: Bearer TOKEN, or in a browser as password",
                {"WWW-Authenticate": 'Basic realm="woh-index", charset="UTF-8"', "Connection": "close"},
            )
        if scope["method"] not in _SAFE and not self._same_origin(headers):
            return problem(403, "this page may not send to this server; --allow-origin names pages that may")
        return None

    def _is_open(self, scope: Scope, headers: Headers) -> bool:
        """Whether a path says nothing of the index, or is the page's and somebody came through its form."""
        path = scope["path"]
        return path in OPEN or (
            self._sessions is not None
            and (is_open(path) or self._sessions.opens(path, headers.get("cookie", "")))
        )

    def _same_origin(self, headers: Headers) -> bool:
        """Whether what sends is no web page, one of this server, or of an origin that was named."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if origin in self._settings.allow_origins:
            return True
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""

    def _in_time(self, receive: Receive) -> Receive:
        """`receive` for as long as a body may take to arrive."""
        settings, end, more = self._settings, anyio.current_time() + self._settings.timeout, True

        async def in_time() -> Message:
            nonlocal more
            if not more:  # what still comes is that the client has gone
                return await receive()
            try:
                with anyio.fail_after(max(0.0, end - anyio.current_time())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the body did not arrive within {settings.timeout:g} s", {"Connection": "close"}
                ) from None
            more = message["type"] == "http.request" and message.get("more_body", False)
            return message

        return in_time


def _to_form(scope: Scope) -> ASGIApp:
    """The way to the form for the token, and from there to what was asked for."""
    query = scope["query_string"].decode("latin-1")
    wanted = f"{scope['path']}?{query}" if query else scope["path"]
    return RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303, {"Cache-Control": "no-store"})


def _credentials(header: str) -> tuple[bytes | None, bool]:
    """What an Authorization header gives as token, and whether it is one that no browser sends by itself."""
    scheme, _, rest = header.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest.encode("latin-1", "replace"), True
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2], False
        except (binascii.Error, ValueError):
            return None, False
    return None, False
