"""What a real MLflow store has, asked for through MLflow's own client."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

from sqlalchemy.exc import SADeprecationWarning

from tasks.tracking.sync import make_store

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

__all__ = ["Logged", "MlflowClient", "Run", "copied", "mlflow", "new_template"]


def new_template(folder: Path) -> Path:
    """An empty store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SADeprecationWarning)
        make_store(folder / "mlflow.db")
    return folder / "mlflow.db"


def copied(template: Path, to: Path) -> str:
    """The URI of a store of its own."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(template, to)
    return f"sqlite:///{to}"


class Logged:
    """The runs of one experiment."""

    def __init__(self, uri: str, *, experiment: str = "encore") -> None:
        self.client = MlflowClient(uri)
        self.experiment = self.client.get_experiment_by_name(experiment)
        assert self.experiment is not None, self.client.search_experiments()

    def all_runs(self) -> list[Run]:
        """The newest first; several may have one name."""
        return list(self.client.search_runs([self.experiment.experiment_id]))

    def runs(self) -> dict[str, Run]:
        """By name; none is there twice."""
        found = self.all_runs()
        runs = {run.info.run_name: run for run in found}
        assert len(runs) == len(found), "a run is logged twice"
        return runs

    def run(self) -> Run:
        [run] = self.runs().values()
        return run

    def steps(self, metric: str) -> list[int]:
        """The steps of a metric as logged; one that is there twice is listed twice."""
        history = self.client.get_metric_history(self.run().info.run_id, metric)
        return sorted(point.step for point in history)

    def models(self) -> dict[str, LoggedModel]:
        """By the name of the checkpoint."""
        found = self.client.search_logged_models([self.experiment.experiment_id])
        models = {model.tags["encore.checkpoint"]: model for model in found}
        assert len(models) == len(found), "a checkpoint is logged twice"
        return models
