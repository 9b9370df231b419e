"""Read what a real MLflow store has, through MLflow's own client."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

from sqlalchemy.exc import SADeprecationWarning

from tasks.tracking.local_store import make_store
from tasks.tracking.store_uri import sqlite_uri

with warnings.catch_warnings():
    # MLflow 3.17 uses what SQLAlchemy 2.1 is about to remove, and has it set up everybody's tables
    # when it is imported: Prefect's too, with a warning of their own.
    warnings.simplefilter("ignore", SADeprecationWarning)
    warnings.simplefilter("ignore", UserWarning)  # of type hints in MLflow's own classes
    import mlflow.pyfunc
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

__all__ = ["Logged", "MlflowClient", "Run", "copy_store", "mlflow", "new_template"]


def new_template(folder: Path) -> Path:
    """Make an empty store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SADeprecationWarning)
        make_store(folder / "mlflow.db")
    return folder / "mlflow.db"


def copy_store(template: Path, path: Path) -> str:
    """Copy an empty store to a path, and return its URI."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(template, path)
    return sqlite_uri(path)


class Logged:
    """The runs of one experiment."""

    def __init__(self, uri: str, *, experiment: str = "encore") -> None:
        self.client = MlflowClient(uri)
        self.experiment = self.client.get_experiment_by_name(experiment)
        assert self.experiment is not None, self.client.search_experiments()

    def all_runs(self) -> list[Run]:
        """Return the runs, the newest first; several may have one name."""
        return list(self.client.search_runs([self.experiment.experiment_id]))

    def runs(self) -> dict[str, Run]:
        """Return the runs by name. No name may be there twice."""
        all_runs = self.all_runs()
        run_by_name = {run.info.run_name: run for run in all_runs}
        assert len(run_by_name) == len(all_runs), "a run is logged twice"
        return run_by_name

    def run(self) -> Run:
        """Return the only run."""
        [run] = self.runs().values()
        return run

    def steps(self, metric: str) -> list[int]:
        """Return the steps of a metric; a step that is logged twice is there twice."""
        history = self.client.get_metric_history(self.run().info.run_id, metric)
        return sorted(point.step for point in history)

    def models(self) -> dict[str, LoggedModel]:
        """Return the logged models by the name of their checkpoint."""
        models = self.client.search_logged_models([self.experiment.experiment_id])
        model_by_name = {model.tags["encore.checkpoint"]: model for model in models}
        assert len(model_by_name) == len(models), "a checkpoint is logged twice"
        return model_by_name
