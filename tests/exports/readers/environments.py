"""Virtual environments for readers of other versions, and scripts that run in them.

An environment lies at ``ENCORE_TEST_ENVS/<name>`` (default: in the user's cache folder). A file in
it names the installed requirements and is written last: an incomplete environment, or one of other
requirements, is built again. Each takes about 1.1 GB and one minute; ``rewardbench`` 1.7 GB,
``verl`` 1.9 GB and ``nemo-gym`` 1.4 GB.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
#: Never PyPI's own torch on Linux: that is the CUDA build, with gigabytes of libraries beside it.
_TORCH = "torch==2.13.0+cpu" if sys.platform == "linux" else "torch==2.13.0"
_TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: Packages with all that they need, for an environment whose requirements are not followed.
_AIOHTTP = (
    "aiohttp==3.14.5",
    "aiohappyeyeballs==2.7.1",
    "aiosignal==1.4.0",
    "attrs==26.1.0",
    "frozenlist==1.8.0",
    "idna==3.20",
    "multidict==7.2.1",
    "propcache==0.5.4",
    "typing_extensions==4.16.0",
    "yarl==1.25.1",
)
_HTTPX = ("httpx==0.28.1", "anyio==4.16.0", "certifi==2026.10.18", "h11==0.16.0", "httpcore==1.0.9")
_REQUESTS = (
    "requests==2.34.2",
    "certifi==2026.10.18",
    "charset-normalizer==3.4.7",
    "idna==3.20",
    "packaging==26.2",
    "urllib3==2.7.0",
)
#: Requirements for pip, by name of the environment.
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    # The last of the line that `rewardbench` from PyPI pins, and the last before transformers 5.
    "transformers-4.51": (_TORCH, "transformers==4.51.3", "jinja2==3.1.6"),
    "transformers-4.57": (_TORCH, "transformers==4.57.6", "jinja2==3.1.6"),
    "trl": (_TORCH, "trl==1.16.0", "transformers==5.23.0", "jinja2==3.1.6", "httpx==0.28.1"),
    "verifiers": ("verifiers==0.4.0",),
    "ms-swift": (_TORCH, "ms-swift==4.6.0", "httpx==0.28.1"),
    # Its requirements need CUDA; its reward client needs aiohttp alone, ours needs httpx.
    "openrlhf": ("--no-deps", "openrlhf==0.11.2", *_AIOHTTP, *_HTTPX),
    # Its requirements take torchvision's CUDA build; its reward client needs requests alone.
    "llama-factory": ("--no-deps", "llamafactory==0.9.5", *_REQUESTS),
    "verl": (_TORCH, "verl==0.9.1"),
    "nemo-gym": ("nemo-gym==0.4.0",),
    # It imports pkg_resources, which newer setuptools no longer have.
    "rewardbench": (_TORCH, "rewardbench==0.1.4", "transformers==4.51.0", "setuptools<81"),
}
#: Python of an environment whose packages need a newer one than ENCORE.
_PYTHONS = {"nemo-gym": "python3.12"}
_SECONDS = 3000
#: No network, no telemetry.
_OFFLINE = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}


def reader_python(name: str) -> Path:
    """Return the interpreter of an environment; build it if it does not exist.

    If it cannot be built, the test is skipped.
    """
    base_python = shutil.which(_PYTHONS.get(name, sys.executable))
    if base_python is None:
        pytest.skip(f"{_PYTHONS[name]} is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "encore" / "test-envs"
    folder = Path(os.environ.get("ENCORE_TEST_ENVS") or cache).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    venv, requirements = folder / name, "\n".join(ENVIRONMENTS[name]) + "\n"
    stamp, python = venv / "requirements.txt", venv / "bin" / "python"
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # wait if another process builds it
        if not (stamp.is_file() and stamp.read_text() == requirements and python.exists()):
            shutil.rmtree(venv, ignore_errors=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
            try:
                _run([base_python, "-m", "venv", str(venv)])
                try:
                    _run([*install, *ENVIRONMENTS[name]])
                except subprocess.CalledProcessError:  # the CPU build is in PyTorch's own index
                    _run([*install, "--extra-index-url", _TORCH_CPU_INDEX, *ENVIRONMENTS[name]])
            except subprocess.SubprocessError as error:
                stderr = (getattr(error, "stderr", None) or b"")[-300:]
                pytest.skip(f"environment {name} cannot be built: {stderr!r}")
            stamp.write_text(requirements)
    return python


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, env=_environ(), timeout=_SECONDS)


def _environ() -> dict[str, str]:
    # A PYTHONPATH would add the packages of another environment.
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run_script(python: Path, script: str, *arguments: object, folder: Path) -> None:
    """Run a script of ``scripts/`` in a folder, without network; fail with the end of its output.

    Args:
        python: Interpreter of an environment.
        script: Name of the script, which imports nothing of this checkout.
        arguments: Arguments of the script.
        folder: Working folder of the script.
    """
    # -I: no package from the working folder or from this environment's variables.
    finished = subprocess.run(
        [python, "-I", SCRIPTS / script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environ() | _OFFLINE | {"HF_HOME": str(folder / "hf")},
        timeout=_SECONDS,
    )
    output = (finished.stdout + finished.stderr)[-3000:]
    assert finished.returncode == 0, f"{script} in {python.parts[-3]}: {output}"


def ask(python: Path, script: str, request: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
    """Run a script that imports nothing of this checkout, and return its JSON answer.

    Args:
        python: Interpreter of an environment.
        script: Name of a file in ``scripts/``, called with the paths of request and answer.
        request: JSON values for the script.
        folder: Working folder of the script.

    Raises:
        AssertionError: The script failed; the message has the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request_file, answer_file = folder / "request.json", folder / "answer.json"
    request_file.write_text(json.dumps(request), encoding="utf-8")
    run_script(python, script, request_file, answer_file, folder=folder)
    answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8"))
    return answer
