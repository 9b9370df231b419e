"""Show in MLflow what a study's files contain: `sync`, which flows call as often as they like.

An outage costs a warning, and the next `sync` catches up. The command is
``python -m tasks.tracking STUDY``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from encore.core.file_lock import file_lock
from encore.data.study import open_study
from tasks.tracking.connection import TrackingUnavailableError, connected
from tasks.tracking.local_store import artifacts_folder, is_copied
from tasks.tracking.log_runs import Projection
from tasks.tracking.store_uri import STUDY_STORE, choose_tracking_uri, hide_secrets, sqlite_path
from tasks.tracking.study_runs import StudyRun, read_tables, read_trainings
from tasks.tracking.tracking_options import DEFAULT_EXPERIMENT

#: One process at a time logs a study.
LOCK_FILE = ".mlflow.lock"


def sync(
    study: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str = DEFAULT_EXPERIMENT,
    extra_folders: Sequence[Path] = (),
    weighings: Sequence[StudyRun] = (),
    end_status: Literal["FAILED", "KILLED"] | None = None,
    new_run_tags: Mapping[str, str] | None = None,
) -> Projection:
    """Log every training and every benchmark table of a study that MLflow does not have yet.

    Args:
        study: The study's directory.
        tracking_uri: URI of the store. Default: see `choose_tracking_uri`.
        experiment: MLflow's experiment for new trainings and weights. Tables have one for each set
            of pairs, whose name begins with it.
        extra_folders: Folders of trainings and tables that are not in the study.
        weighings: Runs that show weights of the rules, which no file of the study has.
        end_status: MLflow's status for trainings that are not finished and have ended. None: they
            may still be running.
        new_run_tags: Tags of runs that are made now, such as the flow run that logs them.

    Raises:
        InputError: There is no such study, or ``tracking_uri`` has a password.
        TrackingUnavailableError: MLflow does not answer, or its store was copied or moved; what
            was logged stays.
    """
    opened = open_study(study)
    uri = choose_tracking_uri(opened.path, given_uri=tracking_uri)
    with file_lock(opened.path / LOCK_FILE):
        runs = [*read_trainings(opened, extra_folders=extra_folders), *weighings]
        tables = [*read_tables(opened, extra_folders=extra_folders)]
        store = sqlite_path(uri)
        with connected(uri) as client:
            if store is not None and is_copied(store, client):
                raise _copied_store_error(store, study=opened.path, uri=uri)
            projection = Projection(
                client=client, uri=uri, end_status=end_status, new_run_tags=new_run_tags or {}
            )
            for run in runs:
                projection.log_run(run, experiment)
            for table in tables:
                projection.log_table(table, f"{experiment}-{table.experiment}")
            return projection


def _copied_store_error(store: Path, *, study: Path, uri: str) -> TrackingUnavailableError:
    way_out = "put it back, or give another --tracking-uri: it may have runs of other studies"
    if store == study.resolve() / STUDY_STORE:
        way_out = (
            f"delete {store} and {artifacts_folder(store)}, then `python -m tasks.tracking {study}`"
            " makes it anew from the study's files"
        )
    return TrackingUnavailableError(
        f"MLflow {hide_secrets(uri, uri=uri)}: this store was copied or moved, and its runs name "
        f"files where it was before; {way_out}"
    )
