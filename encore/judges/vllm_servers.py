"""vLLM servers on this machine: their command, their health, and what replaces a lost one."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from encore.core.errors import JudgeUnavailableError
from encore.core.leftovers import new_scratch_folder
from encore.core.settings import load_settings
from encore.judges.vllm_engine import VllmJudge, missing_vllm
from encore.runs.run_files import run_key_of

logger = logging.getLogger(__name__)

#: Address of the servers of this machine.
LOOPBACK = "127.0.0.1"
#: Starts of a server without a finished prompt between them, and the time that one may take.
_MAX_STARTS, _START_SECONDS = 3, 3600.0
#: A server at work that computed no token for so long is lost.
_STALLED_SECONDS = 600.0
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.5
#: Longest wait for a process that was asked to end; its keeper kills it before.
_END_SECONDS = 20.0
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


def served_name(judge: VllmJudge) -> str:
    """Return the name under which servers serve a judge.

    It has 16 hex digits of the judge's identity. A server with another revision, number format,
    context or chat template has another name, so a client refuses it.
    """
    return f"{judge.model.name}@{run_key_of(asdict(judge.identity))}"


def server_command(
    judge: VllmJudge, *, port: int, host: str = LOOPBACK, served_name: str
) -> list[str]:
    """Return the command of a vLLM server with the engine that the judge has in this process.

    Args:
        judge: The judge to serve.
        port: Port to listen on.
        host: Address to listen on.
        served_name: Name of the judge in requests.

    Raises:
        JudgeUnavailableError: vLLM is not installed, or its engine has no such argument.
    """
    try:
        args = judge.engine_args()
        _refuse_unknown_args(judge)
    except ImportError as error:
        raise missing_vllm(error) from error
    del args["model"], args["use_tqdm_on_load"]
    options = {
        "model": judge.model.location,
        "served_model_name": served_name,
        "host": host,
        "port": port,
        "generation_config": "vllm",  # greedy: the penalties of the model's own are for chat
        # A server's own batches are half as large as those of an engine in this process.
        "performance_mode": "throughput",
        "enable_prompt_tokens_details": True,
        "enable_server_load_tracking": True,
        "enable_log_requests": False,
        **args,
    }
    flags = [_flag(name, value) for name, value in options.items() if value is not None]
    module = "vllm.entrypoints.openai.api_server"  # the package for CPUs has no command
    return [sys.executable, "-P", "-m", module, *flags, "--disable-uvicorn-access-log"]


def _flag(name: str, value: object) -> str:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option}={value}"


def _refuse_unknown_args(judge: VllmJudge) -> None:
    """Refuse engine arguments that the server would read as its own, such as a port.

    Raises:
        JudgeUnavailableError: It names the first unknown argument.
    """
    names = judge.config.engine_args.keys() - judge.SPEED_ARGS
    if not names:
        return
    from vllm.engine.arg_utils import EngineArgs  # takes seconds

    if unknown := sorted(names - EngineArgs.__dataclass_fields__.keys()):
        raise JudgeUnavailableError(
            f"engine argument {unknown[0]!r}: vLLM's engine has none of that name; leave it out"
        )


def server_environment(_judge: VllmJudge, share: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a judge's server.

    On a network, the caller adds the key that clients must have as ``VLLM_API_KEY``.

    Args:
        _judge: The judge to serve, which needs nothing of its own.
        share: Variables of the server's GPUs or share of cores (`encore.judges.gpu_groups`).
    """
    return {
        **os.environ,
        # Beside its front end vLLM's engine would leave a core free, and several servers would all
        # pin their threads to the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(load_settings().cpu_kv_cache_gib),
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # Its log is a file of its own; this process has vLLM say errors only.
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        **share,
    }


class ServerSource(Protocol):
    """Starts the servers of a judge, replaces the lost ones, and ends them all.

    Attributes:
        api_key: Key that the servers want; None if they want none, as on loopback.
    """

    api_key: str | None

    @property
    def num_servers(self) -> int:
        """Number of servers that it starts."""

    def start(self, judge: VllmJudge, /) -> Sequence[str]:
        """Start the servers; return the base URLs of those that answer, at least one.

        Raises:
            JudgeUnavailableError: None could be started.
        """

    def check(self) -> Sequence[str]:
        """Replace lost servers; return the base URLs of those that are there to be asked.

        Raises:
            JudgeUnavailableError: No server is left to be asked.
        """

    def close(self) -> None:
        """End the servers."""


