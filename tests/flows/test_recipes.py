"""The flow `recipe`: the library's stages as tasks, with artifacts, shown in MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.recipes.recipe import Recipe
from flows.recipes import run_recipe
from tasks.tracking.tracking_options import TrackingConfig
from tests.flows.conftest import artifact
from tests.recipes.test_recipes import tiny  # noqa: F401 - a fixture
from tests.tasks.tracking.mlflow_store import Logged

pytestmark = pytest.mark.services


@pytest.mark.usefixtures("prefect_api")
def test_the_flow_runs_every_stage_once_and_publishes_the_results(
    tmp_path: Path,
    tiny: Recipe,  # noqa: F811
) -> None:
    tiny = tiny.model_copy(update={"rows": (), "gate": None})
    study, store = tmp_path / "study", f"sqlite:///{tmp_path / 'mlflow.db'}"

    def start():
        tracking = TrackingConfig(tracking_uri=store)
        changes = {"rating": {"limit": 6}}
        return run_recipe(tiny, study, changes=changes, tracking=tracking, return_state=True)

    state = start()
    assert state.is_completed(), state.message
    assert state.message.startswith("demo_pilot_6: 8 stages done, 0 were done before; 3 rated")
    keys = ("rule-statistics", "rule-weights", "training-evaluation", "benchmark-table")
    for key in (*keys, "rating-progress", "mlflow-run"):
        assert artifact(key, study)
    assert Logged(store).run().info.status == "FINISHED"
    [experiment] = [
        logged.name
        for logged in Logged(store).client.search_experiments()
        if logged.name.startswith("encore-")
    ]
    assert {"uniform", "encore (τ 2)"} <= set(Logged(store, experiment=experiment).runs())

    again = start()
    assert again.message.startswith(
        "demo_pilot_6: 0 stages done, 8 were done before; 0 rated, 3 reused"
    )
