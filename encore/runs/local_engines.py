"""Engines as processes of this machine, each with GPUs of its own. No server is needed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from encore.core.doctor import output_of
from encore.core.errors import InputError
from encore.runs.engine_messages import EngineSpec, heartbeat_path
from encore.runs.engine_options import EnginesConfig
from encore.runs.engine_supervisor import EngineState
from encore.runs.shard_runner import Job, RunReport

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
_STOP_SECONDS = 20.0

#: Exit code of an engine whose disk is full: neither its heartbeat nor its log can say so.
DISK_FULL_CODE = 74

#: Runs a stage's job: in this process, or by engines.
JobRunner = Callable[[Job], RunReport]

#: The stages whose shards engines share; `encore.cli.engine_process` has the config of each.
EngineStage = Literal["rate", "score"]


class EngineRequest(BaseModel):
    """Request to an engine process, which reads it from its standard input.

    Attributes:
        stage: The stage that the engine works for.
        config: The options of that stage as JSON values; the process knows their model.
        retries: Further attempts for a shard whose error may pass.
        spec: What the supervisor asks of this engine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: EngineStage
    config: dict[str, Any]
    retries: int
    spec: EngineSpec


def engine_environments(
    engines: int | Literal["auto"], gpus_per_engine: int
) -> list[dict[str, str]]:
    """Return the variables that each engine's environment adds: its GPUs, or its share of cores.

    Args:
        engines: Number of engines; ``auto`` takes as many as there are groups of GPUs, or one.
        gpus_per_engine: Number of GPUs that the model takes.

    Raises:
        InputError: The number of visible GPUs does not allow it.
    """
    gpus = visible_gpus()
    if not gpus:
        num_engines = 1 if engines == "auto" else engines
        threads = str(max(1, (os.cpu_count() or 1) // num_engines))
        # Engines that pin their threads would all pin them to the same cores.
        share = {"OMP_NUM_THREADS": threads, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return [share] * num_engines
    if len(gpus) % gpus_per_engine:
        raise InputError(
            f"{len(gpus)} GPUs ({','.join(gpus)}): an engine takes {gpus_per_engine} of them "
            f"(tensor times pipeline parallel size), which does not divide {len(gpus)}; choose the "
            f"GPUs with {GPU_VARIABLE}"
        )
    groups = [
        gpus[first : first + gpus_per_engine] for first in range(0, len(gpus), gpus_per_engine)
    ]
    num_engines = len(groups) if engines == "auto" else engines
    if num_engines > len(groups):
        raise InputError(
            f"--engines {num_engines}: {len(gpus)} GPUs are enough for {len(groups)} engines of "
            f"{gpus_per_engine} GPUs; give at most {len(groups)}"
        )
    return [{GPU_VARIABLE: ",".join(group)} for group in groups[:num_engines]]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = os.environ.get(GPU_VARIABLE)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]
    command = shutil.which("nvidia-smi")
    listing = output_of(command, "-L") if command else ""
    return re.findall(r"^GPU (\d+):", listing, flags=re.MULTILINE)


@dataclass(slots=True)
class LocalLauncher:
    """Starts engines as processes of this machine (`encore.runs.engine_supervisor.Launcher`).

    Each engine's output goes to a log beside its heartbeat. An engine ends when its parent dies: it
    watches the pipe that its request came through.

    Attributes:
        stage: The stage that the engines work for.
        config: All options of the stage.
        environments: Variables that each engine's environment adds, by slot.
        run_dir: Folder of the run; logs are written below it.
        retries: Further attempts for a shard whose error may pass.
    """

    stage: EngineStage
    config: EnginesConfig
    environments: Sequence[Mapping[str, str]]
    run_dir: Path
    retries: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    specs: list[EngineSpec] = field(default_factory=list)

    def adopt(self, _run_key: str, /) -> Sequence[EngineSpec]:
        """Return the engines started here: local engines end with their parent."""
        return tuple(self.specs)

    def start(self, spec: EngineSpec) -> None:
        """Start a process with the environment of the engine's slot."""
        request = EngineRequest(
            stage=self.stage,
            config=self.config.model_dump(mode="json"),
            retries=self.retries,
            spec=spec,
        )
        log_path = self._log(spec.name)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "encore.cli.engine_process"],
                env={**os.environ, **self.environments[spec.slot]},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the parent's to pass on
            )
        self.processes[spec.name] = process
        self.specs.append(spec)
        with contextlib.suppress(OSError):  # it died at once: its state says so
            assert process.stdin is not None
            process.stdin.write(request.model_dump_json().encode() + b"\n")
            process.stdin.flush()

    def state(self, name: str) -> EngineState:
        """Return the state of a process. One that a signal ended is lost."""
        code = self.processes[name].poll()
        if code is None:
            return EngineState("running")
        if code < 0:
            return EngineState("lost", f"signal {-code} ended it ({signal.strsignal(-code)})")
        log_path = self._log(name)
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        last_line = lines[-1].strip() if lines else "no output"
        if code == DISK_FULL_CODE:
            last_line = f"a disk was full, perhaps that of {self.run_dir}; make room"
        message = f"exit code {code}: {last_line} (log: {log_path})"
        return EngineState("ended", message if code else "")

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Send a process and all that it started a signal to end."""
        process = self.processes[name]
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)

    def close(self) -> None:
        """Wait for the processes; kill those that have not ended after 20 seconds."""
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def _log(self, name: str) -> Path:
        return heartbeat_path(self.run_dir, name).with_suffix(".log")
