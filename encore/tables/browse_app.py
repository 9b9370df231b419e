"""Web application of `encore browse`: a page of four files and a JSON API.

Everything is read by GET, but a PUT writes the note on a pair. A browser asks before it sends a PUT
for another website, and this server never allows it.

The texts of a study may be hostile. They are sent as JSON, which no browser runs as a page or a
script. The security policy allows the page to load only the files served here. A request with a
foreign name in its Host header is refused, so that a website cannot read the page by pointing its
own name at 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from encore.core.errors import EncoreError, InputError
from encore.serving.host_guard import HostGuard
from encore.tables.pair_index import PairFilter, PairIndex
from encore.tables.pair_notes import MAX_CHARACTERS

_PACKAGE = Path(__file__).parents[1]
_FOLDER = _PACKAGE / "tables" / "browse_page"
#: File and media type of each path. The page has the report's colours and fonts.
_FILES = {
    "/": (_FOLDER / "page.html", "text/html"),
    "/browse.js": (_FOLDER / "browse.js", "text/javascript"),
    "/browse.css": (_FOLDER / "browse.css", "text/css"),
    "/report.css": (_PACKAGE / "reports" / "templates" / "style.css", "text/css"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FILTERS = tuple(field.name for field in dataclasses.fields(PairFilter))
#: Seconds within which the body of a request must arrive.
_BODY_SECONDS = 10.0
_PAGE_NUMBER = re.compile("[1-9][0-9]{0,6}")


def browse_app(index: PairIndex, *, hosts: frozenset[str]) -> ASGIApp:
    """Make the application.

    Args:
        index: Index of the study's pairs.
        hosts: Names by which the page may be called (`encore.serving.host_guard`).
    """

    # Plain functions run in threads, so that no request waits for another one's query.
    def summary(_request: Request) -> Response:
        return JSONResponse(index.summary)

    def pairs(request: Request) -> Response:
        pair_filter, page_number = _parse_query(request.query_params)
        return JSONResponse(index.page(pair_filter, number=page_number))

    def pair(request: Request) -> Response:
        return JSONResponse(index.pair(request.path_params["position"]))

    async def note(request: Request) -> Response:
        text = (await _read(request, max_bytes=4 * MAX_CHARACTERS)).decode(errors="replace")
        await run_in_threadpool(index.write_note, request.path_params["position"], text)
        return JSONResponse({"note": text})

    app = Starlette(
        routes=[
            *(Route(path, partial(_file, *file), methods=["GET"]) for path, file in _FILES.items()),
            Route("/api/study", summary, methods=["GET"]),
            Route("/api/pairs", pairs, methods=["GET"]),
            Route("/api/pairs/{position:int}", pair, methods=["GET"]),
            Route("/api/pairs/{position:int}/note", note, methods=["PUT"]),
        ],
        exception_handlers=dict.fromkeys((HTTPException, EncoreError), _answer_error),
    )
    return _SecurityHeaders(HostGuard(app, names=hosts))


async def _read(request: Request, *, max_bytes: int) -> bytes:
    """Return the body of a request; a longer or slower one is refused, and not read to its end."""
    too_large = HTTPException(
        413, f"a body of more than {max_bytes:,} bytes; shorten the note", {"connection": "close"}
    )
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        reason = f"the body did not arrive within {_BODY_SECONDS:g} s; send it again"
        raise HTTPException(408, reason, {"connection": "close"}) from None
    return bytes(body)


def _file(path: Path, media_type: str, _request: Request) -> Response:
    return FileResponse(path, media_type=media_type)


def _parse_query(parameters: Mapping[str, str]) -> tuple[PairFilter, int | None]:
    """Return the filter and the page number of a request (None: all). Empty values are ignored.

    Raises:
        InputError: A parameter is unknown, or the page is not a number.
    """
    if unknown := set(parameters) - {*_FILTERS, "page"}:
        names = ", ".join((*_FILTERS, "page"))
        raise InputError(f"parameter {min(unknown)!r}: expected {names}")
    number = parameters.get("page") or "1"
    if number != "all" and not _PAGE_NUMBER.fullmatch(number):
        raise InputError(f"page {number[:20]!r}: expected a number from 1, or all")
    pair_filter = PairFilter(**{name: parameters.get(name) or None for name in _FILTERS})
    return pair_filter, None if number == "all" else int(number)


async def _answer_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, InputError) else 500)


class _SecurityHeaders:
    """Add the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
