"""The flow `pipeline`: from a file of pairs to weights; as a command, also a recipe's flow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from prefect.client.schemas.objects import State

from encore.analysis.analyze import analyze
from encore.analysis.rule_verdicts import RuleVerdictName
from encore.core.command_parser import UsageError, single_command
from encore.data.rating_runs import list_runs, read_run
from encore.data.study import open_study
from encore.rating.rating_options import RatingConfig
from encore.recipes.recipe import RecipeRating, Weighing, changed, load_recipe
from encore.recipes.recipe_run import RecipeResult
from encore.reports.write_report import default_folder
from encore.weighting.weigh import weights
from encore.weighting.weight_vector import WeightVector
from flows import pipeline as module
from flows.pilot import pilot
from flows.pipeline import PipelineConfig, main, pipeline
from flows.recipes import run_recipe
from tasks.tracking.tracking_options import TrackingConfig
from tests.flows.conftest import artifact, error_of
from tests.tasks.tracking.mlflow_store import Logged, MlflowClient
from tests.worlds.studies import shard_path

pytestmark = pytest.mark.services


RatingOf = Callable[..., RatingConfig]
ROOT = Path(__file__).parents[2]


def start(
    study: Path, source: Path, rating: RatingConfig, store: str | None = None, **weighing: Any
) -> State[Any]:
    config = PipelineConfig(
        sources=(f"small={source}",),
        study=study,
        rating=RecipeRating(**dict(rating)),
        weighing=Weighing(**weighing),
    )
    return pipeline(config, tracking=TrackingConfig(tracking_uri=store), return_state=True)


@pytest.mark.usefixtures("prefect_api")
def test_pairs_become_weights_and_a_second_run_does_only_what_is_missing(
    tmp_path: Path, pairs_file: Path, rating: RatingOf, request: pytest.FixtureRequest
) -> None:
    study = tmp_path / "study"
    first = start(study, pairs_file, rating(), tau=0.5)
    [run_dir] = list_runs(open_study(study).ratings_dir)
    assert (default_folder(run_dir) / "figures" / "ties.png").is_file()
    request.getfixturevalue("without_pictures")
    assert first.message == "3 rated, 0 reused, 0 failed"
    vector = first.result()
    assert isinstance(vector, WeightVector)
    assert vector == weights(study, scheme="encore", tau=0.5)
    for key in ("rating-progress", "failed-shards", "rule-statistics", "rule-weights"):
        assert artifact(key, study)

    pairs_written = (study / "pairs" / "small.parquet").stat().st_mtime_ns
    shard_path(run_dir, 1).unlink()
    again = start(study, pairs_file, rating(), scheme="top-k", k=2)
    assert again.message == "1 rated, 2 reused, 0 failed"
    assert (study / "pairs" / "small.parquet").stat().st_mtime_ns == pairs_written
    assert again.result() == weights(study, scheme="top-k", k=2)


@pytest.mark.usefixtures("prefect_api", "without_pictures")
def test_a_pilot_is_a_pipeline_of_few_pairs(
    tmp_path: Path, pairs_file: Path, rating: RatingOf
) -> None:
    judge = rating().judge
    form = {"sources": [f"small={pairs_file}"], "judge": str(judge.model), "num_pairs": 2}
    judge_values = judge.model_dump(exclude={"model"}, exclude_unset=True)
    how = {"rating": {"judge": judge_values, "max_reply_tokens": 8}, "weighing": {"tau": 0.5}}
    state = pilot(study=tmp_path / "study", how=how, **form, return_state=True)
    assert state.message == "1 rated, 0 reused, 0 failed"
    assert state.result() == weights(tmp_path / "study", tau=0.5)
    assert "verdict" in artifact("rule-statistics", tmp_path / "study").data
    how = {"rating": {"no_such_option": 1}}
    refused = pilot(study=tmp_path / "other", how=how, **form, return_state=True)
    assert "rating.no_such_option" in str(error_of(refused))
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("prefect_api", "without_pictures")
def test_each_weighing_is_one_mlflow_run_with_the_figures_of_its_rules(
    tmp_path: Path, pairs_file: Path, rating: RatingOf, store_uri: str
) -> None:
    study = tmp_path / "study"
    for tau in (0.5, 0.5, 2.0):  # the second call logs nothing new
        start(study, pairs_file, rating(), store_uri, tau=tau)

    [sharp, flat] = sorted(Logged(store_uri).all_runs(), key=lambda run: run.data.params["tau"])
    [run_dir] = list_runs(open_study(study).ratings_dir)
    for run, tau in ((sharp, 0.5), (flat, 2.0)):
        assert run.info.run_name == f"encore-{run_dir.name[:8]}"
        assert run.info.status == "FINISHED"
        assert run.data.params["judge.name"] == read_run(run_dir).judge
        assert {data.dataset.name for data in run.inputs.dataset_inputs} >= {"study"}
        vector, analysis = weights(study, tau=tau), analyze(study)
        rules = analysis.rules
        verdicts = [row.verdict for row in analysis.answers[-1].rows]
        for name in get_args(RuleVerdictName):
            assert run.data.metrics[f"rules/{name}"] == verdicts.count(name)
        files = MlflowClient(store_uri).list_artifacts(run.info.run_id)
        assert {file.path for file in files} == {"analysis.json", "weights.json", "report.html"}
        for rule, weight in zip(rules, vector.weights, strict=True):
            metrics, rule_id = run.data.metrics, rule.rule_id
            assert metrics[f"weight/{rule_id}"] == pytest.approx(weight)
            assert metrics[f"entropy/{rule_id}"] == pytest.approx(rule.entropy_nats)
            assert metrics[f"accuracy/{rule_id}"] == pytest.approx(rule.accuracy.half)


@pytest.mark.usefixtures("prefect_api")
def test_a_scheme_without_its_rule_is_refused_before_anything_is_rated(
    tmp_path: Path, pairs_file: Path, rating: RatingOf
) -> None:
    error = error_of(start(tmp_path / "study", pairs_file, rating(), scheme="single"))
    assert "weighing scheme 'single' needs a rule" in str(error)
    assert not (tmp_path / "study").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Record the flows that a command starts, each with a table while that file exists."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    table = tmp_path / "table.md"
    table.write_text("| row | score |\n")
    no_value: Any = None

    def run_flow(flow: Any, **parameters: Any) -> Any:
        calls.append((flow, parameters))
        return RecipeResult(
            run_dir=tmp_path,
            report=no_value,
            weighed=no_value,
            table=table if table.exists() else None,
            further_tables=(),
            notes=(),
            export=None,
            done_now=(),
            done_before=(),
        )

    monkeypatch.setattr(module, "run_flow", run_flow)
    return calls


def call(*arguments: str) -> None:
    app = single_command(main, name="pipeline")
    called, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    called(*bound.args, **bound.kwargs)


def test_options_beside_a_recipe_are_changes_of_the_recipe(
    tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    call(
        *("--recipe", "hh_pku_encore_10", "--out", str(tmp_path / "study"), "--limit", "200"),
        *("--judge", "./llama-70b", "--engine-arg", "tensor_parallel_size=4"),
        *("--benchmark-data", str(tmp_path)),
    )
    flow, parameters = started[0]
    assert flow is run_recipe
    assert capsys.readouterr().out == "| row | score |\n"
    recipe = changed(load_recipe(parameters["recipe"]), parameters["changes"])
    judge = recipe.rating.judge
    assert (judge.model, judge.engine_args) == ("./llama-70b", {"tensor_parallel_size": 4})
    assert (recipe.rating.limit, recipe.benchmark.pairs.data) == (200, tmp_path)
    assert (judge.backend, recipe.rating.shard_size) == ("vllm", None)

    call(
        *("a=p.jsonl", "b=q.jsonl", "--out", str(tmp_path), "--judge", "j", "--tau", "1"),
        *("--tracking-uri", "http://h"),
    )
    flow, parameters = started.pop()
    config = parameters["config"]
    assert flow is pipeline
    assert parameters["tracking"].tracking_uri == "http://h"
    assert config.sources == ("a=p.jsonl", "b=q.jsonl")
    assert (config.rating.judge.model, config.weighing.tau) == ("j", 1.0)

    # The demo's shards are of 60 pairs; the command's default is for other runs.
    call("--recipe", "demo", "--out", str(tmp_path / "study"), "--backend", "transformers")
    rating = changed(load_recipe("demo"), started[1][1]["changes"]).rating
    assert (rating.shard_size, rating.judge.backend) == (60, "transformers")


def test_a_recipe_file_without_training_prints_no_table(
    tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'name = "w"\nabout = "a"\nsources = ["p.jsonl"]\nrating.judge.model = "j"\n'
    (tmp_path / "weights.toml").write_text(text)
    (tmp_path / "table.md").unlink()
    call("--recipe", str(tmp_path / "weights.toml"), "--out", str(tmp_path / "study"))
    [(flow, parameters)] = started
    assert (flow, parameters["recipe"].models) == (run_recipe, [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--recipe", "demo", "--tau", "1"], "--tau is the recipe's to say"),
        (["pairs.jsonl", "--recipe", "demo"], "SOURCE is the recipe's to say"),
        (["pairs.jsonl"], "--judge is missing"),
        (["--judge", "j"], "SOURCE is missing"),
        (["p.jsonl", "--judge", "j", "--benchmark-data", "b"], "--benchmark-data belongs to"),
    ],
)
def test_options_that_would_be_ignored_are_usage_errors(
    tmp_path: Path, started: list[Any], arguments: list[str], problem: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        call(*arguments, "--out", str(tmp_path / "study"))
    assert not started
