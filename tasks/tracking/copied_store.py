"""Make the store of a copied study anew, from the study's files.

MLflow cannot change the absolute paths that a store has of its artifacts. So the runs of the
study's files are logged in a new store, which then replaces the copied one. What no file of the
study has is copied through MLflow's client: other runs, tags that people set, registered models.
The store from which the copy was made is neither read nor written.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tasks.tracking.local_store import (
    WORK_PREFIX,
    all_pages,
    artifacts_folder,
    make_store,
    record_path,
)
from tasks.tracking.log_runs import VERSIONS_TAG, Projection, tag_with_versions
from tasks.tracking.store_uri import sqlite_uri
from tasks.tracking.study_runs import KEY_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

logger = logging.getLogger(__name__)

_PARENT_TAG = "mlflow.parentRunId"
_MODEL_FILE = "MLmodel"  # MLflow's description of a model, beside its files


def make_anew(
    store: Path, project: Callable[[MlflowClient, Mapping[str, str]], Projection]
) -> None:
    """Replace a copied store by a new one that names its own artifacts.

    The new file takes the path of the copied one when it is complete. After a crash before that,
    the next call begins again.

    Args:
        store: SQLite file of the copied store.
        project: Logs the study's files through a client; it is told which experiment each run key
            had.

    Raises:
        OSError: The artifact folder is a link, or a file cannot be written.
    """
    from mlflow import MlflowClient

    artifacts = artifacts_folder(store)
    if artifacts.is_symlink():
        raise OSError(
            f"{artifacts} is a link, and the store was copied: replace the link by a copy of the "
            "folder, or remove it"
        )
    for work_folder in store.parent.glob(f"{WORK_PREFIX}*"):  # of a killed process
        shutil.rmtree(work_folder)
    with TemporaryDirectory(prefix=WORK_PREFIX, dir=store.parent) as work:
        # MLflow keeps connections by path: neither file is opened under the path of the store.
        copied_file, new_file = Path(work) / "copied.db", Path(work) / "new.db"
        shutil.copy(store, copied_file)
        make_store(new_file)
        copied = CopiedStore(client=MlflowClient(sqlite_uri(copied_file)), artifacts=artifacts)
        projection = project(MlflowClient(sqlite_uri(new_file)), copied.experiment_by_key())
        copied.copy_runs(projection)
        copied.copy_registered_models(projection)
        new_file.replace(store)
    record_path(store)
    copied.delete_artifacts()
    logger.info("MLflow store %s was copied with its study: it is made anew", store)


@dataclass(slots=True, kw_only=True)
class CopiedStore:
    """A store that names artifacts of the store from which it was copied.

    Attributes:
        client: Client of a copy of its database.
        artifacts: Its artifact folder, which was copied too.
        runs: Its runs, deleted ones too, the oldest first.
        new_run_by_id: Runs of the new store, by id of the run that they replace.
        new_model_by_id: Logged models of the new store, by id of the model that they replace.
    """

    client: MlflowClient
    artifacts: Path
    runs: list[Run] = field(init=False)
    new_run_by_id: dict[str, Run] = field(default_factory=dict)
    new_model_by_id: dict[str, LoggedModel] = field(default_factory=dict)
    _experiment_names: dict[str, str] = field(init=False)  # by id

    def __post_init__(self) -> None:
        """Read experiments and runs."""
        from mlflow.entities import ViewType

        experiments = all_pages(self.client.search_experiments, view_type=ViewType.ALL)
        self._experiment_names = {
            experiment.experiment_id: experiment.name for experiment in experiments
        }
        runs = all_pages(
            self.client.search_runs, [*self._experiment_names], run_view_type=ViewType.ALL
        )
        self.runs = sorted(runs, key=lambda run: run.info.start_time)

    def experiment_by_key(self) -> dict[str, str]:
        """Return the name of each run's experiment, by run key."""
        return {
            run.data.tags[KEY_TAG]: self._experiment_names[run.info.experiment_id]
            for run in self.runs
            if KEY_TAG in run.data.tags
        }

    def copy_runs(self, projection: Projection) -> None:
        """Copy runs that the new store does not have, and tags that its runs do not have."""
        for run in self.runs:
            if run.info.lifecycle_stage != "active":
                continue
            key = run.data.tags.get(KEY_TAG)
            new_run = projection.run_with_key(key) if key else None
            if new_run is None:
                self.new_run_by_id[run.info.run_id] = self._copy_run(run, projection)
                continue
            self.new_run_by_id[run.info.run_id] = new_run
            for name in run.data.tags.keys() - new_run.data.tags.keys() - {_PARENT_TAG}:
                if not name.startswith("encore.logged."):
                    projection.client.set_tag(new_run.info.run_id, name, run.data.tags[name])
            if new_run.info.status == "RUNNING" and run.info.status != "RUNNING":
                projection.client.update_run(new_run.info.run_id, status=run.info.status)
        for run in self.runs:  # a parent may be newer than the runs within it
            parent = self.new_run_by_id.get(run.data.tags.get(_PARENT_TAG, ""))
            new_run = self.new_run_by_id.get(run.info.run_id)
            if parent is not None and new_run is not None:
                projection.client.set_tag(new_run.info.run_id, _PARENT_TAG, parent.info.run_id)

    def copy_registered_models(self, projection: Projection) -> None:
        """Copy registered models: versions with their files and tags, and aliases."""
        client = projection.client
        models = all_pages(self.client.search_logged_models, [*self._experiment_names])
        models_by_location = {model.artifact_location: model for model in models}
        for registered in all_pages(self.client.search_registered_models):
            name = registered.name
            client.create_registered_model(name, dict(registered.tags), registered.description)
            versions = [*all_pages(self.client.search_model_versions, f"name = '{name}'")]
            new_numbers = {  # a version that was deleted has left a gap in the old numbers
                str(version.version): str(
                    self._copy_version(version, models_by_location, projection).version
                )
                for version in sorted(versions, key=lambda version: int(version.version))
            }
            for alias, number in registered.aliases.items():
                client.set_registered_model_alias(name, alias, new_numbers[str(number)])
        for model in self.new_model_by_id.values():
            tag_with_versions(client, model.model_id, run_id=str(model.source_run_id))

    def delete_artifacts(self) -> None:
        """Delete the copied artifacts: the new store has its own copies of what it names."""
        for run in self.runs:
            shutil.rmtree(self.artifacts / run.info.run_id, ignore_errors=True)
        for model_id in self.new_model_by_id:
            shutil.rmtree(self.artifacts / "models" / model_id, ignore_errors=True)

    def _local_path(self, uri: str) -> Path:
        """Return where the copy of an artifact is, if the store had it in its folder."""
        return self.artifacts / unquote(uri).rpartition(f"/{self.artifacts.name}/")[2]

    def _copy_run(self, run: Run, projection: Projection) -> Run:
        """Copy a run that no file of the study has: weights of a pipeline, or a run of people."""
        from mlflow.entities import Metric, Param

        client, run_id = projection.client, run.info.run_id
        new_run = client.create_run(
            projection.experiment_id(self._experiment_names[run.info.experiment_id]),
            start_time=run.info.start_time,
            tags=dict(run.data.tags),
            run_name=run.info.run_name,
        )
        new_id = new_run.info.run_id
        metrics = [
            Metric(name, point.value, point.timestamp, point.step)
            for name in run.data.metrics
            for point in self.client.get_metric_history(run_id, name)
        ]
        params = [Param(name, value) for name, value in run.data.params.items()]
        client.log_batch(new_id, metrics=metrics, params=params)
        client.log_inputs(new_id, run.inputs.dataset_inputs if run.inputs else [])
        files = self._local_path(run.info.artifact_uri)
        if files.is_dir():
            client.log_artifacts(new_id, str(files))
        if run.info.end_time is None:
            client.update_run(new_id, status=run.info.status)
        else:
            client.set_terminated(new_id, run.info.status, run.info.end_time)
        return new_run

    def _copy_version(
        self,
        version: ModelVersion,
        models_by_location: Mapping[str, LoggedModel],
        projection: Projection,
    ) -> ModelVersion:
        run = self.new_run_by_id.get(version.run_id or "")
        old_model = models_by_location.get(version.source or "")
        model = None
        if old_model is not None and run is not None:
            model = self._copy_model(old_model, run, projection.client)
        return projection.client.create_model_version(
            version.name,
            str(version.source if model is None else model.artifact_location),
            None if run is None else run.info.run_id,
            tags=dict(version.tags),
            description=version.description,
            model_id=None if model is None else model.model_id,
        )

    def _copy_model(self, model: LoggedModel, run: Run, client: MlflowClient) -> LoggedModel | None:
        """Copy a logged model once for all of its versions; None if it has no files here."""
        from mlflow.models import Model

        if model.model_id in self.new_model_by_id:
            return self.new_model_by_id[model.model_id]
        files = self._local_path(model.artifact_location)
        if not (files / _MODEL_FILE).is_file():
            return None
        new_model = client.create_logged_model(
            run.info.experiment_id,
            model.name,
            run.info.run_id,
            tags={name: text for name, text in model.tags.items() if name != VERSIONS_TAG},
            params=dict(model.params),
            model_type=model.model_type,
        )
        client.log_model_artifacts(new_model.model_id, str(files))
        description = Model.load(str(files))
        description.run_id, description.model_id = run.info.run_id, new_model.model_id
        with TemporaryDirectory() as folder:
            description.save(str(Path(folder) / _MODEL_FILE))
            client.log_model_artifact(new_model.model_id, str(Path(folder) / _MODEL_FILE))
        new_model = client.finalize_logged_model(new_model.model_id, "READY")
        self.new_model_by_id[model.model_id] = new_model
        return new_model
