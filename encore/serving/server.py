"""One model behind one port: bind, serve until a signal, answer what is under way, stop."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import torch
import uvicorn
from numpy.typing import NDArray
from starlette.types import ASGIApp

from encore.errors import EncoreError, InputError
from encore.model.opening import OpenedModel
from encore.model.scoring import score_sequences
from encore.serving.app import make_app
from encore.serving.batching import DeviceLostError, ScoreQueue
from encore.serving.composer import Composer
from encore.serving.config import ServerConfig
from encore.serving.connection import protocol_class
from encore.serving.metrics import ServerMetrics
from encore.serving.observing import note_refused
from encore.serving.service import RewardService

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on an address: a port in use is known before a model is loaded.

    Two sockets may be bound to one port as long as neither listens, so that this one does at once.
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


class RewardServer:
    """A model's server.

    Args:
        opened: The model.
        composer: How its heads become a reward.
        listener: From `bind`; closed in the end.
        config: The limits.
        on_ready: Called with the URL once requests are answered.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composer: Composer,
        listener: socket.socket,
        config: ServerConfig | None = None,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        self._opened = opened
        self._composer = composer
        self._listener = listener
        self._config = config or ServerConfig()
        self._on_ready = on_ready
        self._uvicorn: _Uvicorn | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> signal.Signals | None:
        """Answer requests until a signal or `stop`; what is under way is answered first.

        Returns:
            The signal that ended it. Signals are heard on the main thread alone.

        Raises:
            EncoreError: the system does not let it serve on the address.
        """
        url, config, metrics = self.url, self._config, ServerMetrics()
        queue = ScoreQueue(
            self._score,
            max_batch_tokens=config.max_batch_tokens,
            max_queue_tokens=config.queue_tokens,
            on_batch=metrics.computed,
        )
        metrics.watch_queue(num_texts=lambda: queue.num_texts, num_tokens=lambda: queue.num_tokens)
        with self._listener, queue, _one_thread() as encoding:
            service = RewardService(
                self._opened,
                composer=self._composer,
                queue=queue,
                metrics=metrics,
                config=config,
                encoding=encoding,
            )
            server = _Uvicorn(
                _uvicorn_config(make_app(service, metrics=metrics), config, metrics),
                on_ready=self._tell,
            )
            self._uvicorn = server
            server.should_exit = self._is_stopped
            try:
                server.run(sockets=[self._listener])
            except OSError as error:
                raise EncoreError(
                    f"the server at {url} cannot go on: {error.strerror or error}; expected an "
                    "address that nothing else serves: choose another with --host or --port"
                ) from error
        return server.stopped_by

    def stop(self) -> None:
        """End `run`, from any thread, as a signal would."""
        self._is_stopped = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def _tell(self) -> None:
        if self._on_ready is not None:
            self._on_ready(self.url)

    def _score(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        try:
            return score_sequences(
                self._opened.model,
                sequences,
                pad_token_id=self._opened.tokenizer.pad_token_id,
                tokens_per_microbatch=self._config.max_batch_tokens,
            )
        except torch.AcceleratorError as error:  # not for want of memory, which passes
            raise DeviceLostError(str(error)) from error


class _Uvicorn(uvicorn.Server):
    """Notes the signal that stops it, where uvicorn's own sends it to the process once more."""

    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.stopped_by: signal.Signals | None = None
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or signal.Signals(sig)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _uvicorn_config(app: ASGIApp, config: ServerConfig, metrics: ServerMetrics) -> uvicorn.Config:
    """The same HTTP parser and event loop on every machine, no log lines but ours."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol_class(
            head_seconds=config.head_seconds,
            answer_seconds=config.answer_seconds,
            on_refused=functools.partial(note_refused, metrics=metrics),
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.idle_seconds,
        timeout_graceful_shutdown=config.stop_seconds,
    )


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="encore-encode")
