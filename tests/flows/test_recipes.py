"""The flow `recipe`: the library's stages as tasks, with artifacts, shown in MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.artifacts import Artifact

from encore.benchmarks.benchmark_config import RowsConfig
from encore.config import JudgeConfig, RatingConfig
from encore.recipes.recipe import Recipe, RecipeChanges, load_recipe
from encore.training.config import TrainingConfig
from flows.recipes import run_recipe
from tasks.track import TrackingConfig
from tests.tasks.mlflow_store import Logged
from tests.training.studies import backbone_config, make_backbone


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, pairs_file: Path, tiny_judge: Path) -> Recipe:
    """The demo's recipe made small: six pairs, two steps, no rows beside it."""
    trunk = backbone_config(make_backbone(tmp_path_factory.mktemp("recipe") / "tiny"))
    judge = JudgeConfig(model=str(tiny_judge), backend="transformers")
    demo = load_recipe("demo")
    rows = RowsConfig(schemes=("uniform", "encore"), taus=(2.0,))
    return demo.model_copy(
        update={
            "sources": (f"small={pairs_file}",),
            "rating": RatingConfig(judge=judge, shard_size=2, max_reply_tokens=8),
            "backbone": trunk,
            "training": TrainingConfig(batch_pairs=4, max_steps=2, evaluation_share=0.3),
            "initial": None,
            "rows": (),
            "gate": None,
            "judge_row": None,
            "export_heads": False,
            "benchmark": demo.benchmark.model_copy(update={"rows": rows}),
        }
    )


@pytest.mark.usefixtures("prefect_api")
def test_the_flow_does_every_stage_once_and_shows_it(tmp_path: Path, tiny: Recipe) -> None:
    study, store = tmp_path / "study", f"sqlite:///{tmp_path / 'mlflow.db'}"

    def start():
        tracking = TrackingConfig(tracking_uri=store)
        return run_recipe(tiny, study, tracking=tracking, return_state=True)

    state = start()
    assert state.is_completed(), state.message
    assert state.message.startswith("demo: 8 stages done, 0 were done before; 3 rated")
    keys = ("rule-statistics", "rule-weights", "training-evaluation", "benchmark-table")
    for key in (*keys, "rating-progress", "mlflow-run"):
        assert Artifact.get(key) is not None, key
    assert Logged(store).run().info.status == "FINISHED"
    [experiment] = [
        one.name
        for one in Logged(store).client.search_experiments()
        if one.name.startswith("encore-")
    ]
    assert {"uniform", "encore (τ 2)"} <= set(Logged(store, experiment=experiment).runs())

    again = start()
    assert again.message.startswith("demo: 0 stages done, 8 were done before; 0 rated, 3 reused")


@pytest.mark.usefixtures("prefect_api")
def test_what_a_machine_needs_otherwise_is_a_parameter_of_the_flow(tmp_path: Path) -> None:
    changes = RecipeChanges(limit=4, benchmark_data=tmp_path / "missing.jsonl")
    state = run_recipe("demo", tmp_path / "study", changes=changes, return_state=True)
    assert "missing.jsonl: no such file" in str(state.result(raise_on_failure=False))
