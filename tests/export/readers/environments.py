"""Virtual environments for readers of other versions: built on demand, kept outside the checkout.

An environment lies at ``ENCORE_TEST_ENVS/<name>`` (default: in the user's cache folder). What was
installed is written beside it last, so one that was cut off, or is for other requirements, is
built again. About 1.1 GB and one minute each; ``rewardbench`` takes 1.7 GB.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

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

_STAMP = "requirements.txt"
_SECONDS = 1500


class EnvironmentUnavailableError(Exception):
    """Why an environment cannot be built here, in one line."""


def environments_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the environments lie."""
    if given := environ.get("ENCORE_TEST_ENVS"):
        return Path(given).expanduser().resolve()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "encore" / "test-envs"


def environment_python(name: str, *, folder: Path | None = None, run: Run | None = None) -> Path:
    """The interpreter of an environment, which is built first where it is not there.

    Args:
        name: One of `ENVIRONMENTS`.
        folder: Instead of `environments_folder`.
        run: What starts pip and venv (default: as a process).

    Raises:
        EnvironmentUnavailableError: pip or venv say no; their reason.
    """
    folder = folder or environments_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnavailableError(f"{folder} cannot be made: {error}") from error
    venv = folder / name
    wanted = "\n".join(ENVIRONMENTS[name]) + "\n"
    with _lock(folder / f".{name}.lock"):
        if not _is_ready(venv, wanted):
            _build(venv, ENVIRONMENTS[name], run or _run)
            (venv / _STAMP).write_text(wanted, encoding="utf-8")
    return _python(venv)


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _is_ready(venv: Path, wanted: str) -> bool:
    try:
        return (venv / _STAMP).read_text(encoding="utf-8") == wanted and _python(venv).exists()
    except OSError:
        return False


def _build(venv: Path, requirements: Sequence[str], run: Run) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    made = run([sys.executable, "-m", "venv", str(venv)])
    if made.returncode != 0:
        raise EnvironmentUnavailableError(f"{sys.executable} makes no venv: {_reason(made)}")
    install = [str(_python(venv)), "-m", "pip", "install", "--quiet", "--no-input"]
    done = run([*install, *requirements])
    if done.returncode != 0:  # outside, the CPU build of torch is in PyTorch's own index only
        done = run([*install, "--extra-index-url", _TORCH_CPU_INDEX, *requirements])
    if done.returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise EnvironmentUnavailableError(f"pip installs no {requirements[1]}: {_reason(done)}")


def _reason(process: subprocess.CompletedProcess[str]) -> str:
    """The last thing it calls an error."""
    errors = re.findall(r"ERROR: (.+)", process.stderr)
    said = errors[-1] if errors else process.stderr or process.stdout or "no reason given"
    return " ".join(said.split())[-300:]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # A PYTHONPATH would let the packages of another environment in.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env={**environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"},
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnavailableError(f"pip was not done after {_SECONDS} s") from error


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """While another process builds the same environment, wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def reader_python(name: str) -> Path:
    """The interpreter of an environment; where none can be built the test is skipped.

    With ENCORE_REQUIRE_READERS=1 it fails instead.
    """
    try:
        return environment_python(name)
    except EnvironmentUnavailableError as error:
        if os.environ.get("ENCORE_REQUIRE_READERS") == "1":
            pytest.fail(f"environment {name} is required here: {error}")
        pytest.skip(f"environment {name}: {error}")
