"""Does this machine have what the work needs: GPU, memory, disk, ports, the hub, a browser?"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from encore.doctor.finding import Finding

#: The demo's engine with its caches fits into this.
ENOUGH_MEMORY_GIB = 4.0
ENOUGH_DISK_GIB = 5.0
HUB = "https://huggingface.co"
PREFECT_PORT = 4200
MLFLOW_PORT = 5000


def settings(problem: str | None) -> Finding:
    """The ENCORE_ variables of the environment can be read (``problem``: why not)."""
    return Finding(
        check="settings",
        found=problem or "valid",
        expected="ENCORE_ variables of encore/settings.py",
        verdict="fail" if problem else "ok",
        next_step="correct or unset the variable" if problem else "",
    )


def ask_nvidia_smi(command: str = "nvidia-smi") -> str | None:
    """Name, memory and driver of each GPU, one a line; None where there is no working driver."""
    path = shutil.which(command)
    if path is None:
        return None
    query = [path, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def gpu(listing: str | None, *, installed: Mapping[str, str]) -> Finding:
    """The installed engine suits the GPU, or its absence (``listing``: `ask_nvidia_smi`)."""
    has_gpu_engine = "vllm" in installed
    next_step = ""
    if listing and not has_gpu_engine:
        next_step = "to use it, in a new environment: pip install 'encore-reward[judge]'"
    if not listing and has_gpu_engine:
        next_step = "install a driver, or in a new environment: make setup (CPU engine)"
    return Finding(
        check="GPU",
        found="; ".join(listing.splitlines()) if listing else "none, CPU engine",
        expected="a driver that answers, for vllm" if has_gpu_engine else "none needed",
        verdict="warn" if next_step else "ok",
        next_step=next_step,
    )


def available_memory_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """Memory that can be had without swapping, in GiB; None where the system does not say."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) / 2**20 if kib else None


def memory(available_gib: float | None) -> Finding:
    """There is enough free memory for a small engine."""
    is_short = available_gib is not None and available_gib < ENOUGH_MEMORY_GIB
    return Finding(
        check="memory",
        found="unknown" if available_gib is None else f"{available_gib:.1f} GiB available",
        expected=f">= {ENOUGH_MEMORY_GIB:.0f} GiB for the demo",
        verdict="warn" if is_short else "ok",
        next_step="end other programs, or set ENCORE_CPU_KV_CACHE_GIB=1" if is_short else "",
    )


def free_disk_gib(folder: Path) -> float:
    """Free space where a folder is or would be made, in GiB."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free / 2**30


def disk(folder: Path, *, purpose: str, free_gib: float) -> Finding:
    """There is room for what will be written into a folder."""
    is_short = free_gib < ENOUGH_DISK_GIB
    return Finding(
        check=f"disk, {purpose}",
        found=f"{free_gib:.1f} GiB free in {folder}",
        expected=f">= {ENOUGH_DISK_GIB:.0f} GiB",
        verdict="warn" if is_short else "ok",
        next_step="free some, or work in another folder" if is_short else "",
    )


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where the hub's client keeps downloads, by the variables it reads."""
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def ask_port(port: int, *, path: str, timeout_seconds: float = 2.0) -> int | None:
    """HTTP status of a local server; 0 if something else listens, None if nothing does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def port(number: int, *, server: str, status: int | None) -> Finding:
    """A server's usual port is free, or it is the server that answers (``status``: `ask_port`)."""
    found = {None: "free", 200: f"a {server} server answers"}.get(status, "used by something else")
    is_taken = status not in (None, 200)
    return Finding(
        check=f"port {number}",
        found=found,
        expected=f"free, or {server}",
        verdict="warn" if is_taken else "ok",
        next_step=f"start {server} with --port and another number" if is_taken else "",
    )


def ask_hub(environ: Mapping[str, str], *, timeout_seconds: float = 3.0) -> str | None:
    """None if the hub answers, otherwise why not. Nothing is asked in offline mode."""
    endpoint = environ.get("HF_ENDPOINT") or HUB
    if not endpoint.startswith(("http://", "https://")):
        return f"HF_ENDPOINT is {endpoint!r}, no http address"
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - scheme checked above
    try:
        urllib.request.urlopen(request, timeout=timeout_seconds).close()  # noqa: S310 - as above
    except urllib.error.HTTPError:
        return None  # an answer, if an unfriendly one
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None


def is_hub_offline(environ: Mapping[str, str]) -> bool:
    """Whether the hub's client was told not to use the network."""
    return environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def hub(problem: str | None, *, is_offline: bool) -> Finding:
    """Data sets and judges can be loaded by hub id (``problem``: `ask_hub`)."""
    local = "give data and judges by local path; the demo needs no hub"
    if is_offline:
        found, next_step = "not asked: HF_HUB_OFFLINE is set", ""
    else:
        found, next_step = (f"no answer: {problem}", local) if problem else ("answers", "")
    return Finding(
        check="hub",
        found=found,
        expected="an answer, to load by hub id",
        verdict="warn" if next_step else "ok",
        next_step=next_step,
    )


def hub_token(environ: Mapping[str, str]) -> Finding:
    """Whether gated models can be loaded. The token itself is never shown."""
    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    is_set = any(environ.get(name) for name in names)
    return Finding(
        check="hub token",
        found="set" if is_set else "not set",
        expected="set, for gated models only",
    )


def browser(path: str | None) -> Finding:
    """Chromium is there for the tests that look at a page."""
    return Finding(
        check="Chromium",
        found=path or "none",
        expected="only for make test-full",
        next_step="" if path else "Debian: apt install chromium",
    )
