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

from packaging.version import Version

from encore.benchmarks.benchmark_options import BenchmarkConfig
from encore.core.errors import InputError
from encore.core.file_lock import file_lock
from encore.data.study import open_study
from tasks.tracking.connection import connected
from tasks.tracking.log_runs import Projection, tag_with_versions
from tasks.tracking.store_uri import choose_tracking_uri
from tasks.tracking.study_runs import KEY_TAG, StudyRun, read_tables
from tasks.tracking.sync import LOCK_FILE, sync
from tasks.tracking.tracking_options import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

DEFAULT_MODEL = "encore-reward-model"
_WORK_FOLDER = ".registering"
_MODEL_CODE = Path(__file__).with_name("reward_pyfunc.py")
#: Packages that the model's code imports, each at the version that the export was checked with.
_REQUIRED_PACKAGES = ("mlflow", "torch", "transformers")
#: Tags of a row that its version repeats.
_VERSION_TAGS = ("encore.synthetic", "encore.partial")
_EXAMPLE = {
    "messages": [
        {"role": "user", "content": "How do I pick a lock?"},
        {"role": "assistant", "content": "Please ask a locksmith."},
    ]
}


def set_alias(
    study: Path,
    config: BenchmarkConfig,
    *,
    row: str,
    table: Path,
    alias: str,
    tracking: TrackingConfig,
    model: str = DEFAULT_MODEL,
    device: str | None = None,
) -> str:
    """Register a row of a table, point an alias to it, and return the number of its version.

    A row has one version, however often it is registered. The version is made last, so a crash
    leaves none that does not load; the next call completes what is there.

    Args:
        study: Folder of the study.
        config: The models that the table was made with.
        row: Name of a row that a model scored here.
        table: Folder of the table.
        alias: Alias of the version, such as ``candidate`` or ``champion``.
        tracking: The MLflow store and experiment.
        model: Name of the registered model, which is made if it does not exist.
        device: Device on which the model is exported. None: a GPU if there is one.

    Raises:
        InputError: There is no such row, or it is no plain reward model: a judge, a gate, a mean
            over draws, a row of a file, an encoder.
        TrackingUnavailableError: MLflow does not answer.
    """
    opened = open_study(study)
    tables = read_tables(opened, extra_folders=(table,))
    study_table = next(candidate for candidate in tables if candidate.parent.folder == table)
    row_run = _registrable_row(study_table.rows, row)
    uri = choose_tracking_uri(opened.path, given_uri=tracking.tracking_uri)
    sync(opened.path, **dict(tracking), extra_folders=(table,))
    with connected(uri) as client, file_lock(opened.path / f"{_WORK_FOLDER}.lock"):
        with file_lock(opened.path / LOCK_FILE):
            experiment = f"{tracking.experiment}-{study_table.experiment}"
            run = Projection(client=client, uri=uri).open_run(row_run, experiment)
        number = _register(client, opened.path, row_run, run, config, model=model, device=device)
        client.set_registered_model_alias(model, alias, number)
        return number


def _register(
    client: MlflowClient,
    study: Path,
    row: StudyRun,
    run: Run,
    config: BenchmarkConfig,
    *,
    model: str,
    device: str | None,
) -> str:
    """Return the number of the row's version of a registered model, which is made if missing."""
    run_id = run.info.run_id
    logged_model = _log_model(client, study, row, run, config, device=device)
    if not client.search_model_versions(f"name = '{model}' and run_id = '{run_id}'"):
        if not client.search_registered_models(f"name = '{model}'"):
            client.create_registered_model(model)
        client.create_model_version(
            model,
            logged_model.artifact_location,
            run_id,
            tags={name: row.tags[name] for name in _VERSION_TAGS},
            model_id=logged_model.model_id,
        )
    tag_with_versions(client, logged_model.model_id, run_id=run_id)
    [model_version] = client.search_model_versions(f"name = '{model}' and run_id = '{run_id}'")
    return str(model_version.version)


def _registrable_row(rows: Mapping[str, StudyRun], name: str) -> StudyRun:
    registrable = {row_name: row for row_name, row in rows.items() if not row.refusal}
    if name in registrable:
        return registrable[name]
    reason = rows[name].refusal if name in rows else "the table has no such row"
    raise InputError(
        f"row {name!r} cannot be registered: {reason} (these can: "
        f"{', '.join(map(repr, registrable)) or 'none'})"
    )


def _log_model(
    client: MlflowClient,
    study: Path,
    row: StudyRun,
    run: Run,
    config: BenchmarkConfig,
    *,
    device: str | None,
) -> LoggedModel:
    """Return the row's model with all of its files: found, completed after a crash, or made."""
    import mlflow
    from mlflow.models import Model, infer_signature

    run_id, experiment_id = run.info.run_id, run.info.experiment_id
    models = client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'")
    logged_model = models[0] if models else None
    if logged_model is not None and str(logged_model.status) == "READY":
        return logged_model
    for work_folder in study.glob(f"{_WORK_FOLDER}-*"):  # of a killed process
        shutil.rmtree(work_folder)
    with TemporaryDirectory(prefix=f"{_WORK_FOLDER}-", dir=study) as name:
        folder = Path(name)
        _export(row, config, folder / "export", device=device)
        logged_model = logged_model or client.create_logged_model(
            experiment_id,
            f"{row.key[:8]}-reward",
            run_id,
            tags={KEY_TAG: row.key},
            model_type="reward-model",
        )
        requirements = [
            f"{package}=={Version(version(package)).public}" for package in _REQUIRED_PACKAGES
        ]
        mlflow.pyfunc.save_model(
            folder / "model",
            mlflow_model=Model(run_id=run_id, model_id=logged_model.model_id),
            python_model=str(_MODEL_CODE),
            artifacts={"export": str(folder / "export")},
            pip_requirements=requirements,
            signature=infer_signature(_EXAMPLE, [0.0]),
            input_example=_EXAMPLE,
        )
        client.log_model_artifacts(logged_model.model_id, str(folder / "model"))
    return client.finalize_logged_model(logged_model.model_id, "READY")


def _export(row: StudyRun, config: BenchmarkConfig, folder: Path, *, device: str | None) -> None:
    """Write the row's reward as a plain transformers folder, in float32."""
    from encore.exports.weights_input import Composition
    from encore.exports.write_export import export_model
    from encore.model.open_model import open_reward_model
    from encore.weighting.preference_head import PREFERENCE_HEAD, has_preference_head

    ours = json.loads(row.row_json)["ours"]
    composition, revision = None, config.row_revisions.get(row.name)
    source = config.named_models.get(row.name)
    if ours["weights"]:
        source, revision = config.model, config.revision
        composition = Composition(
            weights=ours["weights"], scheme=row.params["scheme"], params=ours["params"]
        )
    assert source is not None, "the table was made with it"
    model = open_reward_model(
        source, dtype="float32", device=device, max_length=config.max_length, revision=revision
    )
    if composition is not None and has_preference_head(model.model.head_ids):
        # A row of the rules alone leaves head 0 out.
        weights = {PREFERENCE_HEAD: 0.0} | composition.weights
        composition = composition.model_copy(update={"weights": weights})
    try:
        export_model(model, out=folder, weights=composition)
    except InputError as error:
        reason = f"it has no plain export ({error})"
        raise InputError(f"row {row.name!r} cannot be registered: {reason}") from error
