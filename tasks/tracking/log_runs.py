"""Log runs and tables that were read from a study's files in one MLflow store.

Every run is found by the tag ``encore.run_key``, so nothing is logged twice, whoever logs it and
however often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tasks.tracking.local_store import MAX_EXPERIMENTS, artifacts_folder
from tasks.tracking.store_uri import hide_secrets, sqlite_path
from tasks.tracking.study_runs import KEY_TAG, KIND_TAG, TABLE_TAG, DataSet, StudyRun, StudyTable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

_MAX_MODELS = 1000
#: MLflow keeps this many characters of a data set's digest.
_DIGEST_LENGTH = 36
#: Without it, pages open in MLflow's view for language models, which lists no runs.
_PAGE_VIEW = {"workflowType": "machine_learning"}
#: Tags of a logged model: name and path of its checkpoint, and whether it is still on the disk.
_NAME_TAG, _PATH_TAG, _ON_DISK_TAG = "encore.checkpoint", "encore.path", "encore.on_disk"
#: Set last, with the last step that is logged: what a crash left out is logged again.
_LAST_STEP_TAG = "encore.logged.{}"
#: Tag of a logged model by which MLflow's pages link it to its registered versions.
_VERSIONS_TAG = "mlflow.modelVersions"


@dataclass(slots=True, kw_only=True)
class Projection:
    """Runs of one store, each found by its key in whichever experiment it is.

    Attributes:
        client: Client of the store.
        uri: URI of the store, as people know it.
        end_status: MLflow's status for trainings that are not finished and have ended. None: they
            may still be running.
        new_run_tags: Tags of runs that are made now, such as the flow run that logs them.
        pages: Paths of MLflow's pages by folder. A training or rating has its run's page; a table
            has the page of its rows, the best first, then that of the study's run. A training or
            rating also has the page with all runs of its experiment.
        num_new: Number of runs that were made now.
    """

    client: MlflowClient
    uri: str
    end_status: str | None = None
    new_run_tags: Mapping[str, str] = field(default_factory=dict)
    pages: dict[Path, list[str]] = field(default_factory=dict)
    num_new: int = 0
    _experiment_ids: dict[str, str] = field(init=False)  # by name

    def __post_init__(self) -> None:
        """Read the names of the store's experiments."""
        experiments = self.client.search_experiments(max_results=MAX_EXPERIMENTS)
        self._experiment_ids = {
            experiment.name: experiment.experiment_id for experiment in experiments
        }

    def instructions(self, *folders: Path) -> str:
        """Return links to the pages of these folders (default: all) as Markdown.

        For a store in a file, the command that serves it comes first.
        """
        page_lists = [self.pages[folder.resolve()] for folder in folders] or self.pages.values()
        pages = dict.fromkeys(page for page_list in page_lists for page in page_list)
        public_uri = hide_secrets(self.uri, uri=self.uri)
        server, command = re.sub("//.*@", "//", public_uri).rstrip("/"), ""
        if not server.startswith("http"):
            server = "http://127.0.0.1:5000"
            command = (
                f"    mlflow ui --backend-store-uri '{public_uri}' --host 127.0.0.1 --port 5000\n\n"
            )
        return command + "\n\n".join(f"<{server}{page}>" for page in pages)

    def find_run(self, run: StudyRun) -> Run | None:
        """Return the store's run of this key; None if there is none."""
        runs = self.client.search_runs(
            list(self._experiment_ids.values()),
            filter_string=f"tags.`{KEY_TAG}` = '{run.key}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return runs[0] if runs else None

    def experiment_id(self, name: str) -> str:
        """Return the id of an experiment, which is made if the store does not have it."""
        if name not in self._experiment_ids:
            path = sqlite_path(self.uri)
            location = None if path is None else artifacts_folder(path).as_uri()
            self._experiment_ids[name] = self.client.create_experiment(name, location)
        return self._experiment_ids[name]

    def open_run(self, run: StudyRun, experiment: str, **tags: str) -> Run:
        """Find a run, or make it in an experiment, and log its parameters, tags and data sets."""
        from mlflow.entities import Param, RunTag

        logged_run = self.find_run(run)
        if logged_run is None:
            self.num_new += 1
            logged_run = self.client.create_run(
                self.experiment_id(experiment),
                run_name=run.name,
                tags={KEY_TAG: run.key, **self.new_run_tags},
            )
        run_id, logged_params = logged_run.info.run_id, logged_run.data.params
        params = [
            Param(name, value) for name, value in run.params.items() if name not in logged_params
        ]
        run_tags = [RunTag(name, value) for name, value in {**run.tags, **tags}.items()]
        self.client.log_batch(run_id, params=params, tags=run_tags)
        inputs = logged_run.inputs.dataset_inputs if logged_run.inputs else ()
        logged_digests = {entry.dataset.digest for entry in inputs}
        new_data = [
            data for data in run.datasets if data.digest[:_DIGEST_LENGTH] not in logged_digests
        ]
        self.client.log_inputs(run_id, [_dataset_input(data) for data in new_data])
        return logged_run

    def log_run(self, run: StudyRun, experiment: str, **tags: str) -> None:
        """Log a run: metrics of new steps, checkpoints, and its files when it is finished."""
        logged_run = self.open_run(run, experiment, **tags)
        run_id = logged_run.info.run_id
        experiment_id = logged_run.info.experiment_id
        pages = [_run_page(logged_run), experiment_page(experiment_id)]
        self.pages.setdefault(run.folder.resolve(), pages)
        is_complete = logged_run.info.status == "FINISHED" and run.is_finished
        has_new_steps = not is_complete and self._log_series(run, logged_run)
        self._log_models(run, logged_run)  # of a finished run too: the study may have moved
        if is_complete:
            return
        if run.is_finished:
            for path in run.files:
                self.client.log_artifact(run_id, str(path))
            if run.row_json:
                self.client.log_text(run_id, run.row_json, "row.json")
            self.client.set_terminated(run_id, "FINISHED")
        elif self.end_status is not None:
            self.client.set_terminated(run_id, self.end_status)
        elif has_new_steps and logged_run.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")

    def log_table(self, table: StudyTable, experiment: str) -> None:
        """Log the study's run with the whole table, and within it a run for each row."""
        from mlflow.entities import Metric

        table_tag = f"{TABLE_TAG}.{table.key}"
        parent = self.find_run(table.parent)
        is_logged = parent is not None and table_tag in parent.data.tags
        if parent is None or not is_logged:  # the study's run has the tags of its newest table
            parent = self.open_run(table.parent, experiment)
        parent_id, folder = parent.info.run_id, table.parent.folder
        self.pages[folder.resolve()] = [_rows_page(table, parent), _run_page(parent)]
        if is_logged:
            return
        for row in table.rows.values():
            self.log_run(row, experiment, **{"mlflow.parentRunId": parent_id})
        for path in table.parent.files:
            self.client.log_artifact(parent_id, str(path), f"tables/{table.key}")
        written_at = int((folder / "table.md").stat().st_mtime * 1000)
        metrics = [Metric(name, value, written_at, 0) for name, value in table.figures.items()]
        self.client.log_batch(parent_id, metrics=metrics)
        self.client.set_terminated(parent_id, "FINISHED")
        self.client.set_tag(parent_id, table_tag, "yes")  # last: all of the table is logged

    def _log_series(self, run: StudyRun, logged_run: Run) -> bool:
        """Log the metrics of new steps. Return True if there were any."""
        from mlflow.entities import Metric

        run_id, started_at = logged_run.info.run_id, logged_run.info.start_time
        has_new_steps = False
        for series_name, series in run.series.items():
            tag = _LAST_STEP_TAG.format(series_name)
            last_logged_step = int(logged_run.data.tags.get(tag, -1))
            metrics = [
                Metric(name, value, started_at, step)
                for step, values in series
                if step > last_logged_step
                for name, value in values.items()
            ]
            if metrics:
                has_new_steps = True
                self.client.log_batch(run_id, metrics=metrics)
                self.client.set_tag(run_id, tag, metrics[-1].step)
        return has_new_steps

    def _log_models(self, run: StudyRun, logged_run: Run) -> None:
        """Log a model for each checkpoint, with the metrics of its evaluation. Copy no file.

        A model's metrics are exactly those of the run, so the store has them once.
        """
        from mlflow.entities import LoggedModelOutput, Metric

        if not run.models:
            return
        client = self.client
        experiment_id, run_id = logged_run.info.experiment_id, logged_run.info.run_id
        models = client.search_logged_models(
            [experiment_id], f"source_run_id = '{run_id}'", max_results=_MAX_MODELS
        )
        models_by_name = {model.tags[_NAME_TAG]: model for model in models}
        evaluations = dict(run.series["eval"])
        for step, path in run.models:
            tags = {_NAME_TAG: path.name, _PATH_TAG: str(path.resolve()), _ON_DISK_TAG: "yes"}
            model = models_by_name.pop(path.name, None) or client.create_logged_model(
                experiment_id,
                f"{run.key[:8]}-{path.name}",
                run_id,
                tags={**tags, KEY_TAG: run.key},
                model_type="reward-model",
            )
            if model.tags[_PATH_TAG] != tags[_PATH_TAG]:  # the study has moved
                client.set_logged_model_tags(model.model_id, tags)
            if str(model.status) == "READY":
                continue
            metrics = [
                Metric(name, value, logged_run.info.start_time, step, model_id=model.model_id)
                for name, value in evaluations.get(step, {}).items()
            ]
            client.log_batch(run_id, metrics=metrics)
            outputs = client.get_run(run_id).outputs
            linked_ids = [output.model_id for output in outputs.model_outputs] if outputs else []
            if model.model_id not in linked_ids:  # a crash may have come before the next call
                client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
            client.finalize_logged_model(model.model_id, "READY")
        for model in models_by_name.values():  # only the newest checkpoints stay on the disk
            client.set_logged_model_tags(model.model_id, {_ON_DISK_TAG: "no"})


def tag_with_versions(client: MlflowClient, model_id: str, *, run_id: str) -> None:
    """Tag a logged model with the registered versions of its run."""
    versions = [
        {"name": version.name, "version": version.version}
        for version in client.search_model_versions(f"run_id = '{run_id}'")
    ]
    client.set_logged_model_tags(model_id, {_VERSIONS_TAG: json.dumps(versions)})


def experiment_page(experiment_id: str) -> str:
    """Return the path of MLflow's page with the runs of an experiment."""
    return f"/#/experiments/{experiment_id}/runs?{urlencode(_PAGE_VIEW)}"


def _run_page(run: Run) -> str:
    page = f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"{page}?{urlencode(_PAGE_VIEW)}"


def _rows_page(table: StudyTable, parent: Run) -> str:
    """Return the page of one table's rows, the best first."""
    row_filter = f"tags.`{TABLE_TAG}.{table.key}` = 'yes' and tags.`{KIND_TAG}` = 'evaluation'"
    order = {"orderByKey": f"metrics.`{table.headline}`", "orderByAsc": "false"}
    query = urlencode({**_PAGE_VIEW, "searchFilter": row_filter, **order})
    return f"/#/experiments/{parent.info.experiment_id}/runs?{query}"


def _dataset_input(data: DataSet) -> DatasetInput:
    """Return a data set as `mlflow.log_input` logs one that it does not read."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": str(data.path.resolve()), "sha256": data.digest})
    dataset = Dataset(data.name, data.digest[:_DIGEST_LENGTH], "local", source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", data.context)])
