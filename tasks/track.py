"""MLflow as a projection of a study's files: `sync` shows there what the files say.

Every run is found by the tag ``encore.run_key``, so nothing is logged twice, whoever logs it and
however often; an outage costs a warning, and the next `sync` catches up. This is the only importer
of mlflow. By hand: ``python -m tasks.track STUDY``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from filelock import FileLock
from pydantic import AfterValidator, ConfigDict

from encore.config import StageConfig, option
from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.options import run_main, single_command
from encore.settings import prepare_environment
from encore.terminal import say
from tasks import study_runs
from tasks.study_runs import KEY_TAG, REWARD_TAG, StudyRun, StudyTable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)

DEFAULT_EXPERIMENT, DEFAULT_MODEL = "encore", "encore-reward-model"
LOCK_FILE = ".mlflow.lock"
#: A server that is away must not hold a training up: the next call logs what is missing.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password with it
}
#: MLflow retries these for minutes before it says that nobody listens.
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS, _LONGEST_MESSAGE = 10.0, 300
#: MLflow refuses more than 1,000 metrics and 100 parameters in one call.
_MOST_METRICS, _MOST_PARAMS, _MOST_MODELS = 900, 100, 1000
#: Columns of an MLflow database that hold the place of artifacts.
_PLACES = (
    *(("experiments", "artifact_location"), ("runs", "artifact_uri")),
    *(("model_versions", "source"), ("model_versions", "storage_location")),
    ("logged_models", "artifact_location"),
)
#: What a logged model says of its checkpoint.
_NAME_TAG, _PATH_TAG, _ON_DISK_TAG = "encore.checkpoint", "encore.path", "encore.on_disk"


def choose_tracking_uri(study: Path, *, given: str | None = None) -> str:
    """The store that was given, else MLFLOW_TRACKING_URI's, else a file in the study.

    SQLite paths become absolute: MLflow would look for them in the working directory.

    Raises:
        InputError: The given one has a password, which belongs into the environment alone.
    """
    place = f"{_SQLITE}{study.resolve() / 'mlflow.db'}"
    uri = refuse_secret(given or "") or os.environ.get(VARIABLE) or place
    path = sqlite_path(uri)
    return uri if path is None else f"{_SQLITE}{path.as_posix()}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite store's file; None for any other store."""
    name = uri.removeprefix(_SQLITE)
    return None if name == uri or not name else Path(name).resolve()


def refuse_secret(uri: str) -> str:
    """A URI without a password: what Prefect stores and shows are the parameters of a flow run.

    Raises:
        InputError: There is one; it is not repeated.
    """
    if _secrets(uri):
        raise InputError(
            f"tracking URI {hide_secrets(uri, uri=uri)}: has a password; set {VARIABLE} in the "
            "environment instead, and change the password if it was stored"
        )
    return uri


def hide_secrets(text: str, *, uri: str) -> str:
    """The text with the URI's passwords and tokens, as written and decoded, replaced by ***."""
    for secret in _secrets(uri):
        text = text.replace(secret, "***")
    return text


def _secrets(uri: str) -> list[str]:
    """As written and decoded; the longest first, so that no part of one is left."""
    parts = urlsplit(uri)
    query = [pair.partition("=")[::2] for pair in parts.query.split("&")]
    found = [value for name, value in query if _SECRET_NAME.search(name)]
    # A user without a password is a token, as hosted services give them.
    found.append(parts.password if parts.password is not None else parts.username or "")
    both = {*found, *map(unquote, found)}
    return sorted(filter(None, both), key=len, reverse=True)


class TrackingConfig(StageConfig):
    """Where a study is shown in MLflow."""

    model_config = ConfigDict(hide_input_in_errors=True)

    tracking_uri: Annotated[str, AfterValidator(refuse_secret)] | None = option(
        None,
        metavar="URI",
        identity=False,
        help="MLflow's store, without a password. Default: MLFLOW_TRACKING_URI, or the file "
        "STUDY/mlflow.db.",
    )
    experiment: str = option(
        DEFAULT_EXPERIMENT,
        min_length=1,
        identity=False,
        help="MLflow's experiment for trainings; tables have one for each set of pairs, whose "
        "name begins with it. Made if it is not there.",
    )


