"""`python -m flows.pipeline --recipe NAME`: its usage, and the table on the standard output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import flows.pipeline as module
from encore.demo.benchmark import benchmark_data_path
from encore.recipes.recipe import Recipe
from encore.recipes.shipped import RECIPE_NAMES, load_recipe
from flows.recipe_stages import table_path
from flows.recipes import run_recipe
from tests.flows.test_command import ROOT, run, with_server, without_server

__all__ = ["with_server", "without_server"]  # fixtures


class Started:
    """Stands for a flow that runs to its end: keeps what it was started with, leaves a table."""

    def __init__(self) -> None:
        self.flow: Any = None
        self.parameters: dict[str, Any] = {}

    def __call__(self, flow: Any, **parameters: Any) -> None:
        self.flow, self.parameters = flow, parameters
        if flow is run_recipe:
            path = table_path(parameters["study"], parameters["recipe"])
            path.parent.mkdir(parents=True)
            path.write_text("| row | score |\n", encoding="utf-8")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr(module, "run_flow", started)
    return started


def call(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(module.main)
    return CliRunner().invoke(app, arguments)


def test_a_recipe_is_started_as_shipped_and_its_table_printed(
    tmp_path: Path, started: Started
) -> None:
    result = call("--recipe", "fsfairx", "--out", str(tmp_path / "study"))
    assert result.exit_code == 0, result.output
    assert started.flow is run_recipe
    assert started.parameters["recipe"] == load_recipe("fsfairx")
    assert result.stdout == "| row | score |\n"


def test_what_a_machine_needs_otherwise_is_changed(tmp_path: Path, started: Started) -> None:
    result = call(
        *("--recipe", "hh_pku_encore_10", "--out", str(tmp_path / "study"), "--limit", "200"),
        *("--judge", "./llama-70b", "--engine-arg", "tensor_parallel_size=4"),
        *("--benchmark-data", str(benchmark_data_path())),
    )
    assert result.exit_code == 0, result.output
    recipe: Recipe = started.parameters["recipe"]
    judge = recipe.rating.judge
    assert (judge.model, judge.engine_args) == ("./llama-70b", {"tensor_parallel_size": 4})
    assert (recipe.limit, recipe.table.data) == (200, benchmark_data_path())
    shipped = load_recipe("hh_pku_encore_10")
    assert (judge.backend, recipe.rating.shard_size) == ("vllm", shipped.rating.shard_size)


def test_options_that_are_not_given_change_nothing(tmp_path: Path, started: Started) -> None:
    # The demo's shards are of 60 pairs; the command's default of 1,000 is for other runs.
    call("--recipe", "demo", "--out", str(tmp_path / "study"), "--backend", "transformers")
    rating = started.parameters["recipe"].rating
    assert (rating.shard_size, rating.judge.backend) == (60, "transformers")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--recipe", "demo", "--tau", "1"], "--tau is the recipe's to say"),
        (["pairs.jsonl", "--recipe", "demo"], "SOURCE is the recipe's to say"),
        (["pairs.jsonl"], "--judge is missing"),
        (["--judge", "j"], "SOURCE is missing"),
        (["p.jsonl", "--judge", "j", "--benchmark-data", "b"], "--benchmark-data belongs to"),
        (["--recipe", "best"], "'best' is not one of"),
        (["p.jsonl", "--judge", "j", "--tau", "0"], "0 is not above 0"),
    ],
)
def test_what_would_be_passed_over_is_a_usage_error(
    tmp_path: Path, started: Started, arguments: list[str], problem: str
) -> None:
    result = call(*arguments, "--out", str(tmp_path / "study"))
    assert result.exit_code == 2
    assert problem in " ".join(result.output.replace("│", " ").split())
    assert started.flow is None


def test_the_help_says_what_each_recipe_is() -> None:
    shown = " ".join(call("--help").output.split())
    for name in RECIPE_NAMES:
        assert re.search(rf"{name} (and hh_full_8b_20 )?\(", shown), name


def test_without_a_recipe_it_is_the_flow_it_was(tmp_path: Path, started: Started) -> None:
    result = call("a=pairs.jsonl", "--out", str(tmp_path / "study"), "--judge", "j", "--tau", "1")
    assert result.exit_code == 0, result.output
    assert started.flow is module.pipeline
    assert started.parameters["sources"] == ["a=pairs.jsonl"]
    assert started.parameters["tau"] == 1.0


def test_a_password_is_no_parameter_of_the_flow_run(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "unset")
    call(
        *("--recipe", "demo", "--out", str(tmp_path / "study")),
        *("--tracking-uri", "https://me:secret@mlflow.example"),
    )
    assert started.parameters["tracking_uri"] is None


def test_the_page_the_help_points_to_says_what_every_recipe_takes() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in RECIPE_NAMES:
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        assert len(rows) == 2, name  # what it is, what it takes


@pytest.mark.full
def test_the_demo_recipe_runs_from_the_command_line(
    tmp_path: Path, with_server: dict[str, str]
) -> None:
    study = tmp_path / "study"
    command = (
        *("flows.pipeline", "--recipe", "demo", "--out", str(study), "--limit", "24"),
        *("--backend", "transformers", "--shard-size", "12"),
    )
    first = run(*command, environ=with_server)
    assert first.returncode == 0, first.stderr
    assert "demo_pilot_24: 10 stages done, 0 were done before; 2 rated" in first.stderr
    assert "encore" in first.stdout
    assert "synthetic" in first.stdout

    again = run(*command, environ=with_server)
    assert again.returncode == 0, again.stderr
    assert "demo_pilot_24: 0 stages done, 10 were done before; 0 rated, 2 reused" in again.stderr
    assert again.stdout == first.stdout
