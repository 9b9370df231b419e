"""A vLLM server as a process of this machine: its start, its health, its log, its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

#: Longest time from the start of a server to its first answer, and of a later answer.
_START_SECONDS, _ANSWER_SECONDS = 3600.0, 5.0
#: Longest wait for a server that was asked to end, before it is killed.
_END_SECONDS = 8.0
_KEEPER = Path(__file__).with_name("server_keeper.py")
#: Characters of a log's line that an error shows, and bytes of the log that are searched.
_NUM_SHOWN, _NUM_LOG_BYTES = 300, 100_000
_LOG_PREFIX = re.compile(
    r"^(\(\w+( pid=\d+)?\) )*((ERROR|CRITICAL) \S+ \S+ (\[[^\]]*\] )?)?(?P<text>.*)$"
)
_ERROR_LINE = re.compile(r"^([\w.]*(Error|Exception)\b: |.*: error: )")
_FINISHED_TOKENS = re.compile(
    r"^vllm:(?:prompt|generation)_tokens_total\{.*\} (\S+)$", re.MULTILINE
)
_FINISHED_PROMPTS = re.compile(
    r'^vllm:request_success_total\{.*finished_reason="(?:stop|length)".*\} (\S+)$', re.MULTILINE
)


@dataclass(slots=True)
class ServerProcess:
    """One server as a process of this machine. It ends with this process, however that ends.

    Attributes:
        url: Base URL of the server.
        log_path: File with its output.
        process: The server's first process, which leads the group of all its processes.
        keeper: Process that ends the group if this process is killed
            (`encore.judges.server_keeper`).
        api_key: Key that it wants; None if it wants none.
        is_healthy: True once it answered.
        is_over: True once it was ended: its process group may be another program's now.
        has_finished_prompts: True once it answered a prompt.
        answered_at: Time of its last answer, or of its start.
        num_tokens: Tokens that it has computed, and ``progress_at`` the time of the last of them.
    """

    url: str
    log_path: Path
    process: subprocess.Popen[bytes]
    keeper: subprocess.Popen[bytes]
    api_key: str | None = None
    is_healthy: bool = field(default=False, init=False)
    is_over: bool = field(default=False, init=False)
    has_finished_prompts: bool = field(default=False, init=False)
    answered_at: float = field(default_factory=time.monotonic, init=False)
    num_tokens: float = field(default=0.0, init=False)
    progress_at: float = field(default_factory=time.monotonic, init=False)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        url: str,
        environment: Mapping[str, str],
        log_path: Path,
        api_key: str | None = None,
    ) -> ServerProcess:
        """Start a command as a server whose output goes to a file."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        keeper = _started_keeper()  # first, so that a driver killed here leaves no server
        with log_path.open("ab") as log:  # a server that is started again goes on in it
            process = subprocess.Popen(  # noqa: S603 - the command is made here
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is this process's to pass on
            )
        _name_group(keeper, process.pid)
        return cls(url=url, log_path=log_path, process=process, keeper=keeper, api_key=api_key)

    def loss(self, *, silence_seconds: float, stalled_seconds: float) -> str:
        """Return why the server is lost; an empty text while it is not.

        Args:
            silence_seconds: Longest time without an answer, once it has answered.
            stalled_seconds: Longest time with requests and without a computed token.
        """
        if self.process.poll() is not None:
            return self.ending
        if self.keeper.poll() is not None:  # somebody killed it
            self.keeper = _started_keeper()
            _name_group(self.keeper, self.process.pid)
        if self.get("/health") is not None:
            self.is_healthy, self.answered_at = True, time.monotonic()
            return self._stall(stalled_seconds)
        limit = silence_seconds if self.is_healthy else _START_SECONDS
        if time.monotonic() - self.answered_at > limit:
            return f"no answer for {limit:g} s (log: {self.log_path})"
        return ""

    def _stall(self, stalled_seconds: float) -> str:
        """Return why a server that answers makes no progress; an empty text if it does.

        An engine that hangs behind a living front end has requests and computes no tokens.
        """
        metrics, now = self.get("/metrics") or "", time.monotonic()
        num_tokens = sum(map(float, _FINISHED_TOKENS.findall(metrics)))
        self.has_finished_prompts = any(map(float, _FINISHED_PROMPTS.findall(metrics)))
        is_idle = re.search(r'"server_load": ?[1-9]', self.get("/load") or "") is None
        if is_idle or num_tokens != self.num_tokens:
            self.num_tokens, self.progress_at = num_tokens, now
        if now - self.progress_at > stalled_seconds:
            return f"it has requests and computed no token for {stalled_seconds:g} s"
        return ""

    def get(self, path: str) -> str | None:
        """Return its answer to a GET request; None if it gives none, or an error."""
        return get_text(self.url, path, api_key=self.api_key)

    @property
    def ending(self) -> str:
        """Return why the server ended: its exit code, its last error, the path of its log."""
        code = self.process.poll()
        if code == -signal.SIGKILL:
            return f"a signal killed it (log: {self.log_path})"
        return f"exit code {code}: {self.last_error()} (log: {self.log_path})"

    def last_error(self) -> str:
        """Return the last error in the log that names a cause, else its last line."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _NUM_LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            texts = [text for line in lines if (text := _without_prefix(line))]
            errors = [  # the first line of a config's error says only how many there are
                f"{text} {following}" if "validation error" in text else text
                for text, following in zip(texts, [*texts[1:], ""], strict=False)
                if _ERROR_LINE.match(text)
            ]
            causes = [text for text in errors if "root cause" not in text.lower()]
            for candidates in (causes, errors, texts):
                if candidates:
                    return candidates[-1][:_NUM_SHOWN]
        return "no output"

    def ask_to_end(self) -> None:
        """Begin the end of the server and of its processes; `close` waits for it."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End a server that is lost, and its processes, at once."""
        self._send(signal.SIGKILL)  # also those that a killed server left: they hold its GPU
        with contextlib.suppress(subprocess.TimeoutExpired):  # a hanging driver of the GPU
            self.process.wait(_END_SECONDS)
        self.is_over = True
        self.keeper.kill()
        self.keeper.communicate()

    def close(self) -> None:
        """End the server and its processes, which takes at most 8 seconds."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        self.kill()

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        if self.is_over:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _started_keeper() -> subprocess.Popen[bytes]:
    """Start the process that ends a group of processes if this process is killed."""
    return subprocess.Popen(  # noqa: S603 - the command is made here
        [sys.executable, "-I", str(_KEEPER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _name_group(keeper: subprocess.Popen[bytes], group: int) -> None:
    """Tell a keeper which group of processes it ends."""
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed it; `loss` replaces it
        keeper.stdin.write(f"{group}\n".encode())
        keeper.stdin.flush()


def _without_prefix(line: str) -> str:
    """Return a line of vLLM's log without the names of process, level, time and file."""
    match = _LOG_PREFIX.match(line.strip())
    return match["text"].strip() if match else ""


def get_text(url: str, path: str, *, api_key: str | None) -> str | None:
    """Return a server's answer to a GET request; None if it gives none, or an error.

    Args:
        url: Base URL of a server of this run; its own path is left out.
        path: Path of the request.
        api_key: Key of the server; None if it wants none.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        str(address.hostname), address.port, timeout=_ANSWER_SECONDS
    )
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return None
    return text if response.status == 200 else None
