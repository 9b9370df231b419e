"""One MLflow run, in the words of a training run; the only importer of mlflow.

A training run has one MLflow run, found by the tag ``encore.run_key``. A checkpoint is a
LoggedModel: parameters, metrics, and its path as a tag; no file is copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from encore.errors import EncoreError
from encore.settings import quiet_environment
from encore.training.records import CheckpointRecord
from tasks.outbox import Figures
from tasks.tracking_uri import hide_secrets, how_to_look, run_page, shown, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

KEY_TAG = "encore.run_key"
NAME_TAG = "encore.checkpoint"
PATH_TAG = "encore.path"
ON_DISK_TAG = "encore.on_disk"
_STEP_TAG = "encore.step"
#: This process's ways with a server that is away: the outbox waits, no request does.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password with it
}
#: MLflow retries these for minutes before it says that nobody listens.
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS = 10.0
_LONGEST_MESSAGE = 300
#: MLflow's error codes for requests that are wrong, now and later.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "PERMISSION_DENIED"})
_MEANWHILE = "this command has trained nothing"


class TrackingUnavailableError(EncoreError):
    """MLflow does not answer, or not as it should."""


class TrackingRefusedError(TrackingUnavailableError):
    """MLflow answered and refused what it was sent: sending it again would be refused again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Where a training was logged.

    Attributes:
        uri: The tracking store, passwords hidden.
        experiment_id: MLflow's.
        run_id: MLflow's.
        page: The run's page; None where the store is no server.
        command: Serves the store's pages on loopback.
        local_page: The run's page then.
        num_waiting: Entries that could not be logged; the same command logs them later.
    """

    uri: str
    experiment_id: str
    run_id: str
    page: str | None
    command: str
    local_page: str
    num_waiting: int


class MlflowStore:
    """One MLflow run behind its client, in the words of a training run."""

    def __init__(self, *, uri: str, experiment: str, meanwhile: str = _MEANWHILE) -> None:
        self._uri = uri
        self._meanwhile = meanwhile
        self._experiment = experiment
        self._experiment_id = ""
        self._run_id = ""
        self._run_key = ""
        self._params: Mapping[str, str] = {}
        #: Known LoggedModels of the run by the name of their folder; None: to be asked for.
        self._models: dict[str, LoggedModel] | None = None
        self.errors = _tracker_errors()

    @property
    def client(self) -> MlflowClient:
        """MLflow's own, once the experiment is open: for what a training run has no words for."""
        return self._client

    @property
    def shown_uri(self) -> str:
        """The store's URI without passwords."""
        return shown(self._uri)

    def open_experiment(self, client: MlflowClient) -> None:
        """Find or make the experiment.

        Raises:
            TrackingUnavailableError: It was deleted on the server.
        """
        self._client = client
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            location = _artifact_location(self._uri)
            self._experiment_id = client.create_experiment(self._experiment, location)
        elif found.lifecycle_stage == "active":
            self._experiment_id = found.experiment_id
        else:
            raise TrackingUnavailableError(
                f"MLflow {self.shown_uri}: experiment {self._experiment!r} was deleted there; "
                "restore it, or name another one with --experiment"
            )

    def open_run(
        self,
        run_key: str,
        *,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        begins_anew: bool,
        is_over: bool,
    ) -> bool:
        """Find the MLflow run of a training, or make it.

        Args:
            run_key: Of the training run.
            params: What is not there yet is logged; MLflow refuses another value for a name.
            tags: Set, whatever they were.
            begins_anew: Nothing is trained yet: a run that was finished is of an earlier training,
                deleted since, and gets a new one beside it.
            is_over: Nothing is left to train: a run that was finished stays so.

        Returns:
            Whether it was finished and stays so.
        """
        from mlflow.entities import Param, RunTag

        run = self._run_of(run_key)
        was_finished = run is not None and run.info.status == "FINISHED"
        if run is None or (begins_anew and was_finished):
            name = f"{params.get('config.objective', 'training')}-{run_key[:8]}"
            run = self._client.create_run(
                self._experiment_id, tags={KEY_TAG: run_key}, run_name=name
            )
        elif not (is_over and was_finished):
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._run_id, self._run_key, self._params = run.info.run_id, run_key, params
        there = run.data.params
        self._client.log_batch(
            self._run_id,
            params=[Param(name, value) for name, value in params.items() if name not in there],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        self._models = self._asked_models()
        return is_over and was_finished

    def has_model(self, record: CheckpointRecord) -> bool:
        """Whether all of a checkpoint is known to be logged."""
        model = (self._models or {}).get(record.path.name)
        return model is not None and str(model.status) == "READY"

    def logged_steps(self) -> frozenset[int]:
        """The steps whose metrics the run has; those of a step come in one call."""
        history = self._client.get_metric_history(self._run_id, "train/loss")
        return frozenset(metric.step for metric in history)

    def logged_evaluations(self) -> dict[int, Figures]:
        """The evaluations the run has, by step, exactly as they were logged."""
        names = self._client.get_run(self._run_id).data.metrics
        found: dict[int, Figures] = {}
        for name in sorted(name for name in names if name.startswith("eval/")):
            for metric in self._client.get_metric_history(self._run_id, name):
                before = found.get(metric.step)
                found[metric.step] = Figures(
                    step=metric.step,
                    timestamp_ms=metric.timestamp,
                    values={**(before.values if before else {}), name: metric.value},
                )
        return found

    def send(self, figures: Sequence[Figures]) -> None:
        """Log figures in one call; make the LoggedModels they belong to. May be repeated.

        Raises:
            Exception: One of ``errors``.
        """
        from mlflow.entities import Metric

        try:
            models = {
                position: model
                for position, item in enumerate(figures)
                if item.checkpoint is not None
                and (model := self._unfinished_model(item.checkpoint)) is not None
            }
            ids = {position: model.model_id for position, model in models.items()}
            metrics = [
                Metric(name, value, item.timestamp_ms, item.step, model_id=ids.get(position))
                for position, item in enumerate(figures)
                if item.checkpoint is None or position in models
                for name, value in item.values.items()
            ]
            if metrics:
                self._client.log_batch(self._run_id, metrics=metrics)
            if models:
                self._finish_models(models.values())
        except self.errors:
            self._models = None  # an answer may have got lost: ask what is there
            raise

    def close_run(self, out: Path, status: str) -> None:
        """Log the run's files and end the MLflow run."""
        for name in ("training.json", "log.jsonl", "evaluations.jsonl", "result.json"):
            if (out / name).is_file():
                self._client.log_artifact(self._run_id, str(out / name))
        self._client.set_terminated(self._run_id, status)

    def tracked(self, *, num_waiting: int) -> TrackedRun:
        """Where the run is."""
        place = {"experiment_id": self._experiment_id, "run_id": self._run_id}
        command, local_page = how_to_look(self._uri, **place)
        return TrackedRun(
            uri=self.shown_uri,
            page=run_page(self._uri, **place),
            command=command,
            local_page=local_page,
            num_waiting=num_waiting,
            **place,
        )

    def in_one_line(self, error: Exception) -> str:
        """What an error says, without line breaks and passwords, cut to a readable length."""
        text = " ".join(hide_secrets(str(error), uri=self._uri).split())
        return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} …"

    @contextlib.contextmanager
    def answering(self, doing: str) -> Iterator[None]:
        """Turn what MLflow raises into one clear error.

        Raises:
            TrackingUnavailableError: Whatever MLflow or its connection raised.
        """
        try:
            yield
        except self.errors as error:
            raise TrackingUnavailableError(
                f"MLflow {self.shown_uri}: {doing} failed ({self.in_one_line(error)}); start the "
                f"server, or give another --tracking-uri; {self._meanwhile}"
            ) from error

    def _run_of(self, run_key: str) -> Run | None:
        """The newest run of this training that is not deleted."""
        found = self._client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.`{KEY_TAG}` = '{run_key}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return found[0] if found else None

    def _asked_models(self) -> dict[str, LoggedModel]:
        found: dict[str, LoggedModel] = {}
        token: str | None = None
        while True:
            page = self._client.search_logged_models(
                [self._experiment_id],
                filter_string=f"source_run_id = '{self._run_id}'",
                page_token=token,
            )
            found |= {model.tags[NAME_TAG]: model for model in page if NAME_TAG in model.tags}
            token = page.token
            if not token:
                return found

    def _known_models(self) -> dict[str, LoggedModel]:
        if self._models is None:
            self._models = self._asked_models()
        return self._models

    def _unfinished_model(self, record: CheckpointRecord) -> LoggedModel | None:
        """The LoggedModel of a checkpoint, made if it is not there; None if all of it is logged."""
        known = self._known_models()
        if self.has_model(record):
            return None
        name = record.path.name
        if name not in known:
            known[name] = self._client.create_logged_model(
                self._experiment_id,
                name=f"{self._run_key[:8]}-{name}",
                source_run_id=self._run_id,
                model_type="reward-model",
                params=dict(self._params),
                tags={
                    NAME_TAG: name,
                    _STEP_TAG: str(record.step),
                    PATH_TAG: str(record.path.resolve()),
                    KEY_TAG: self._run_key,
                    ON_DISK_TAG: "yes",
                },
            )
        return known[name]

    def _finish_models(self, models: Iterable[LoggedModel]) -> None:
        """List the models among the run's outputs, mark them as ready, and those that are gone."""
        from mlflow.entities import LoggedModelOutput

        for model in models:
            outputs = self._client.get_run(self._run_id).outputs
            there = {output.model_id for output in outputs.model_outputs} if outputs else set()
            if model.model_id not in there:
                step = int(model.tags[_STEP_TAG])
                self._client.log_outputs(self._run_id, [LoggedModelOutput(model.model_id, step)])
            ready = self._client.finalize_logged_model(model.model_id, "READY")
            self._known_models()[model.tags[NAME_TAG]] = ready
        self._mark_what_is_gone()

    def _mark_what_is_gone(self) -> None:
        """Only the newest checkpoints are kept on the disk; their metrics stay here."""
        known = self._known_models()
        for name, model in known.items():
            path = Path(model.tags[PATH_TAG])
            is_gone = path.parent.is_dir() and not path.exists()
            if is_gone and model.tags[ON_DISK_TAG] == "yes":
                self._client.set_logged_model_tags(model.model_id, {ON_DISK_TAG: "no"})
                known[name] = self._client.get_logged_model(model.model_id)