class TrackingUnavailableError(EncoreError):
    """MLflow does not answer, or not as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """Where a study is shown.

    Attributes:
        uri: Of the store, passwords hidden.
        runs: Pages of the runs by folder of training or table; of a table its study's run.
        num_new: Runs that were made or completed now.
    """

    uri: str
    runs: Mapping[Path, str]
    num_new: int

    def how_to_look(self, *folders: Path) -> str:
        """Pages of these runs, or of all, and how to serve a file, as Markdown."""
        pages = [self.runs[folder.resolve()] for folder in folders] or self.runs.values()
        server, how = re.sub("//.*@", "//", self.uri).rstrip("/"), ""
        if not server.startswith("http"):
            server = "http://127.0.0.1:5000"
            how = f"    mlflow ui --backend-store-uri '{self.uri}' --host 127.0.0.1 --port 5000\n\n"
        return how + "\n\n".join(f"<{server}{page}>" for page in pages)


def sync(
    study: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str = DEFAULT_EXPERIMENT,
    also: Sequence[Path] = (),
    stopped: Literal["FAILED", "KILLED"] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Tracked:
    """Show every training and every benchmark table of a study in MLflow; may be repeated.

    Args:
        study: The study's directory.
        tracking_uri: Of the store; see `choose_tracking_uri`.
        experiment: Of the trainings; tables have one for each set of pairs.
        also: Folders of trainings and tables that are not in the study.
        stopped: How trainings that are not finished ended; None: they may go on.
        tags: Of runs that are made now, such as the flow run.

    Raises:
        InputError: No study; a password in ``tracking_uri``.
        TrackingUnavailableError: MLflow does not answer; what was logged stays.
    """
    opened = open_study(study)
    uri = choose_tracking_uri(opened.path, given=tracking_uri)
    with FileLock(opened.path / LOCK_FILE):
        trainings = [*study_runs.read_trainings(opened, also=also)]
        tables = [*study_runs.read_tables(opened, also=also)]
        with _connected(uri) as client:
            projection = _Projection(client=client, uri=uri, stopped=stopped, tags=tags or {})
            for training in trainings:
                projection.show(training, projection.experiment(experiment))
            for table in tables:
                place = projection.experiment(f"{experiment}-{table.experiment}")
                projection.show_table(table, place)
    return Tracked(uri=hide_secrets(uri, uri=uri), runs=projection.runs, num_new=projection.num_new)


def set_alias(
    study: Path,
    *,
    row: str,
    table: Path,
    alias: str,
    config: TrackingConfig,
    model: str = DEFAULT_MODEL,
) -> str:
    """Register a row of a table that is in MLflow; the version that the alias points to.

    Args:
        study: The study's directory.
        row: Of the table in the folder ``table``; one that a model scored here.
        table: Its folder.
        alias: Such as ``candidate`` or ``champion``.
        config: Where it is shown.
        model: Name of the registered model; made if it is not there.

    Raises:
        InputError: No such row, or one whose reward cannot be composed again: a judge, a mean or a
            row of a file.
        TrackingUnavailableError: MLflow does not answer.
    """
    every = study_runs.read_tables(open_study(study), also=(table,))
    found = next(one for one in every if one.parent.folder == table)
    possible = [name for name, one in found.rows.items() if one.tags[REWARD_TAG] == "yes"]
    if row not in possible:
        raise InputError(
            f"row {row!r}: no reward model among the rows that were scored here (there are: "
            f"{', '.join(map(repr, possible)) or 'none'})"
        )
    uri = choose_tracking_uri(study, given=config.tracking_uri)
    with FileLock(study / LOCK_FILE), _connected(uri) as client:
        projection = _Projection(client=client, uri=uri)
        place = projection.experiment(f"{config.experiment}-{found.experiment}")
        shown = found.rows[row]
        run = projection.open_run(shown, place)
        run_id = run.info.run_id
        if not client.search_registered_models(f"name = '{model}'"):
            client.create_registered_model(model)
        there = client.search_model_versions(f"name = '{model}' and run_id = '{run_id}'")
        if not there:
            client.log_text(run_id, shown.row, "model/reward-model.json")
            source = f"{run.info.artifact_uri}/model"
            marks = {name: shown.tags[name] for name in ("encore.synthetic", "encore.partial")}
            there = [client.create_model_version(model, source, run_id, tags=marks)]
        version = str(there[0].version)
        client.set_registered_model_alias(model, alias, version)
        return version


@dataclass(slots=True, kw_only=True)
class _Projection:
    """Runs of one store."""

    client: MlflowClient
    uri: str
    stopped: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    runs: dict[Path, str] = field(default_factory=dict)
    num_new: int = 0

    def experiment(self, name: str) -> str:
        """The id of an experiment, made if it is not there."""
        found = self.client.get_experiment_by_name(name)
        if found is None:
            path = sqlite_path(self.uri)
            return self.client.create_experiment(name, None if path is None else _artifacts(path))
        return found.experiment_id

    def open_run(self, run: StudyRun, experiment_id: str, **tags: str) -> Run:
        """Find a run, or make it, with all of its parameters and tags."""
        from mlflow.entities import Dataset, DatasetInput, Param, RunTag

        there = self.client.search_runs(
            [experiment_id],
            filter_string=f"tags.`{KEY_TAG}` = '{run.key}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        if there:
            [found] = there
        else:
            self.num_new += 1
            found = self.client.create_run(
                experiment_id, run_name=run.name, tags={KEY_TAG: run.key, **self.tags}
            )
            name, digest = run.dataset
            pairs = Dataset(name, digest[:36], "local", json.dumps({"sha256": digest}))
            self.client.log_inputs(found.info.run_id, [DatasetInput(pairs)])
        known, every = found.data, {**run.tags, **tags}
        params = [Param(*one) for one in run.params.items() if one[0] not in known.params]
        new = [RunTag(*one) for one in every.items() if known.tags.get(one[0]) != one[1]]
        for start in range(0, max(len(params), len(new)), _MOST_PARAMS):
            end = start + _MOST_PARAMS
            self.client.log_batch(found.info.run_id, params=params[start:end], tags=new[start:end])
        page = f"/#/experiments/{experiment_id}/runs/{found.info.run_id}"
        self.runs.setdefault(run.folder.resolve(), page)
        return found

    def show(self, run: StudyRun, experiment_id: str, **tags: str) -> None:
        """Metrics of new steps, checkpoints; the run's files when it is finished."""
        found = self.open_run(run, experiment_id, **tags)
        run_id = found.info.run_id
        is_over = found.info.status == "FINISHED" and run.is_finished
        is_new = not is_over and self._log_series(run, found)
        self._show_models(run, found)  # of a finished run too: the study may have moved
        if is_over:
            return
        if run.is_finished:
            for path in run.files:
                self.client.log_artifact(run_id, str(path))
            if run.row:
                self.client.log_text(run_id, run.row, "row.json")
            self.client.set_terminated(run_id, "FINISHED")
        elif self.stopped is not None:
            self.client.set_terminated(run_id, self.stopped)
        elif is_new and found.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")

    def _log_series(self, run: StudyRun, found: Run) -> bool:
        """Log the metrics of steps that are new; whether there were any."""
        from mlflow.entities import Metric

        run_id, began, is_new = found.info.run_id, found.info.start_time, False
        for name, series in run.series.items():
            tag = f"encore.logged.{name}"  # set last: what a crash left out is logged again
            num_before = int(found.data.tags.get(tag, -1))
            points = [
                Metric(metric, value, began, step)
                for step, values in series
                if step > num_before
                for metric, value in values.items()
            ]
            for start in range(0, len(points), _MOST_METRICS):
                self.client.log_batch(run_id, metrics=points[start : start + _MOST_METRICS])
            if points:
                is_new = True
                self.client.set_tag(run_id, tag, points[-1].step)
        return is_new

    def _show_models(self, run: StudyRun, found: Run) -> None:
        """A LoggedModel for each checkpoint, with the metrics of its evaluation; no file is copied.

        A model's metrics are also the run's: exactly the same, so the store has them once.
        """
        from mlflow.entities import LoggedModelOutput, Metric

        if not run.models:
            return
        client, place, run_id = self.client, found.info.experiment_id, found.info.run_id
        query = f"source_run_id = '{run_id}'"
        there = client.search_logged_models([place], query, max_results=_MOST_MODELS)
        known = {model.tags[_NAME_TAG]: model for model in there}
        evaluations = dict(run.series["eval"])
        for step, path in run.models:
            tags = {_NAME_TAG: path.name, _PATH_TAG: str(path.resolve()), _ON_DISK_TAG: "yes"}
            model = known.pop(path.name, None) or client.create_logged_model(
                *(place, f"{run.key[:8]}-{path.name}", run_id),
                tags={**tags, KEY_TAG: run.key},
                model_type="reward-model",
            )
            if model.tags[_PATH_TAG] != tags[_PATH_TAG]:  # the study has moved
                client.set_logged_model_tags(model.model_id, tags)
            if str(model.status) != "READY":
                metrics = [
                    Metric(name, value, found.info.start_time, step, model_id=model.model_id)
                    for name, value in evaluations.get(step, {}).items()
                ]
                client.log_batch(run_id, metrics=metrics)
                outputs = client.get_run(run_id).outputs
                linked = [one.model_id for one in outputs.model_outputs] if outputs else []
                if model.model_id not in linked:  # a crash may have come before the last call
                    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
                client.finalize_logged_model(model.model_id, "READY")
        for model in known.values():  # only the newest checkpoints are kept on the disk
            client.set_logged_model_tags(model.model_id, {_ON_DISK_TAG: "no"})

    def show_table(self, table: StudyTable, experiment_id: str) -> None:
        """The study's run with the whole table, and within it a run for each row."""
        parent = self.open_run(table.parent, experiment_id)
        parent_id = parent.info.run_id
        shown_tag = f"{study_runs.TABLE_TAG}.{table.key}"
        if shown_tag in parent.data.tags:
            return
        for row in table.rows.values():
            self.show(row, experiment_id, **{"mlflow.parentRunId": parent_id})
        for path in table.parent.files:
            self.client.log_artifact(parent_id, str(path), f"tables/{table.key}")
        self.client.set_terminated(parent_id, "FINISHED")
        self.client.set_tag(parent_id, shown_tag, "yes")  # last: all of it is there


