"""Options of everything that logs a study in MLflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict

from encore.core.config import StageConfig, option
from tasks.tracking.store_uri import refuse_secret

DEFAULT_EXPERIMENT = "encore"


class TrackingConfig(StageConfig):
    """The MLflow store and experiment of a study."""

    model_config = ConfigDict(hide_input_in_errors=True)

    tracking_uri: Annotated[str, AfterValidator(refuse_secret)] | None = option(None, metavar="URI")
    """MLflow's store, without a password. Default: MLFLOW_TRACKING_URI, or the file
    STUDY/mlflow.db."""
    experiment: str = option(DEFAULT_EXPERIMENT, min_length=1)
    """MLflow's experiment for new trainings and weights; tables have one for each set of pairs,
    whose name begins with it. Made if it is not there; what MLflow has already stays where it is.
    """
