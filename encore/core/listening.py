"""Open a port and run a server on it: listen, answer until a signal, finish, stop."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from encore.core.errors import EncoreError
from encore.core.head_timeout import HeadTimeoutProtocol
from encore.core.terminal import warn


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, so that a port in use is reported before any other work.

    Clients that connect before the server answers have to wait. An address that other machines can
    reach causes a warning.

    Args:
        host: Host name or address of this machine.
        port: Port number; 0 takes any free port.

    Raises:
        EncoreError: There is no such host, or the port is in use or not allowed.
    """
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=is_ipv6)
    except (OSError, UnicodeError) as error:
        raise EncoreError(
            f"--host {host} --port {port}: {error}; expected a name or an address of this machine, "
            "such as 127.0.0.1, and a free port (0: any)"
        ) from error
    if not listener.getsockname()[0].startswith(("127.", "::1")):
        warn(
            f"--host {host}: whoever reaches this machine's port can use this server, it asks for "
            "no password; put it behind something that does"
        )
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    app: ASGIApp, *, stop_seconds: int = 25, max_connections: int = 4096
) -> uvicorn.Server:
    """Return a server of an application; its ``run(sockets=[listener])`` serves until a signal.

    Args:
        app: ASGI application to serve.
        stop_seconds: Seconds for requests in progress when the server stops.
        max_connections: Largest number of connections. uvicorn answers further ones with 503.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=HeadTimeoutProtocol,  # uvicorn's on h11: the same parser on every machine
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            limit_concurrency=max_connections,
            h11_max_incomplete_event_size=64 << 10,  # uvicorn answers a longer head with 400
            timeout_keep_alive=30,
            timeout_graceful_shutdown=stop_seconds,
        )
    )