def connect(uri: str, *, experiment: str, meanwhile: str = _MEANWHILE) -> MlflowStore:
    """The store at a URI with its experiment opened, ready for a run.

    Args:
        uri: Of the store.
        experiment: Its name; made if it is not there.
        meanwhile: What an error adds: where things stand without the store.

    Raises:
        TrackingUnavailableError: It cannot be reached or used; said in one line, passwords hidden.
    """
    quiet_environment()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # It logs every failed query with its traceback; what fails is said here, once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    _knock(uri, meanwhile=meanwhile)
    from mlflow import MlflowClient

    store = MlflowStore(uri=uri, experiment=experiment, meanwhile=meanwhile)
    with store.answering("connecting"):
        store.open_experiment(MlflowClient(uri))
    return store


def system_reader() -> Callable[[], Mapping[str, float]]:
    """A function that measures this machine under the names of MLflow's system metrics.

    Each call gives the CPU's load since the last one. Of NVIDIA GPUs with the package nvidia-ml-py.
    """
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with contextlib.suppress(ImportError, RuntimeError):  # no such package, no such device
        monitors.append(GPUMonitor())

    def read() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for monitor in monitors:
            monitor.collect_metrics()
            found |= monitor.aggregate_metrics()
            monitor.clear_metrics()
        return {f"system/{name}": float(value) for name, value in found.items()}

    return read


def is_gone(error: Exception) -> bool:
    """Whether MLflow says that something is not there, and not that it cannot answer."""
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def is_refusal(error: Exception) -> bool:
    """Whether MLflow says that what it was sent is wrong, and not that it cannot answer."""
    return getattr(error, "error_code", None) in _REFUSALS


def _knock(uri: str, *, meanwhile: str) -> None:
    """Find out at once what MLflow would find out after minutes of retries."""
    try:
        if (path := sqlite_path(uri)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("pragma schema_version")
        else:
            address = urlsplit(uri)
            port = address.port or _DATABASE_PORTS.get(address.scheme.partition("+")[0])
            if address.hostname and port and not address.scheme.startswith("http"):
                socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()
    except (OSError, ValueError, sqlite3.Error) as error:
        raise TrackingUnavailableError(
            f"MLflow {shown(uri)}: cannot be opened ({hide_secrets(str(error), uri=uri)}); "
            f"give another --tracking-uri; {meanwhile}"
        ) from error


def _tracker_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


def _artifact_location(uri: str) -> str | None:
    """Beside an SQLite file, not in whatever directory the process runs in; else the server's."""
    path = sqlite_path(uri)
    return None if path is None else (path.parent / f"{path.stem}-artifacts").as_uri()
