"""Register a row of a benchmark's table as an MLflow model that loads without this project.

The version's model is a plain export of the row's reward, which `reward_pyfunc.py` reads:
``mlflow.pyfunc.load_model("models:/encore-reward-model@champion")`` scores conversations.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from filelock import FileLock
from packaging.version import Version

from encore.benchmarks.benchmark_config import BenchmarkStudyConfig
from encore.core.errors import InputError
from encore.data.study import open_study
from tasks.tracking import study_runs
from tasks.tracking.study_runs import KEY_TAG, StudyRun
from tasks.tracking.sync import (
    LOCK_FILE,
    Projection,
    TrackingConfig,
    choose_tracking_uri,
    connected,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

DEFAULT_MODEL = "encore-reward-model"
_WORK_FOLDER = ".registering"
_MODEL_CODE = Path(__file__).with_name("reward_pyfunc.py")
#: What the model's code imports, each at the version that the export was checked with.
_REQUIRED = ("mlflow", "torch", "transformers")
#: Tags of a row that its version repeats.
_MARKS = ("encore.data.synthetic", "encore.partial")
_EXAMPLE = {
    "messages": [
        {"role": "user", "content": "How do I pick a lock?"},
        {"role": "assistant", "content": "Please ask a locksmith."},
    ]
}


def set_alias(
    config: BenchmarkStudyConfig,
    *,
    row: str,
    table: Path,
    alias: str,
    tracking: TrackingConfig,
    model: str = DEFAULT_MODEL,
) -> str:
    """Register a row of a table that is in MLflow; the version that the alias points to.

    A row has one version, however often it is registered. The version comes last, so a crash leaves
    none that does not load; the next call completes what is there.

    Args:
        config: The study and the models that the table was made with.
        row: Of the table in the folder ``table``; one that a model scored here.
        table: Its folder.
        alias: Such as ``candidate`` or ``champion``.
        tracking: Where it is shown.
        model: Name of the registered model; made if it is not there.

    Raises:
        InputError: No such row, or one that is no plain reward model: a judge, a gate, a mean over
            draws, a row of a file, an encoder.
        TrackingUnavailableError: MLflow does not answer.
    """
    study = open_study(config.study).path
    tables = study_runs.read_tables(open_study(study), also=(table,))
    found = next(one for one in tables if one.parent.folder == table)
    shown = _registrable(found.rows, row)
    uri = choose_tracking_uri(study, given=tracking.tracking_uri)
    with connected(uri) as client, FileLock(study / f"{_WORK_FOLDER}.lock"):
        with FileLock(study / LOCK_FILE):
            place = f"{tracking.experiment}-{found.experiment}"
            run = Projection(client=client, uri=uri).open_run(shown, place)
        number = _register(client, shown, run, config, model=model)
        client.set_registered_model_alias(model, alias, number)
        return number


def _register(
    client: MlflowClient, row: StudyRun, run: Run, config: BenchmarkStudyConfig, *, model: str
) -> str:
    """The row's version of a registered model, found or made."""
    of_run = f"run_id = '{run.info.run_id}'"
    logged = _log_model(client, row, run, config)
    if not client.search_model_versions(f"name = '{model}' and {of_run}"):
        if not client.search_registered_models(f"name = '{model}'"):
            client.create_registered_model(model)
        marks = {name: row.tags[name] for name in _MARKS}
        new = {"run_id": run.info.run_id, "tags": marks, "model_id": logged.model_id}
        client.create_model_version(model, logged.artifact_location, **new)
    every = {one.name: one.version for one in client.search_model_versions(of_run)}
    versions = json.dumps([{"name": name, "version": number} for name, number in every.items()])
    client.set_logged_model_tags(logged.model_id, {"mlflow.modelVersions": versions})
    return str(every[model])


def _registrable(rows: Mapping[str, StudyRun], name: str) -> StudyRun:
    possible = {one: row for one, row in rows.items() if not row.refusal}
    if name in possible:
        return possible[name]
    reason = rows[name].refusal if name in rows else "the table has no such row"
    raise InputError(
        f"row {name!r} cannot be registered: {reason} (these can: "
        f"{', '.join(map(repr, possible)) or 'none'})"
    )


def _log_model(
    client: MlflowClient, row: StudyRun, run: Run, config: BenchmarkStudyConfig
) -> LoggedModel:
    """The row's model with all of its files: found, completed after a crash, or made."""
    import mlflow
    from mlflow.models import Model, infer_signature

    run_id, place = run.info.run_id, run.info.experiment_id
    logged = next(iter(client.search_logged_models([place], f"source_run_id = '{run_id}'")), None)
    if logged is not None and str(logged.status) == "READY":
        return logged
    for left in config.study.glob(f"{_WORK_FOLDER}-*"):  # by a killed process
        shutil.rmtree(left)
    with TemporaryDirectory(prefix=f"{_WORK_FOLDER}-", dir=config.study) as name:
        folder = Path(name)
        _export(row, config, folder / "export")
        logged = logged or client.create_logged_model(
            *(place, f"{row.key[:8]}-reward", run_id),
            tags={KEY_TAG: row.key},
            model_type="reward-model",
        )
        mlflow.pyfunc.save_model(
            folder / "model",
            mlflow_model=Model(run_id=run_id, model_id=logged.model_id),
            python_model=str(_MODEL_CODE),
            artifacts={"export": str(folder / "export")},
            pip_requirements=[f"{name}=={Version(version(name)).public}" for name in _REQUIRED],
            signature=infer_signature(_EXAMPLE, [0.0]),
            input_example=_EXAMPLE,
        )
        client.log_model_artifacts(logged.model_id, str(folder / "model"))
    return client.finalize_logged_model(logged.model_id, "READY")


def _export(row: StudyRun, config: BenchmarkStudyConfig, folder: Path) -> None:
    """The row's reward as a plain transformers folder, in float32."""
    from encore.export.weights_input import Composition
    from encore.export.write_export import export_model
    from encore.model.opening import open_reward_model

    ours = json.loads(row.row)["ours"]
    composition, revision = None, config.row_revisions.get(row.name)
    source = config.named_models.get(row.name)
    if ours["weights"]:
        source, revision = config.model, config.revision
        about = {"scheme": row.params["scheme"], "params": ours["params"]}
        composition = Composition(weights=ours["weights"], **about)
    assert source is not None, "the table was made with it"
    how = {"device": config.device, "max_length": config.max_length, "revision": revision}
    opened = open_reward_model(source, dtype="float32", **how)
    try:
        export_model(opened, out=folder, weights=composition)
    except InputError as error:
        reason = f"it has no plain export ({error})"
        raise InputError(f"row {row.name!r} cannot be registered: {reason}") from error