@dataclass(slots=True)
class ServerProcess:
    """One server as a process of this machine. It ends with this process, however that ends.

    Attributes:
        url: Base URL of the server.
        log_path: File with its output.
        keeper: Process that runs it (`encore.judges.server_keeper`).
    """

    url: str
    log_path: Path
    keeper: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls, command: Sequence[str], *, url: str, environment: Mapping[str, str], log_path: Path
    ) -> ServerProcess:
        """Start a command as a server whose output goes to a file."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:  # a server that is started again goes on in it
            keeper = subprocess.Popen(  # noqa: S603 - the command is made here
                [sys.executable, "-I", str(_KEEPER), *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is this process's to pass on
            )
        return cls(url=url, log_path=log_path, keeper=keeper)

    def poll(self) -> int | None:
        """Return the exit code of the server; None while it runs."""
        return self.keeper.poll()

    @property
    def ending(self) -> str:
        """Return why the server ended: its exit code, its last error, the path of its log."""
        code = self.poll()
        if code == 128 + 9:
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
        if self.keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self.keeper.stdin.close()

    def kill(self) -> None:
        """End a server that does not answer, and its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            self.keeper.send_signal(signal.SIGUSR1)
        self.close()

    def close(self) -> None:
        """End the server and its processes, which takes at most 20 seconds."""
        self.ask_to_end()
        try:
            self.keeper.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()


def _without_prefix(line: str) -> str:
    """Return a line of vLLM's log without the names of process, level, time and file."""
    match = _LOG_PREFIX.match(line.strip())
    return match["text"].strip() if match else ""


def wait_until_healthy(
    url: str, *, process: ServerProcess, timeout_seconds: float, api_key: str | None
) -> None:
    """Wait until a server answers; loading a large judge takes minutes.

    Args:
        url: Base URL of the server.
        process: The process that runs the server.
        timeout_seconds: Longest time to wait.
        api_key: Key of the server; None if it wants none.

    Raises:
        JudgeUnavailableError: It ended, or did not answer in time, with the last line of its log.
    """
    deadline = time.monotonic() + timeout_seconds
    while get_text(url, "/health", api_key=api_key) is None:
        if process.poll() is not None:
            raise JudgeUnavailableError(f"the vLLM server at {url} ended: {process.ending}")
        if time.monotonic() > deadline:
            raise JudgeUnavailableError(
                f"the vLLM server at {url} did not answer within {timeout_seconds:g} s: "
                f"{process.last_error()} (log: {process.log_path})"
            )
        time.sleep(_POLL_SECONDS)


