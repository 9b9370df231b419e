"""Virtual environments for readers of other versions, and scripts that run in them.

An environment lies at ``ENCORE_TEST_ENVS/<name>`` (default: in the user's cache folder). What was
installed is written beside it last, so one that was cut off, or is for other requirements, is
built again. About 1.1 GB and one minute each; ``rewardbench`` takes 1.7 GB.
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
#: By name, what pip is asked for.
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    # The last of the line that `rewardbench` from PyPI pins, and the last before transformers 5.
    "transformers-4.51": (_TORCH, "transformers==4.51.3", "jinja2==3.1.6"),
    "transformers-4.57": (_TORCH, "transformers==4.57.6", "jinja2==3.1.6"),
    "trl": (_TORCH, "trl==1.16.0", "transformers==5.23.0", "jinja2==3.1.6"),
    # It imports pkg_resources, which newer setuptools no longer have.
    "rewardbench": (_TORCH, "rewardbench==0.1.4", "transformers==4.51.0", "setuptools<81"),
}
_SECONDS = 1500
#: No network, no telemetry.
_OFFLINE = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}


def reader_python(name: str) -> Path:
    """The interpreter of an environment, which is built first where it is not there.

    Where none can be built the test is skipped.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "encore" / "test-envs"
    folder = Path(os.environ.get("ENCORE_TEST_ENVS") or cache).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    venv, wanted = folder / name, "\n".join(ENVIRONMENTS[name]) + "\n"
    stamp, python = venv / "requirements.txt", venv / "bin" / "python"
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # while another process builds it, wait
        if not (stamp.is_file() and stamp.read_text() == wanted and python.exists()):
            shutil.rmtree(venv, ignore_errors=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
            try:
                _run([sys.executable, "-m", "venv", str(venv)])
                try:
                    _run([*install, *ENVIRONMENTS[name]])
                except subprocess.CalledProcessError:  # the CPU build is in PyTorch's own index
                    _run([*install, "--extra-index-url", _TORCH_CPU_INDEX, *ENVIRONMENTS[name]])
            except subprocess.SubprocessError as error:
                said = (getattr(error, "stderr", None) or b"")[-300:]
                pytest.skip(f"environment {name} cannot be built: {said!r}")
            stamp.write_text(wanted)
    return python


def _run(command: Sequence[str]) -> None:
    # A PYTHONPATH would let the packages of another environment in.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, capture_output=True, env=environ, timeout=_SECONDS)


def offline_environ(**changes: str) -> dict[str, str]:
    """This process's environment without network and without another Python's packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | _OFFLINE | changes


def ask(python: Path, script: str, request: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
    """The JSON answer of a script that runs with an interpreter and sees nothing of this checkout.

    Args:
        python: Of an environment.
        script: The name of a file in ``scripts/``, called with the paths of request and answer.
        request: JSON values.
        folder: Where it runs and writes.

    Raises:
        AssertionError: It ended with an error; the end of what it said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "request.json", folder / "answer.json"
    asked.write_text(json.dumps(request), encoding="utf-8")
    # -I: neither the working folder nor this environment's variables lend it any package.
    done = subprocess.run(
        [str(python), "-I", str(SCRIPTS / script), str(asked), str(answered)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=offline_environ(HF_HOME=str(folder / "hf")),
        timeout=_SECONDS,
    )
    assert done.returncode == 0, f"{script} in {python.parts[-3]}: {done.stderr[-3000:]}"
    answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return answer
