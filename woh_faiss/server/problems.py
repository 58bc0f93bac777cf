"""Errors as application/problem+json (RFC 9457), with the one line that the command would print."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from woh_faiss.display import display_text
from woh_faiss.errors import (
    LockedError,
    MemoryBudgetError,
    MissingItemError,
    NotFittedError,
    StoreError,
    WOHError,
)

MEDIA = "application/problem+json"
#: Statuses of errors of the library, the first that fits.
_STATUSES: tuple[tuple[type[WOHError], int], ...] = (
    (MemoryBudgetError, 413),
    (MissingItemError, 404),
    (NotFittedError, 409),
    (LockedError, 503),
    (StoreError, 503),
    (WOHError, 400),
)
_log = logging.getLogger("uvicorn.error")


class Problem(BaseModel):
    """What went wrong: `detail` is one line with what was given, what was expected and what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """A response that says what went wrong."""
    told = Problem(title=HTTPStatus(status).phrase, status=status, detail=display_text(detail))
    body = json.dumps(told.model_dump())
    return Response(body, status, headers, MEDIA)


def too_large(max_body: int) -> str:
    """What is said of a body of more bytes."""
    return f"the body has more than {max_body:,} bytes; send less at once, or serve with a larger --max-body"


def status_of(error: WOHError) -> int:
    """The status of an error of the library."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def line_of(error: ValidationError | RequestValidationError) -> str:
    """The first fault of a body or of parameters, and how many more there are."""
    faults = error.errors()
    first = faults[0]
    place = ".".join(map(str, first["loc"])) or "the body"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{place}: {first['msg']}{more}"


def install(app: FastAPI, max_body: int) -> None:
    """Make every error that a route may raise a problem; what else goes wrong is `Guards`' business."""

    async def of_library(request: Request, error: Any) -> Response:
        status = status_of(error)
        if status == 503 and not isinstance(error, LockedError):
            _log.error("%s", error)
        return problem(status, str(error), {"Retry-After": "1"} if status == 503 else None)

    async def of_values(request: Request, error: Any) -> Response:
        return problem(422, line_of(error))

    async def of_http(request: Request, error: Any) -> Response:
        line = too_large(max_body) if error.status_code == 413 else str(error.detail)  # Starlette's says less
        return problem(error.status_code, line, error.headers)

    app.add_exception_handler(WOHError, of_library)
    app.add_exception_handler(RequestValidationError, of_values)
    app.add_exception_handler(ValidationError, of_values)
    app.add_exception_handler(HTTPException, of_http)
