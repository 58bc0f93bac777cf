"""The application: service, guards and routes put together; one for each process of a server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from woh_faiss.version import __version__

from . import problems
from .api import api_routes
from .guards import Guards
from .metrics import Counted, Metrics
from .page import DRAWN_AT_ONCE, page_routes
from .service import Service
from .settings import VARIABLE, Settings
from .turns import Turns


def create_app(settings: Settings) -> FastAPI:
    """The application that serves one index.

    Raises
    ------
    StoreError
        There is no index, or it is damaged.
    ConfigError
        The token file cannot be used any more.
    """
    service = Service(settings)
    turns = Turns.of(settings.workers, settings.timeout)
    writing = Turns(1, None)  # what has begun to write is not left alone
    drawing = Turns(DRAWN_AT_ONCE, settings.timeout)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        turns.close()
        writing.close()
        drawing.close()
        service.close()

    # The pages of FastAPI that show the API load scripts from elsewhere: there is /openapi.json alone.
    app = FastAPI(
        title="woh-index",
        version=__version__,
        summary="Search learned binary codes",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    problems.install(app, settings.max_body)
    metrics = Metrics()
    app.include_router(api_routes(service, turns, writing, metrics))
    app.include_router(page_routes(service, turns, drawing))
    # The last one is the first to see a request.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=settings.max_body)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=settings.hosts, www_redirect=False)
    app.add_middleware(Guards, settings=settings)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(Counted, metrics=metrics)
    return app


def from_environment() -> FastAPI:
    """The application of a process of a server, which finds its settings in the environment.

    A worker ends with the process that started it, however that ends.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=follow, daemon=True).start()
    return create_app(Settings.from_json(os.environ[VARIABLE]))