def get_text(url: str, path: str, *, api_key: str | None) -> str | None:
    """Return a server's answer to a GET request; None if it gives none, or an error.

    Args:
        url: Base URL of the server; its own path is left out.
        path: Path of the request.
        api_key: Key of the server; None if it wants none.
    """
    address = urlsplit(url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(address.hostname), address.port, timeout=_ANSWER_SECONDS)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return None
    return text if response.status == 200 else None


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One of the servers, through its restarts.

    Attributes:
        number: Number of the server, from 0.
        process: Its present process; None before the first.
        num_starts: Starts since a prompt was last finished.
        is_healthy: True once the present process answered.
        was_lost: True once a process was lost.
        answered_at: Time of the last answer, or of the present start.
        num_tokens: Tokens computed by the present process, and ``progress_at`` the time it was new.
        error: Why it was given up; empty while it was not.
    """

    number: int
    process: ServerProcess | None = None
    num_starts: int = 0
    is_healthy: bool = False
    was_lost: bool = False
    answered_at: float = 0.0
    num_tokens: float = 0.0
    progress_at: float = 0.0
    error: str = ""


@dataclass(slots=True, kw_only=True)
class LocalServers:
    """Servers (`ServerSource`) as processes of this machine.

    Attributes:
        shares: Variables of each server's GPUs or share of cores (`encore.judges.gpu_groups`).
        log_dir: Folder of the logs. None: a temporary folder, kept if a server was lost.
        silence_seconds: A server that answers no question for so long is replaced.
        stalled_seconds: A server with requests that computes no token for so long is replaced.
        make_command: Returns the command of a server; `server_command` by default.
        host: Address to listen on. Where others reach it, clients must have a key.
        api_key: Key that clients must have; None on loopback.
    """

    shares: Sequence[Mapping[str, str]]
    log_dir: Path | None = None
    silence_seconds: float = 60.0
    stalled_seconds: float = _STALLED_SECONDS
    make_command: Callable[..., list[str]] = server_command
    host: str = "127.0.0.1"
    api_key: str | None = None
    slots: list[_Slot] = field(default_factory=list, init=False)
    judge: VllmJudge | None = field(default=None, init=False)
    scratch: Path | None = field(default=None, init=False)

    @property
    def num_servers(self) -> int:
        """Return the number of servers that are started."""
        return len(self.shares)

    def start(self, judge: VllmJudge, /) -> Sequence[str]:
        """Start the servers at the same time; return the base URLs of those that answer first.

        Raises:
            JudgeUnavailableError: None could be started.
        """
        self.judge = judge
        if self.log_dir is None:
            self.log_dir = self.scratch = new_scratch_folder("encore-servers-")
        self.slots = [_Slot(number=number) for number in range(self.num_servers)]
        try:
            for slot in self.slots:
                self._start(slot)
            while not (urls := self.check()):
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.close()
            raise
        return urls

    def check(self) -> Sequence[str]:
        """Replace lost servers; return the base URLs of those that have answered.

        Raises:
            JudgeUnavailableError: No server is left to be asked.
        """
        for slot in self.slots:
            if not slot.error and (reason := self._loss(slot)):
                self._replace(slot, reason)
        errors = [slot.error for slot in self.slots if slot.error]
        if len(errors) == self.num_servers:
            raise JudgeUnavailableError(
                f"no vLLM server is left: {'; '.join(errors)}; finished work is kept: put this "
                "right and run the same command again"
            )
        return [
            slot.process.url
            for slot in self.slots
            if slot.is_healthy and not slot.error and slot.process is not None
        ]

    def close(self) -> None:
        """End the servers."""
        processes = [slot.process for slot in self.slots if slot.process is not None]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.close()
        if self.scratch is not None and not any(slot.was_lost for slot in self.slots):
            shutil.rmtree(self.scratch, ignore_errors=True)
        if self.scratch is not None:
            self.log_dir = self.scratch = None

    def _start(self, slot: _Slot) -> None:
        """Start the process of a slot on a free port."""
        assert self.judge is not None
        assert self.log_dir is not None
        port, now = _free_port(self.host), time.monotonic()
        command = self.make_command(
            self.judge, port=port, host=self.host, served_name=served_name(self.judge)
        )
        environment = server_environment(self.judge, self.shares[slot.number])
        if self.api_key is not None:
            environment["VLLM_API_KEY"] = self.api_key  # other users see a command's arguments
        slot.num_starts += 1
        slot.is_healthy, slot.num_tokens = False, 0.0
        slot.answered_at = slot.progress_at = now
        slot.process = ServerProcess.start(
            command,
            url=f"http://{self.host}:{port}/v1",
            environment=environment,
            log_path=self.log_dir / f"server-{slot.number}.log",
        )

    def _loss(self, slot: _Slot) -> str:
        """Return why a server is lost; an empty text while it is not."""
        process, now = slot.process, time.monotonic()
        assert process is not None
        if process.poll() is not None:
            return process.ending
        if get_text(process.url, "/health", api_key=self.api_key) is not None:
            slot.is_healthy, slot.answered_at = True, now
            return self._stall(slot, process.url)
        limit = self.silence_seconds if slot.is_healthy else _START_SECONDS
        if now - slot.answered_at > limit:
            return f"no answer for {limit:g} s (log: {process.log_path})"
        return ""

    def _stall(self, slot: _Slot, url: str) -> str:
        """Return why a server that answers makes no progress; an empty text if it does.

        An engine that hangs behind a living front end has requests and computes no tokens.
        """
        metrics, now = get_text(url, "/metrics", api_key=self.api_key) or "", time.monotonic()
        num_tokens = sum(map(float, _FINISHED_TOKENS.findall(metrics)))
        if sum(map(float, _FINISHED_PROMPTS.findall(metrics))):
            slot.num_starts = 1
        load = get_text(url, "/load", api_key=self.api_key) or ""
        is_idle = re.search(r'"server_load": ?[1-9]', load) is None
        if is_idle or num_tokens != slot.num_tokens:
            slot.num_tokens, slot.progress_at = num_tokens, now
        if now - slot.progress_at > self.stalled_seconds:
            return f"it has requests and computed no token for {self.stalled_seconds:g} s"
        return ""

    def _replace(self, slot: _Slot, reason: str) -> None:
        """End a slot's process and start another, or give the slot up after too many starts."""
        assert slot.process is not None
        slot.is_healthy, slot.was_lost = False, True
        slot.process.kill()
        label = f"server {slot.number + 1} of {self.num_servers}"
        if slot.num_starts >= _MAX_STARTS:
            slot.error = f"{label}: {reason}, after {slot.num_starts} starts"
            logger.warning("%s is given up: %s", label, reason)
            return
        logger.warning("%s is started again: %s", label, reason)
        self._start(slot)


def _free_port(host: str) -> int:
    """Return a port that nothing listens on. A server that finds it taken is started again."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
