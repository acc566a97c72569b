"""Probes and metrics: /health/live, /health/ready, /health/startup, /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast import __version__
from holdfast.telemetry import Health, Metrics

Look = Callable[[], Awaitable[None]]  # brings health or metrics up to date before they are shown


def site(health: Health, metrics: Metrics, *, look: Look, scrape: Look, more: Sequence[BaseRoute] = ()) -> Starlette:
    """What is served without TLS: probes, metrics, and `more`."""

    async def live(request: Request) -> Response:
        """The process answers: nothing else is asked, least of all the database."""
        return JSONResponse({"status": "live", "version": __version__})

    async def ready(request: Request) -> Response:
        await look()
        problem = health.readiness()
        if problem:
            return JSONResponse({"status": "not ready", "reason": problem}, 503, headers={"Retry-After": "5"})
        return JSONResponse({"status": "ready"})

    async def startup(request: Request) -> Response:
        return JSONResponse(health.startup(), 200 if health.started else 503)

    async def shown_metrics(request: Request) -> Response:
        await scrape()
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/health/startup", startup),
            Route("/metrics", shown_metrics),
            *more,
        ]
    )
