"""One model behind one port: listen, serve until a signal, answer what is in progress, stop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import uvicorn

from encore.errors import EncoreError, InputError
from encore.export.weights_input import chosen_weights, one_rule
from encore.model.opening import open_reward_model
from encore.serving.reward_app import RewardApp
from encore.serving.serve_config import ServeConfig


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address, so that a port in use is known before a model is loaded.

    Who connects before requests are answered waits.

    Args:
        host: A name or an address.
        port: 0 for a free one.

    Raises:
        EncoreError: no such host; the port is in use or not allowed.
    """
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=is_ipv6)
    except (OSError, UnicodeError) as error:
        raise EncoreError(
            f"--host {host} --port {port}: {error}; expected a name or an address of this machine, "
            "such as 127.0.0.1, and a free port (0: any)"
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches the socket."""
    address: str = listener.getsockname()[0]
    return address == "::1" or address.startswith("127.")


def url_of(listener: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_app(config: ServeConfig, *, on_ready: Callable[[RewardApp], None]) -> RewardApp:
    """The application of `encore serve`, its model loaded; it logs a line a request on stderr.

    Args:
        config: The model, its weights and the limits.
        on_ready: Called when requests are about to be answered.

    Raises:
        InputError: No such model or weights; several heads and no weights.
    """
    opened = open_reward_model(
        config.model,
        device=config.device,
        dtype=config.dtype,
        max_length=config.max_length,
        revision=config.revision,
    )
    head_ids = opened.model.head_ids
    composition = chosen_weights(config.composition, head_ids=head_ids)
    if composition is None:
        if len(head_ids) > 1:
            raise InputError(
                f"the model has {len(head_ids)} heads and a reward is one number; say what they "
                "weigh: --weights FILE, as `encore weights --json` writes it, or --rule or --scheme"
            )
        composition = one_rule(head_ids[0], head_ids=head_ids)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    return RewardApp(opened, composition=composition, limits=config.limits, on_ready=on_ready)


def make_server(app: RewardApp, *, stop_seconds: int = 25) -> uvicorn.Server:
    """A server of a model's rewards; ``run(sockets=[listener])`` serves until a signal.

    Args:
        app: The model's.
        stop_seconds: Time to answer what is in progress when the server stops.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",  # the same parser on every machine
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            limit_concurrency=1024,  # connections; further ones get uvicorn's own 503
            h11_max_incomplete_event_size=64 << 10,  # a longer head gets uvicorn's own 400
            timeout_keep_alive=30,
            timeout_graceful_shutdown=stop_seconds,
        )
    )
