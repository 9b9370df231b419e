"""Real vLLM servers on the CPU, and a router in front of them, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.worlds.servers import background_process, free_port, wait_until

START_SECONDS = 400
ENVIRONMENT = os.environ | {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers on the same cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a process less
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def vllm_server(
    folder: Path, log: Path, *options: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server of the model in a folder, under the folder's name; it may not be ready yet."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(folder), "--served-model-name", folder.name]
    command += ["--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"]
    command += ["--block-size", "32", "--enable-prompt-tokens-details", *options]
    with background_process(*command, environ=ENVIRONMENT, log=log) as process:
        yield f"http://127.0.0.1:{port}", process


@contextmanager
def router(workers: list[str], log: Path) -> Iterator[str]:
    """Run a router that sends one session to one server, for servers that are ready."""
    port = free_port()
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--policy", "consistent_hash", "--worker-urls", *workers]
    command += ["--worker-startup-timeout-secs", str(START_SECONDS)]
    command += ["--prometheus-port", str(free_port()), "--log-level", "warning"]
    with background_process(*command, environ=ENVIRONMENT, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process)
        yield url


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server lists its models."""

    def is_ready() -> bool:
        assert process.poll() is None, f"{url}: the server ended with {process.poll()}"
        return httpx.get(f"{url}/v1/models", timeout=5).is_success

    wait_until(is_ready, seconds=START_SECONDS, event=f"an answer of {url}")