def _artifacts(store: Path) -> str:
    """Beside an SQLite file, not in whatever directory the process runs in."""
    return (store.parent / f"{store.stem}-artifacts").as_uri()


def _follow(store: Path) -> None:
    """Let a store that was copied or moved name its own artifact folder, not the one it came from.

    MLflow records absolute places and has no call that changes them.
    """
    here, name = _artifacts(store), f"/{store.stem}-artifacts"
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        found = connection.execute("select distinct artifact_location from experiments").fetchall()
        for there in [place for (place,) in found if place != here and place.endswith(name)]:
            for table, column in _PLACES:  # the names are our own
                change = f"update {table} set {column} = replace({column}, ?, ?)"  # noqa: S608
                connection.execute(change, (there, here))


def make_store(path: Path) -> None:
    """Make an empty store under another name first, so that a store that is there is whole.

    Its 60 tables then need not reach the disk one by one, which would take seconds.
    """
    from mlflow import MlflowClient
    from sqlalchemy import Engine, event

    def write_behind(connection: Any, _record: Any) -> None:
        connection.execute("pragma synchronous = off")

    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    event.listen(Engine, "connect", write_behind)
    try:
        MlflowClient(f"sqlite:///{temporary}").search_experiments()
    finally:
        event.remove(Engine, "connect", write_behind)
    temporary.replace(path)


