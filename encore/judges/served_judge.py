"""The judge on vLLM servers that the run starts itself: several engines, and one client of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from encore.core.chat_tokenizer import ChatTokenizer
from encore.core.errors import EncoreError
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
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import LOOPBACK, ServerSource, served_name

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
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


class ServedJudge:
    """Judge (`encore.judges.base.Judge`) on vLLM servers that a source starts and replaces.

    It is the judge of `--backend vllm`: with the same identity, either continues the other's run.
    """

    #: Others compute, so shards are rated at the same time.
    is_on_cpu = False
    is_remote = False
    #: A shard has thousands of prompts: a driver that is killed would lose hours of several GPUs.
    keeps_replies = True

    def __init__(self, config: JudgeConfig, *, servers: ServerSource) -> None:
        """Find model and tokenizer. No weights are loaded in this process."""
        self.config = config
        self.servers = servers
        self._judge = VllmJudge(config)
        self._lock = threading.Lock()
        self._client: HttpJudge | None = None
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key: that of the engine in process."""
        return self._judge.identity

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer of the judge's prompts."""
        return self._judge.tokenizer

    @property
    def num_engines(self) -> int:
        """Number of engines that reply at the same time."""
        return self.servers.num_servers

    @property
    def wait_seconds(self) -> float:
        """Time that this judge has waited for servers that were away."""
        return 0.0 if self._client is None else self._client.wait_seconds

    def check(self, decoding: Decoding) -> None:
        """Refuse labels of decoding ``expected`` that are not one token each."""
        self._judge.check(decoding)

    def start(self) -> None:
        """Start the servers and connect to those that answer.

        Raises:
            JudgeUnavailableError: None could be started.
        """
        with self._lock:
            if self._client is not None:
                return
            self._error = None
            self._closed.clear()
            urls = self.servers.start(self._judge)
            client = self._open_client(urls)
            try:
                client.start()
            except BaseException:
                self.servers.close()
                raise
            self._client = client
            self._watcher = threading.Thread(target=self._watch, args=[client, urls], daemon=True)
            self._watcher.start()

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        sessions: Sequence[str] = (),
        num_answered: int | None = None,
    ) -> list[Reply]:
        """Return the servers' replies in prompt order.

        Raises:
            JudgeUnavailableError: No server is left.
        """
        self.start()
        assert self._client is not None

        def report(num_done: int) -> None:
            if self._error is not None:
                raise self._error
            on_progress(num_done)

        replies = self._client.reply(
            prompts,
            decoding=decoding,
            on_progress=report,
            on_reply=lambda index, reply: on_reply(index, _without_name(reply)),
            sessions=sessions,
            num_answered=num_answered,
        )
        return [_without_name(reply) for reply in replies]

    def close(self) -> None:
        """Close the connections and end the servers."""
        with self._lock:
            client, self._client = self._client, None
            if client is None:
                return
            self._closed.set()
            if self._watcher is not None:
                self._watcher.join()
            client.close()
            self.servers.close()

    def server_rows(self) -> list[dict[str, object]]:
        """Return a row for each server: its address, its state, how much it is asked."""
        return [] if self._client is None else self._client.server_rows()

    def _open_client(self, urls: Sequence[str]) -> HttpJudge:
        """Return the client of some servers, with this judge's tokenizer."""
        _leave_out_proxies()
        if self.servers.api_key is not None:
            os.environ[_KEY_VARIABLE] = self.servers.api_key
        config = JudgeConfig(
            model=served_name(self._judge),
            backend="http",
            base_url=",".join(urls),
            concurrency=self.config.concurrency,
            request_timeout_seconds=_REQUEST_SECONDS,
            wait_for_server=_WAIT_MINUTES,
            api_key_env=_KEY_VARIABLE,
        )
        return HttpJudge(config, tokenizer=self.tokenizer, servers_change=True)

    def _watch(self, client: HttpJudge, first_urls: Sequence[str]) -> None:
        """Replace lost servers, and tell the client the addresses of now, until the judge closes.

        An error is the one of the replies that wait.
        """
        known_urls = set(first_urls)
        try:
            while not self._closed.wait(_CHECK_SECONDS):
                urls = set(self.servers.check())
                for url in urls - known_urls:
                    try:
                        client.add_server(url)
                        known_urls.add(url)
                    except EncoreError as error:  # it was lost meanwhile: the next check says so
                        logger.info("%s cannot be asked yet: %s", url, error)
                for url in known_urls - urls:
                    client.drop_server(url)
                    known_urls.remove(url)
        except Exception as error:  # noqa: BLE001 - the replies that wait raise it
            logger.warning("the servers are not replaced any more: %s", error)
            self._error = error
