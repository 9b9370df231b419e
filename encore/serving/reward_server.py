"""One model behind one port: listen, serve until a signal, answer what is in progress, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette

from encore.errors import EncoreError, InputError
from encore.export.weights_input import chosen_weights
from encore.model.opening import OpenedModel, open_reward_model
from encore.model.scoring import score_sequences
from encore.serving.batch_queue import BatchQueue
from encore.serving.composer import Composer, make_composer
from encore.serving.request_encoding import RequestEncoder
from encore.serving.reward_app import RewardService, ServerMetrics, make_app
from encore.serving.serve_config import ServeConfig, ServeLimits

#: Connections at one time; further ones get uvicorn's own 503.
_MAX_CONNECTIONS = 1024
#: Bytes of a request's head; a longer one gets uvicorn's own 400.
_MAX_HEAD_BYTES = 64 << 10
#: How long a connection stays open between two requests.
_IDLE_SECONDS = 30
#: Time to answer what is in progress when the server stops.
_STOP_SECONDS = 25
#: One line a request on stderr, and when the server starts and stops.
_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "encore.serving": {"level": "INFO", "handlers": ["stderr"], "propagate": False},
        "uvicorn.error": {"level": "INFO", "handlers": ["stderr"], "propagate": False},
    },
}


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
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(
            f"--host {host}: no such host ({error}); expected a name or an address of this "
            "machine, such as 127.0.0.1"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise EncoreError(
            f"address {host}, port {port}: {error.strerror}; expected a free port of this machine: "
            "choose another with --port (0: any free one)"
        ) from error
    return listener


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
    """The server of `encore serve`, its model loaded.

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
    composer = make_composer(
        chosen_weights(config.composition, head_ids=head_ids),
        head_ids=head_ids,
        mean_R=opened.model.mean_R.tolist(),
    )
    ready = {"model": opened.name, "digest": opened.digest}
    return make_server(
        opened,
        composer=composer,
        limits=config.limits,
        on_ready=lambda: on_ready(ready, composer.words),
        log_config=_LOGGING,
    )


def make_server(
    opened: OpenedModel,
    *,
    composer: Composer,
    limits: ServeLimits,
    stop_seconds: int = _STOP_SECONDS,
    on_ready: Callable[[], None] = lambda: None,
    log_config: dict[str, Any] | None = None,
) -> uvicorn.Server:
    """A server of a model's rewards; ``run(sockets=[listener])`` serves until a signal.

    Args:
        opened: The model.
        composer: How its heads become a reward.
        limits: What clients may ask for.
        stop_seconds: Time to answer what is in progress when the server stops.
        on_ready: Called when requests are about to be answered.
        log_config: Of the loggers, as `logging.config.dictConfig` takes it.
    """
    metrics = ServerMetrics()

    def score(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        return score_sequences(
            opened.model,
            sequences,
            pad_token_id=opened.tokenizer.pad_token_id,
            tokens_per_microbatch=limits.max_batch_tokens,
        )

    queue = BatchQueue(
        score_batch=score,
        max_batch_tokens=limits.max_batch_tokens,
        max_queue_tokens=limits.queue_tokens,
        on_batch=metrics.count_batch,
    )
    metrics.watch_queue(queue)
    num_embeddings = opened.model.trunk.get_input_embeddings().weight.shape[0]
    service = RewardService(
        opened=opened,
        composer=composer,
        queue=queue,
        encoder=RequestEncoder(opened.tokenizer, num_embeddings=num_embeddings),
        metrics=metrics,
        limits=limits,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        scoring = asyncio.create_task(queue.run())
        on_ready()
        yield
        scoring.cancel()
        await asyncio.wait([scoring])

    return uvicorn.Server(
        uvicorn.Config(
            make_app(service, metrics=metrics, lifespan=lifespan),
            http="h11",  # the same parser on every machine
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=log_config,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=stop_seconds,
        )
    )