@contextlib.contextmanager
def _connected(uri: str) -> Iterator[MlflowClient]:
    """A store's client; what MLflow or its connection raises becomes one line without passwords.

    Raises:
        TrackingUnavailableError: Whatever was raised.
    """
    prepare_environment()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # It logs every failed query with its traceback; what fails is said here, once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service import utils
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if (path := sqlite_path(uri)) is None:
            _check_reachable(uri)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _follow(path) if path.exists() else make_store(path)
        # Places of artifacts by run id, whichever store: not those of a copy of this study.
        utils._artifact_repos_cache.clear()
        yield MlflowClient(uri)
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        text = " ".join(hide_secrets(str(error), uri=uri).split())[:_LONGEST_MESSAGE]
        raise TrackingUnavailableError(
            f"MLflow {hide_secrets(uri, uri=uri)}: it does not take what the study has ({text}); "
            "start the server, or give another --tracking-uri; everything is in the study's "
            "files, and `python -m tasks.track STUDY` shows it later"
        ) from error


def _check_reachable(uri: str) -> None:
    """Find out at once what MLflow would find out after minutes of retries."""
    address = urlsplit(uri)
    port = address.port or _DATABASE_PORTS.get(address.scheme.partition("+")[0])
    if address.hostname and port:
        socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()


class TrackConfig(TrackingConfig):
    """Show a study in MLflow."""

    study: Path = option(positional=True, identity=False, help="The study directory.")


def track(config: TrackConfig) -> None:
    """Show every training and every benchmark table of a study in MLflow.

    Runs that are there are completed; nothing is logged twice. Flows do this themselves.

    Example: python -m tasks.track my-study
    """
    found = sync(**dict(config))
    say(
        f"MLflow {found.uri}: {len(found.runs)} runs of {config.study}, {found.num_new} of them new"
    )


if __name__ == "__main__":
    run_main(single_command(track, name="tasks.track"))
