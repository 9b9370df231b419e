"""One model behind one port: listen, serve until a signal, answer what is in progress, stop."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable

import uvicorn

from encore.errors import EncoreError, InputError
from encore.export.weights_input import Composition, chosen_weights, one_rule
from encore.model.opening import OpenedModel, open_reward_model
from encore.serving.reward_app import RewardApp
from encore.serving.serve_config import ServeConfig, ServeLimits

#: Connections at one time; further ones get uvicorn's own 503.
_MAX_CONNECTIONS = 1024
#: Bytes of a request's head; a longer one gets uvicorn's own 400.
_MAX_HEAD_BYTES = 64 << 10
#: How long a connection stays open between two requests.
_IDLE_SECONDS = 30
#: Time to answer what is in progress when the server stops.
_STOP_SECONDS = 25
_SHOWN_RULES = 4


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address, so that a port in use is known before a model is loaded.

    Who connects before requests are answered waits.

    Args:
        host: A name or an address.
        port: 0 for a free one.

    Raises:
        InputError: no such host.
        EncoreError: the port is in use or not allowed.
    """
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        is_ipv6 = family == socket.AF_INET6
        return socket.create_server(address, family=family, dualstack_ipv6=is_ipv6)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(
            f"--host {host}: no such host ({error}); expected a name or an address of this "
            "machine, such as 127.0.0.1"
        ) from error
    except OSError as error:
        raise EncoreError(
            f"address {host}, port {port}: {error.strerror}; expected a free port of this machine: "
            "choose another with --port (0: any free one)"
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches the socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_server(
    config: ServeConfig, *, on_ready: Callable[[dict[str, str], str], None]
) -> uvicorn.Server:
    """The server of `encore serve`, its model loaded; it logs a line a request on stderr.

    Args:
        config: The model, its weights and the limits.
        on_ready: Called with the model's name and digest, and with its weights in words.
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
            more = ", …" if len(head_ids) > _SHOWN_RULES else ""
            raise InputError(
                f"the model has {len(head_ids)} heads ({', '.join(head_ids[:_SHOWN_RULES])}{more}) "
                "and a reward is one number; say what they weigh: --weights FILE, as `encore "
                "weights --json` writes it, or one rule alone with --rule"
            )
        composition = one_rule(head_ids[0], head_ids=head_ids)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    ready = {"model": opened.name, "digest": opened.digest}
    params = "".join(f", {name} {value}" for name, value in composition.params.items())
    weights = f"{len(head_ids)} rules, weights of scheme {composition.scheme}{params}"
    words = weights if len(head_ids) > 1 else f"the head {head_ids[0]}"
    return make_server(
        opened,
        composition=composition,
        limits=config.limits,
        on_ready=lambda: on_ready(ready, words),
    )


def make_server(
    opened: OpenedModel,
    *,
    composition: Composition,
    limits: ServeLimits,
    stop_seconds: int = _STOP_SECONDS,
    on_ready: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """A server of a model's rewards; ``run(sockets=[listener])`` serves until a signal.

    Args:
        opened: The model.
        composition: What its heads weigh in a reward.
        limits: What clients may ask for.
        stop_seconds: Time to answer what is in progress when the server stops.
        on_ready: Called when requests are about to be answered.
    """
    return uvicorn.Server(
        uvicorn.Config(
            RewardApp(opened, composition=composition, limits=limits, on_ready=on_ready),
            http="h11",  # the same parser on every machine
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=stop_seconds,
        )
    )
