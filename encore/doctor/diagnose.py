"""Look at the real world and hand what is seen to the checks."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from encore.doctor import machine, packages
from encore.doctor.finding import Finding
from encore.errors import InputError

DISTRIBUTION = "encore-reward"
CHECKOUT = Path(__file__).resolve().parents[2]


def diagnose(environ: Mapping[str, str], *, folder: Path) -> list[Finding]:
    """Every finding about this interpreter, this machine and the folder one works in."""
    installed = installed_versions()
    return [
        packages.python_version(sys.version_info[:3]),
        packages.core_imports(packages.try_imports(packages.CORE_MODULES)),
        *_package_findings(installed),
        *_machine_findings(environ, folder=folder, installed=installed),
    ]


def installed_versions() -> dict[str, str]:
    """The version of every installed distribution by normalized name."""
    return {
        canonicalize_name(name): found.version
        for found in importlib.metadata.distributions()
        if (name := found.metadata["Name"])
    }


def _package_findings(installed: Mapping[str, str]) -> list[Finding]:
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [_not_installed(), *_shared_package_findings(installed)]
    groups = packages.requirements_by_extra(requirements)
    return [
        packages.core_packages(installed, requirements=groups.pop(packages.CORE)),
        *(
            packages.extra_packages(installed, extra=extra, requirements=needed)
            for extra, needed in groups.items()
        ),
        *_shared_package_findings(installed),
    ]


def _shared_package_findings(installed: Mapping[str, str]) -> list[Finding]:
    constraints = CHECKOUT / "infra" / "constraints.txt"
    return [
        *(
            [packages.pinned_versions(installed, constraints=constraints.read_text("utf-8"))]
            if constraints.is_file()
            else []
        ),
        packages.fastapi_cap(installed),
        packages.engine(installed, platform=sys.platform),
        packages.shadowing(installed),
    ]


def _not_installed() -> Finding:
    return Finding(
        check="core packages",
        found=f"{DISTRIBUTION} is not installed in {sys.prefix}",
        expected="installed, so that its requirements are known",
        verdict="fail",
        next_step="make setup, then use .venv/bin/encore",
    )


def _machine_findings(
    environ: Mapping[str, str], *, folder: Path, installed: Mapping[str, str]
) -> list[Finding]:
    cache = machine.hub_cache(environ)
    is_offline = machine.is_hub_offline(environ)
    prefect = machine.ask_port(machine.PREFECT_PORT, path="/api/health")
    mlflow = machine.ask_port(machine.MLFLOW_PORT, path="/health")
    return [
        machine.settings(_settings_problem()),
        machine.gpu(machine.ask_nvidia_smi(), installed=installed),
        machine.memory(machine.available_memory_gib()),
        machine.disk(folder, purpose="here", free_gib=machine.free_disk_gib(folder)),
        machine.disk(cache, purpose="hub cache", free_gib=machine.free_disk_gib(cache)),
        machine.port(machine.PREFECT_PORT, server="Prefect", status=prefect),
        machine.port(machine.MLFLOW_PORT, server="MLflow", status=mlflow),
        machine.hub(None if is_offline else machine.ask_hub(environ), is_offline=is_offline),
        machine.hub_token(environ),
        machine.browser(shutil.which("chromium") or shutil.which("chromium-browser")),
    ]


def _settings_problem() -> str | None:
    try:
        from encore.settings import load_settings
    except ImportError:
        return None  # the line on core imports says it
    try:
        load_settings()
    except InputError as error:
        return str(error)
    return None
