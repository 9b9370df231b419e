"""The command ``python -m tasks.tracking STUDY``."""

from __future__ import annotations

from encore.core.command_parser import run_main, single_command
from encore.core.terminal import say
from encore.data.study_options import StudyConfig
from tasks.tracking.store_uri import hide_secrets
from tasks.tracking.sync import sync
from tasks.tracking.tracking_options import TrackingConfig


class TrackConfig(TrackingConfig, StudyConfig):
    """Log a study in MLflow."""


def track(config: TrackConfig) -> None:
    """Log every training and every benchmark table of a study in MLflow.

    Runs that are there are completed; nothing is logged twice. Flows do this themselves.

    Example: python -m tasks.tracking my-study
    """
    projection = sync(**dict(config))
    say(
        f"MLflow {hide_secrets(projection.uri, uri=projection.uri)}: {projection.num_new} new "
        f"runs, {len(projection.pages)} trainings and tables of {config.study}"
    )


if __name__ == "__main__":
    run_main(single_command(track, name="tasks.tracking"))
