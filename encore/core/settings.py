"""Where ENCORE runs: read from the environment, never part of a run's identity."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.core.errors import InputError, first_problem

#: No telemetry, no chatter from engines.
PROCESS_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A tracking server that is away must not hold a training up: the next call logs the rest.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password with it
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # vLLM would replace all log handlers when an engine starts, and wait for those in use: a flow
    # run's own wait for threads that log meanwhile, and none goes on.
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


class Settings(BaseModel):
    """How much of this machine may be used. Each field is ``ENCORE_<NAME>`` in the environment."""

    model_config = ConfigDict(frozen=True)

    duckdb_threads: int | None = Field(
        default=None, ge=1, description="Threads of one DuckDB connection; unset: all cores."
    )
    duckdb_memory_limit: str | None = Field(
        default=None,
        pattern=r"^\d+(\.\d+)?\s?[KMGT]i?B$",
        description="Memory of one DuckDB connection, e.g. 4GB; unset: DuckDB's own choice.",
    )
    cpu_kv_cache_gib: int = Field(
        default=2, ge=1, description="Key-value cache of the vLLM CPU engine, in GiB."
    )


def load_settings() -> Settings:
    """The settings of this process's environment.

    Raises:
        InputError: A variable has an impossible value: its name, the value, what was expected.
    """
    variables = {name: f"ENCORE_{name.upper()}" for name in Settings.model_fields}
    given = {name: os.environ[key] for name, key in variables.items() if key in os.environ}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(
            f"environment variable {variables[problem.path]}: {problem.message} "
            f"(got {problem.value!r})"
        ) from error


def duckdb_config(*, memory: str | None = None) -> dict[str, Any]:
    """How every DuckDB connection is opened: within this environment's limits, loading nothing.

    Args:
        memory: The limit where the environment has none.
    """
    settings = load_settings()
    config = {
        "memory_limit": settings.duckdb_memory_limit or memory,
        "threads": settings.duckdb_threads,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,  # a table is what was registered, not a local variable
    }
    return {name: value for name, value in config.items() if value is not None}


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set `PROCESS_ENVIRONMENT` for whatever is imported next; what the user has set stays."""
    for name, value in PROCESS_ENVIRONMENT.items():
        environ.setdefault(name, value)
    environ.setdefault("GOMP_SPINCOUNT", str(_openmp_spin_count()))


def _openmp_spin_count() -> int:
    """How often OpenMP's threads look for work before they sleep, by the load of this machine.

    Spinning long trains a tenth faster on free cores; beside one busy process everything takes
    2.5 times as long with it, because a waiting thread keeps its core from the one it waits for.
    """
    cores_are_free = os.getloadavg()[0] < 0.5
    return 30_000 if cores_are_free else 3_000
