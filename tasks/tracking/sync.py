"""MLflow as a projection of a study's files: `sync` shows there what the files say.

Every run is found by the tag ``encore.run_key``, so nothing is logged twice, whoever logs it and
however often; an outage costs a warning, and the next `sync` catches up.
By hand: ``python -m tasks.tracking STUDY``.
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
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import unquote, urlencode, urlsplit

import httpx
from filelock import FileLock
from pydantic import AfterValidator, ConfigDict

from encore.core.config import StageConfig, option
from encore.core.errors import EncoreError, InputError
from encore.core.settings import prepare_environment
from encore.data.study import open_study
from tasks.tracking import study_runs
from tasks.tracking.study_runs import KEY_TAG, KIND_TAG, TABLE_TAG, DataSet, StudyRun, StudyTable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)

DEFAULT_EXPERIMENT = "encore"
LOCK_FILE = ".mlflow.lock"
#: MLflow retries these for minutes before it says that nobody listens.
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS, _LONGEST_MESSAGE = 10.0, 300
_MOST_MODELS, _MOST_EXPERIMENTS = 1000, 50_000
#: Characters of a data set's digest that MLflow keeps.
_DIGEST_LENGTH = 36
#: Pages open in MLflow's view for language models without it, where runs are not listed.
_VIEW = {"workflowType": "machine_learning"}
#: What an MLflow server answers with a JSON object; one behind a login, or restarting, does not.
_SEARCH = "/api/2.0/mlflow/experiments/search?max_results=1"
_NO_ANSWER_OF_ITS_OWN = (401, 403, 407, 429)
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
        help="MLflow's store, without a password. Default: MLFLOW_TRACKING_URI, or the file "
        "STUDY/mlflow.db.",
    )
    experiment: str = option(
        DEFAULT_EXPERIMENT,
        min_length=1,
        help="MLflow's experiment for new trainings and weights; tables have one for each set of "
        "pairs, whose name begins with it. Made if it is not there; what MLflow has already stays "
        "where it is.",
    )


class TrackingUnavailableError(EncoreError):
    """MLflow does not answer, or not as it should."""


class NotMLflowError(TrackingUnavailableError):
    """Another service answers at the address of the tracking server."""


def sync(
    study: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str = DEFAULT_EXPERIMENT,
    also: Sequence[Path] = (),
    weighings: Sequence[StudyRun] = (),
    stopped: Literal["FAILED", "KILLED"] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Projection:
    """Show every training and every benchmark table of a study in MLflow; may be repeated.

    Args:
        study: The study's directory.
        tracking_uri: Of the store; see `choose_tracking_uri`.
        experiment: Of new trainings; tables have one for each set of pairs.
        also: Folders of trainings and tables that are not in the study.
        weighings: Weights of its rules, which no file of the study has.
        stopped: How trainings that are not finished ended; None: they may go on.
        tags: Of runs that are made now, such as the flow run.

    Raises:
        InputError: No study; a password in ``tracking_uri``.
        TrackingUnavailableError: MLflow does not answer; what was logged stays.
    """
    opened = open_study(study)
    uri = choose_tracking_uri(opened.path, given=tracking_uri)
    with FileLock(opened.path / LOCK_FILE):
        trainings = [*study_runs.read_trainings(opened, also=also), *weighings]
        tables = [*study_runs.read_tables(opened, also=also)]
        with connected(uri) as client:
            projection = Projection(client=client, uri=uri, stopped=stopped, tags=tags or {})
            for training in trainings:
                projection.show(training, experiment)
            for table in tables:
                projection.show_table(table, f"{experiment}-{table.experiment}")
    return projection


@dataclass(slots=True, kw_only=True)
class Projection:
    """Runs of one store, each found by its key in whichever experiment it is.

    Attributes:
        client: Of the store.
        uri: Of the store.
        stopped: How trainings that are not finished ended; None: they may go on.
        tags: Of runs that are made now.
        pages: By folder: of a training or rating its run; of a table its rows, the best first, then
            the study's run.
        num_new: Runs that were made now.
    """

    client: MlflowClient
    uri: str
    stopped: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    pages: dict[Path, list[str]] = field(default_factory=dict)
    num_new: int = 0
    _experiments: dict[str, str] = field(init=False)  # ids by name

    def __post_init__(self) -> None:
        """Look which experiments there are."""
        found = self.client.search_experiments(max_results=_MOST_EXPERIMENTS)
        self._experiments = {one.name: one.experiment_id for one in found}

    def how_to_look(self, *folders: Path) -> str:
        """Pages of these folders, or of all, and how to serve a file, as Markdown."""
        wanted = [self.pages[folder.resolve()] for folder in folders] or self.pages.values()
        pages = dict.fromkeys(page for one in wanted for page in one)
        shown = hide_secrets(self.uri, uri=self.uri)
        server, how = re.sub("//.*@", "//", shown).rstrip("/"), ""
        if not server.startswith("http"):
            server = "http://127.0.0.1:5000"
            how = f"    mlflow ui --backend-store-uri '{shown}' --host 127.0.0.1 --port 5000\n\n"
        return how + "\n\n".join(f"<{server}{page}>" for page in pages)

    def find_run(self, run: StudyRun) -> Run | None:
        """The run of this key, if it is there."""
        there = self.client.search_runs(
            list(self._experiments.values()),
            filter_string=f"tags.`{KEY_TAG}` = '{run.key}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return there[0] if there else None

    def open_run(self, run: StudyRun, experiment: str, **tags: str) -> Run:
        """Find a run, or make it in an experiment, with all of its parameters, tags and data."""
        from mlflow.entities import Param, RunTag

        found = self.find_run(run)
        if found is None:
            self.num_new += 1
            found = self.client.create_run(
                self._experiment(experiment),
                run_name=run.name,
                tags={KEY_TAG: run.key, **self.tags},
            )
        params = [Param(*one) for one in run.params.items() if one[0] not in found.data.params]
        every = [RunTag(*one) for one in {**run.tags, **tags}.items()]
        self.client.log_batch(found.info.run_id, params=params, tags=every)
        # What is there already is not there twice.
        self.client.log_inputs(found.info.run_id, list(map(_dataset_input, run.datasets)))
        return found

    def _experiment(self, name: str) -> str:
        """The id of an experiment, made if it is not there."""
        if name not in self._experiments:
            path = sqlite_path(self.uri)
            place = None if path is None else _artifacts(path)
            self._experiments[name] = self.client.create_experiment(name, place)
        return self._experiments[name]

    def show(self, run: StudyRun, experiment: str, **tags: str) -> None:
        """Metrics of new steps, checkpoints; the run's files when it is finished."""
        found = self.open_run(run, experiment, **tags)
        run_id = found.info.run_id
        self.pages.setdefault(run.folder.resolve(), [_run_page(found)])
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
            if points:
                is_new = True
                self.client.log_batch(run_id, metrics=points)
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

    def show_table(self, table: StudyTable, experiment: str) -> None:
        """The study's run with the whole table, and within it a run for each row."""
        from mlflow.entities import Metric

        shown_tag = f"{TABLE_TAG}.{table.key}"
        parent = self.find_run(table.parent)
        is_shown = parent is not None and shown_tag in parent.data.tags
        if parent is None or not is_shown:  # the tags of the study's run are those of its newest
            parent = self.open_run(table.parent, experiment)
        parent_id, folder = parent.info.run_id, table.parent.folder
        self.pages[folder.resolve()] = [_rows_page(table, parent), _run_page(parent)]
        if is_shown:
            return
        for row in table.rows.values():
            self.show(row, experiment, **{"mlflow.parentRunId": parent_id})
        for path in table.parent.files:
            self.client.log_artifact(parent_id, str(path), f"tables/{table.key}")
        made = int((folder / "table.md").stat().st_mtime * 1000)
        metrics = [Metric(name, value, made, 0) for name, value in table.figures.items()]
        self.client.log_batch(parent_id, metrics=metrics)
        self.client.set_terminated(parent_id, "FINISHED")
        self.client.set_tag(parent_id, shown_tag, "yes")  # last: all of it is there


