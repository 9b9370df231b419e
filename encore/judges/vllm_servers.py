"""vLLM servers on this machine: their command, and what replaces a lost one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from encore.core.errors import JudgeUnavailableError
from encore.core.leftovers import new_scratch_folder
from encore.core.settings import load_settings
from encore.judges.server_process import ServerProcess
from encore.judges.vllm_engine import VllmJudge, missing_vllm
from encore.runs.identity import run_key_of

logger = logging.getLogger(__name__)

#: Address of the servers of this machine.
LOOPBACK = "127.0.0.1"
#: Starts of a server without a finished prompt between them.
_MAX_STARTS = 3


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
        judge.refuse_unknown_args()
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
    return f"--{option}={json.dumps(value) if isinstance(value, dict | list) else value}"


def server_environment(share: Mapping[str, str], *, api_key: str | None) -> dict[str, str]:
    """Return the environment of a server.

    Args:
        share: Variables of the server's GPUs or share of cores (`encore.judges.gpu_groups`).
        api_key: Key that clients must have; None on loopback.
    """
    # Other users see the arguments of a command.
    key = {} if api_key is None else {"VLLM_API_KEY": api_key}
    return {
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        **os.environ,
        # Beside its front end vLLM's engine would leave a core free, and several servers would all
        # pin their threads to the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(load_settings().cpu_kv_cache_gib),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # Its log is a file of its own; this process has vLLM say errors only.
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        **share,
        **key,
    }


class ServerSource(Protocol):
    """Starts the servers of a judge, replaces the lost ones, and ends them all.

    Whoever starts them closes the source, also after an error.

    Attributes:
        api_key: Key that the servers want; None if they want none, as on loopback.
    """

    api_key: str | None

    @property
    def are_here(self) -> bool:
        """True if the servers run on this machine."""

    @property
    def num_servers(self) -> int:
        """Number of servers that it starts."""

    def start(self, judge: VllmJudge, /) -> None:
        """Begin to start the servers; `check` says which of them answer."""

    def check(self) -> Sequence[str]:
        """Replace lost servers; return the base URLs of those that are there to be asked.

        Raises:
            JudgeUnavailableError: No server is left to be asked.
        """

    def close(self) -> None:
        """End the servers."""


@dataclass(slots=True)
class _Slot:
    """One of the servers, through its restarts.

    Attributes:
        number: Number of the server, from 0.
        process: Its present process.
        num_starts: Starts since a prompt was last finished.
        error: Why it was given up; empty while it was not.
    """

    number: int
    process: ServerProcess
    num_starts: int = 1
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
    stalled_seconds: float = 600.0
    make_command: Callable[..., list[str]] = server_command
    host: str = LOOPBACK
    api_key: str | None = None
    slots: list[_Slot] = field(default_factory=list, init=False)
    _judge: VllmJudge = field(init=False)
    _folder: Path | None = field(default=None, init=False)
    _was_one_lost: bool = field(default=False, init=False)

    @property
    def are_here(self) -> bool:
        """Return True: they run on this machine."""
        return True

    @property
    def num_servers(self) -> int:
        """Return the number of servers that are started."""
        return len(self.shares)

    def start(self, judge: VllmJudge, /) -> None:
        """Start a process for each server."""
        self._judge = judge
        self._folder = self.log_dir or new_scratch_folder("encore-servers-")
        self._was_one_lost = False
        self.slots = []
        for number in range(self.num_servers):
            self.slots.append(_Slot(number, self._started(number)))

    def check(self) -> Sequence[str]:
        """Replace lost servers; return the base URLs of those that have answered.

        Raises:
            JudgeUnavailableError: No server is left to be asked.
        """
        limits = {"silence_seconds": self.silence_seconds, "stalled_seconds": self.stalled_seconds}
        for slot in self.slots:
            if not slot.error and (reason := slot.process.loss(**limits)):
                self._replace(slot, reason)
        present = [slot for slot in self.slots if not slot.error]
        if not present:
            errors = "; ".join(slot.error for slot in self.slots)
            raise JudgeUnavailableError(
                f"no vLLM server is left: {errors}; finished work is kept: put this right and run "
                "the same command again"
            )
        return [slot.process.url for slot in present if slot.process.is_healthy]

    def close(self) -> None:
        """End the servers."""
        for slot in self.slots:
            slot.process.ask_to_end()
        for slot in self.slots:
            slot.process.close()
        if self.log_dir is None and self._folder is not None and not self._was_one_lost:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self, number: int) -> ServerProcess:
        """Return a new process of a server, on a free port."""
        assert self._folder is not None
        port, name = _free_port(self.host), served_name(self._judge)
        return ServerProcess.start(
            self.make_command(self._judge, port=port, host=self.host, served_name=name),
            url=f"http://{self.host}:{port}/v1",
            environment=server_environment(self.shares[number], api_key=self.api_key),
            log_path=self._folder / f"server-{number}.log",
            api_key=self.api_key,
        )

    def _replace(self, slot: _Slot, reason: str) -> None:
        """End a slot's process and start another, or give the slot up after too many starts."""
        self._was_one_lost = True
        slot.process.kill()
        if slot.process.has_finished_prompts:
            slot.num_starts = 1
        label = f"server {slot.number + 1} of {self.num_servers}"
        if slot.num_starts >= _MAX_STARTS:
            slot.error = f"{label}: {reason}, after {slot.num_starts} starts"
            logger.warning("%s is given up: %s", label, reason)
            return
        logger.warning("%s is started again: %s", label, reason)
        slot.num_starts += 1
        slot.process = self._started(slot.number)


def _free_port(host: str) -> int:
    """Return a port that nothing listens on. A server that finds it taken is started again."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
