"""Figures for Prometheus: requests, their seconds, queries, and how large the index is.

Where a server has several processes they share a folder (`PROMETHEUS_MULTIPROC_DIR`, which `serve` sets
before prometheus_client is imported), and any of them tells of all.
"""

from __future__ import annotations

import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .service import Service

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """What one process counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "woh_requests", "Requests by route and status", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "woh_request_seconds",
            "Seconds of a request by route",
            ("route",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.running = Gauge(
            "woh_requests_running",
            "Requests that are being answered",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queries = Counter("woh_queries", "Queries that were answered", registry=self.registry)
        self._items = Gauge(
            "woh_items", "Items that can be found", registry=self.registry, multiprocess_mode="mostrecent"
        )
        self._round = Gauge(
            "woh_round", "The newest round", registry=self.registry, multiprocess_mode="mostrecent"
        )

    def seen(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def told(self, service: Service) -> Response:
        """All figures of all processes of the server."""
        index = service.current()
        self._items.set(len(index))
        self._round.set(index.store.snapshot.round)
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class Counted:
    """An ASGI application whose requests are counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.running.inc()
        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.running.dec()
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.seen(route, status, time.perf_counter() - started)
