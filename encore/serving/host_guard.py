"""Refuse requests for foreign hosts: a website may point its own name at this machine's address.

A browser then takes this server for a part of that website (DNS rebinding), and lets its scripts
read the answers. A name is therefore answered only if it is known to be this server's. An address
is always answered, since no website can point at anything by it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

#: Largest number of characters of a refused name in an answer.
_SHOWN_CHARACTERS = 80


def host_names(host: str, *, further: Iterable[str] = ()) -> frozenset[str]:
    """Return the names by which a server may be called.

    Args:
        host: Name or address that the server listens on. If other machines reach it, this machine's
            own name is one of the names.
        further: Further names.
    """
    names = {"localhost", host, *further}
    if not _is_loopback(host):
        names.add(socket.gethostname())
    return frozenset(name.lower().rstrip(".") for name in names)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class HostGuard:
    """ASGI application that answers 403 to requests for hosts that are not this server's.

    Args:
        app: Application that answers the other requests.
        names: Names by which the server may be called (`host_names`).
    """

    def __init__(self, app: ASGIApp, *, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else "localhost"
        if self._is_allowed(host):
            await self._app(scope, receive, send)
            return
        reason = (
            f"host {host[:_SHOWN_CHARACTERS]!a}: expected localhost, an address, or a name of this "
            "server; start it with --allow-host NAME to have another name answered"
        )
        await JSONResponse({"error": reason}, 403)(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        """Return True if a Host header is a name of this server, or an address."""
        try:
            parts = urlsplit(f"//{host}")
            name = (parts.hostname or "").rstrip(".")
            return "@" not in host and (name in self._names or bool(ipaddress.ip_address(name)))
        except ValueError:
            return False
