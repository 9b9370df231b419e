"""The page's paths: its three files and a JSON API, all of them GET, for this machine's browser.

The texts of a study are hostile. They leave as JSON, which no browser takes for a page or a script;
the policy lets a page run and load nothing but the files here. A request whose Host is another name
than this server's is refused: so a website cannot read the page by pointing its own name at
127.0.0.1.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from encore.core.errors import EncoreError, InputError
from encore.tables.pair_index import PairFilter, PairIndex

_PACKAGE = Path(__file__).parents[1]
_FOLDER = _PACKAGE / "tables" / "browse_page"
#: What is at which path. The colours and type are the report's.
_FILES = {
    "/": (_FOLDER / "page.html", "text/html"),
    "/browse.js": (_FOLDER / "browse.js", "text/javascript"),
    "/browse.css": (_FOLDER / "browse.css", "text/css"),
    "/report.css": (_PACKAGE / "report" / "templates" / "style.css", "text/css"),
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
_FILTERS = ("rule", "run", "null", "disagreement", "source", "text")
_PAGE_NUMBER = re.compile("[1-9][0-9]{0,6}")


def browse_app(index: PairIndex, *, host: str) -> ASGIApp:
    """The application over an index.

    Args:
        index: The study's.
        host: The name that the server was told to listen on; requests may use it.
    """

    # Not coroutines: each request has a thread, so that none waits for another one's query.
    def summary(_request: Request) -> Response:
        return JSONResponse(index.summary)

    def pairs(request: Request) -> Response:
        wanted, number = _wanted(request.query_params)
        return JSONResponse(index.page(wanted, number=number))

    def pair(request: Request) -> Response:
        return JSONResponse(index.pair(request.path_params["place"]))

    app = Starlette(
        routes=[
            *(Route(path, partial(_file, *of), methods=["GET"]) for path, of in _FILES.items()),
            Route("/api/study", summary, methods=["GET"]),
            Route("/api/pairs", pairs, methods=["GET"]),
            Route("/api/pairs/{place:int}", pair, methods=["GET"]),
        ],
        exception_handlers=dict.fromkeys((HTTPException, EncoreError), _answer_error),
    )
    return _Guarded(app, own_name=host)


def _file(path: Path, media_type: str, _request: Request) -> Response:
    return FileResponse(path, media_type=media_type)


def _wanted(given: Mapping[str, str]) -> tuple[PairFilter, int]:
    """The filter and the page of a request; an empty value is none.

    Raises:
        InputError: Another parameter; a page that is no number.
    """
    if unknown := set(given) - {*_FILTERS, "page"}:
        names = ", ".join((*_FILTERS, "page"))
        raise InputError(f"parameter {min(unknown)!r}: expected {names}")
    number = given.get("page") or "1"
    if not _PAGE_NUMBER.fullmatch(number):
        raise InputError(f"page {number[:20]!r}: expected a number from 1")
    return PairFilter(**{name: given.get(name) or None for name in _FILTERS}), int(number)


async def _answer_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, InputError) else 500)


class _Guarded:
    """Refuses foreign hosts, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, *, own_name: str) -> None:
        self._app = app
        self._own_names = {"localhost", own_name.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http" or self._is_own(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send_guarded)
            return
        reason = "this page answers to localhost, to an address, and to the name given as --host"
        await JSONResponse({"error": reason}, 403)(scope, receive, send_guarded)

    def _is_own(self, host: str) -> bool:
        """Whether a Host header is this server's name, or an address, which nobody can rebind."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            is_own = name in self._own_names or bool(ipaddress.ip_address(name))
            return is_own and "@" not in host
        except ValueError:
            return False
