"""The server's paths, and what a client hears when something is not as it should be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from encore.serving.metrics import CONTENT_TYPE, ServerMetrics
from encore.serving.observing import NO_ANSWER, Observed
from encore.serving.refusal import Refusal
from encore.serving.service import RewardService

#: Clients of OpenRLHF are given a whole URL; both of these are in use.
REWARD_PATHS: Final = ("/get_reward", "/")
_SHOWN_CHARACTERS: Final = 80


def make_app(service: RewardService, *, metrics: ServerMetrics) -> ASGIApp:
    """The ASGI application of a service."""

    async def health(_request: Request) -> Response:
        return JSONResponse(service.health())

    async def model(_request: Request) -> Response:
        return JSONResponse(service.about())

    async def counts(_request: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    routes = [
        *(Route(path, _posted(service.rewards), methods=["POST"]) for path in REWARD_PATHS),
        Route("/score", _posted(service.scores), methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/model", model, methods=["GET"]),
        Route("/metrics", counts, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            Refusal: _refused,
            HTTPException: _no_such_path,
            ClientDisconnect: _went_away,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return Observed(app, metrics=metrics, paths=[route.path for route in routes])


def _posted(
    answer: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(await answer(request))

    return endpoint


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": error.reason}, status_code=error.status, headers=error.headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Not `request.url`: it depends on the client's Host header and loses characters.
    shown = ascii(f"{request.method} {request.scope['path']}"[:_SHOWN_CHARACTERS])
    reason = f"{shown}: {error.detail.lower()}; expected POST /get_reward or /score, or GET "
    return JSONResponse(
        {"error": reason + "/health, /metrics or /model"},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _went_away(_request: Request, _error: Exception) -> Response:
    """Nobody reads it; the status is for the log."""
    return Response(status_code=NO_ANSWER)


async def _failed(_request: Request, error: Exception) -> Response:
    """A mistake of ours: its place goes into the log, nothing of it to the client."""
    return JSONResponse(
        {"error": f"the server failed ({type(error).__name__}); see its log"}, status_code=500
    )
