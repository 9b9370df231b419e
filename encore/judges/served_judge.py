"""The judge on vLLM servers that the run starts itself: several engines, and one client of them."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from encore.judges.base import (
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    ignore_reply,
)
from encore.judges.http_judge import HttpJudge
from encore.judges.judge_options import JudgeConfig
from encore.judges.served_model import ServedModel
from encore.judges.server_options import ServerOptions
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import LOOPBACK, ServerSource, served_name

logger = logging.getLogger(__name__)

#: Pause between two looks at the servers: until one answers, and while they work.
_POLL_SECONDS, _CHECK_SECONDS = 0.5, 2.0
#: Limits of the client. A server that hangs is replaced by its source, which breaks its requests.
_REQUEST_SECONDS, _WAIT_MINUTES = 3600.0, 60.0
#: Environment variable through which the client gets the servers' key.
_KEY_VARIABLE = "ENCORE_SERVER_KEY"


def _without_name(reply: Reply) -> Reply:
    """Return a reply without the name of the servers' model: it is the judge that was asked."""
    return replace(reply, answered_by="")


def _leave_out_proxies() -> None:
    """Let clients of this process reach servers on loopback without a proxy of the network."""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join(dict.fromkeys([*hosts, LOOPBACK]))


class ServedJudge(HttpJudge):
    """Judge (`encore.judges.base.Judge`) on vLLM servers that a source starts and replaces.

    It is the judge of `--backend vllm`: with the same identity, either continues the other's run.
    Its replies are kept, because a shard has thousands of prompts: a driver that is killed would
    lose hours of several GPUs.
    """

    is_remote = False
    servers_change = True

    def __init__(self, config: JudgeConfig, how: ServerOptions, *, servers: ServerSource) -> None:
        """Find model and tokenizer. No weights are loaded in this process."""
        self._judge = VllmJudge(config, is_here=servers.are_here)
        super().__init__(config.model_copy(update={"tokenizer": None}), how)
        self.tokenizer = self._judge.tokenizer
        self.servers = servers
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key: that of the engine in process."""
        return self._judge.identity

    @property
    def num_engines(self) -> int:
        """Number of engines that reply at the same time."""
        return self.servers.num_servers

    def check(self, decoding: Decoding) -> None:
        """Refuse labels of decoding ``expected`` that are not one token each."""
        self._judge.check(decoding)

    def start(self) -> None:
        """Start the servers and connect to those that answer.

        Raises:
            JudgeUnavailableError: None could be started.
        """
        with self._lock:
            if self._watcher is not None:
                return
            self._error = None
            self._closed.clear()
            try:
                self.servers.start(self._judge)
                while not (urls := self.servers.check()):
                    time.sleep(_POLL_SECONDS)
                self.config, self.how = self._client_options(urls)
                self._model = ServedModel(
                    config=self.config, how=self.how, tokenizer=self.tokenizer
                )
                super().start()
            except BaseException:
                self.servers.close()
                raise
            watch = contextvars.copy_context().run  # a source may log for the flow run
            self._watcher = threading.Thread(target=watch, args=[self._watch], daemon=True)
            self._watcher.start()

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        **options: Any,
    ) -> list[Reply]:
        """Return the servers' replies in prompt order.

        Raises:
            JudgeUnavailableError: No server is left.
        """

        def report(num_done: int) -> None:
            if self._error is not None:
                raise self._error
            on_progress(num_done)

        replies = super().reply(
            prompts,
            on_progress=report,
            on_reply=lambda index, reply: on_reply(index, _without_name(reply)),
            **options,
        )
        return [_without_name(reply) for reply in replies]

    def close(self) -> None:
        """Close the connections and end the servers."""
        with self._lock:
            if self._watcher is None:
                return
            self._closed.set()
            self._watcher.join()
            self._watcher = None
            super().close()
            self.servers.close()

    def _client_options(self, urls: Sequence[str]) -> tuple[JudgeConfig, ServerOptions]:
        """Return the options of a client of some servers: the judge, and the servers."""
        _leave_out_proxies()
        if self.servers.api_key is not None:
            os.environ[_KEY_VARIABLE] = self.servers.api_key
        config = JudgeConfig(
            model=served_name(self._judge), backend="http", revision=self.identity.revision
        )
        how = ServerOptions(
            base_url=",".join(urls),
            concurrency=self.how.concurrency,
            request_timeout_seconds=_REQUEST_SECONDS,
            wait_for_server=_WAIT_MINUTES,
            api_key_env=_KEY_VARIABLE,
        )
        return config, how

    def _watch(self) -> None:
        """Replace lost servers until the judge closes. An error is that of replies that wait."""
        try:
            while not self._closed.wait(_CHECK_SECONDS):
                self.set_servers(self.servers.check())
        except Exception as error:  # noqa: BLE001 - the replies that wait raise it
            logger.warning("the servers are not replaced any more: %s", error)
            self._error = error
