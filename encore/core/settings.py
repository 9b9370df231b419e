"""Settings of this machine, read from the environment. They are no part of a run's identity."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.core.errors import InputError, first_problem

#: Variables that switch off telemetry and messages of engines.
PROCESS_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A tracking server that does not answer must not delay a training: the next call logs again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password with it
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # vLLM would replace all log handlers when an engine starts, and wait for those in use. A flow
    # run's handler waits for threads that log meanwhile: a deadlock.
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


class Settings(BaseModel):
    """Limits on this machine's use. Each field is ``ENCORE_<NAME>`` in the environment."""

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
    cache_dir: Path | None = Field(
        default=None, description="Folder of local copies of studies in buckets."
    )
    bucket_models: bool = Field(
        default=False, description="Copy finished models of a study to its bucket, too."
    )

    @property
    def cache_folder(self) -> Path:
        """Return the folder of local copies: ``cache_dir``, or one in the user's cache."""
        user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return (self.cache_dir or Path(user_cache) / "encore").expanduser().resolve()


def load_settings() -> Settings:
    """Read the settings from this process's environment.

    Raises:
        InputError: A variable has an impossible value: its name, the value, what was expected.
    """
    variables = {name: f"ENCORE_{name.upper()}" for name in Settings.model_fields}
    values = {name: os.environ[key] for name, key in variables.items() if key in os.environ}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(
            f"environment variable {variables[problem.path]}: {problem.message} "
            f"(got {problem.value!r})"
        ) from error


def duckdb_config(*, memory: str | None = None) -> dict[str, Any]:
    """Return the options of every DuckDB connection: this environment's limits, no extensions.

    Args:
        memory: Memory limit if the environment sets none, e.g. ``2GB``. None: DuckDB's own choice.
    """
    settings = load_settings()
    config = {
        "memory_limit": settings.duckdb_memory_limit or memory,
        "threads": settings.duckdb_threads,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,  # only registered tables, no local variables
    }
    return {name: value for name, value in config.items() if value is not None}


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set `PROCESS_ENVIRONMENT` before other packages are imported; the user's values stay."""
    for name, value in PROCESS_ENVIRONMENT.items():
        environ.setdefault(name, value)
    # How often OpenMP's threads look for work before they sleep. Long spinning trains a tenth
    # faster on free cores. Beside one busy process everything takes 2.5 times as long with it,
    # because a waiting thread keeps its core from the thread it waits for.
    cores_are_free = os.getloadavg()[0] < 0.5
    environ.setdefault("GOMP_SPINCOUNT", "30000" if cores_are_free else "3000")