def _run_page(run: Run) -> str:
    page = f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"{page}?{urlencode(_VIEW)}"


def _rows_page(table: StudyTable, parent: Run) -> str:
    """The rows of one table alone, the best first."""
    rows = f"tags.`{TABLE_TAG}.{table.key}` = 'yes' and tags.`{KIND_TAG}` = 'evaluation'"
    order = {"orderByKey": f"metrics.`{table.headline}`", "orderByAsc": "false"}
    query = urlencode({**_VIEW, "searchFilter": rows, **order})
    return f"/#/experiments/{parent.info.experiment_id}/runs?{query}"


def _dataset_input(data: DataSet) -> DatasetInput:
    """As `mlflow.log_input` logs what it does not read."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": str(data.place.resolve()), "sha256": data.digest})
    dataset = Dataset(data.name, data.digest[:_DIGEST_LENGTH], "local", source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", data.context)])


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
    """Make an empty store under another name first, so that a store that is there is whole."""
    from mlflow import MlflowClient

    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    MlflowClient(f"{_SQLITE}{temporary}").search_experiments()
    temporary.replace(path)


@contextlib.contextmanager
def connected(uri: str) -> Iterator[MlflowClient]:
    """A store's client; what MLflow or its connection raises becomes one line without passwords.

    Raises:
        TrackingUnavailableError: Whatever was raised.
    """
    prepare_environment()
    # It logs every failed query with its traceback; what fails is said here, once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service import utils
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if (path := sqlite_path(uri)) is None:
            check_server(uri)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _follow(path) if path.exists() else make_store(path)
        # Places of artifacts by run id, whichever store: not those of a copy of this study.
        utils._artifact_repos_cache.clear()
        yield MlflowClient(uri)
    except (MlflowException, SQLAlchemyError, sqlite3.Error, httpx.HTTPError, OSError) as error:
        text = " ".join(hide_secrets(str(error), uri=uri).split())[:_LONGEST_MESSAGE]
        raise TrackingUnavailableError(
            f"MLflow {hide_secrets(uri, uri=uri)}: it does not take what the study has ({text}); "
            "start the server, or give another --tracking-uri; everything is in the study's "
            "files, and `python -m tasks.tracking STUDY` shows it later"
        ) from error


def check_server(uri: str) -> None:
    """Find out at once what MLflow would find out after minutes of retries, or with a traceback.

    Raises:
        NotMLflowError: Another service answers.
        OSError, httpx.HTTPError: Nobody does.
    """
    address = urlsplit(uri)
    port = address.port or _DATABASE_PORTS.get(address.scheme.partition("+")[0])
    if address.hostname and port:
        socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()
    if address.scheme not in ("http", "https"):
        return
    answer = httpx.get(
        f"{uri.rstrip('/')}{_SEARCH}", timeout=_CONNECT_SECONDS, follow_redirects=True
    )
    if answer.is_server_error or answer.status_code in _NO_ANSWER_OF_ITS_OWN:
        return  # MLflow's client says it better
    with contextlib.suppress(ValueError):
        if answer.is_success and isinstance(answer.json(), dict):
            return
    raise NotMLflowError(
        f"MLflow {hide_secrets(uri, uri=uri)}: another service answers there ({_SEARCH}: "
        f"{answer.status_code} {answer.reason_phrase}); give the address of an MLflow server with "
        f"--tracking-uri or {VARIABLE}"
    )
