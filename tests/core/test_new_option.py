"""A new field of the training's config is enough for a new option everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.tiny_llama import write_tiny_llama
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]
FIELD = """    label_smoothing: float = option(
        0.0, ge=0, le=0.5, group="Steps", help="Share of a label given to the other."
    )
    objective: Objective"""
RECIPE = """
import pathlib
from encore.recipes.recipe import load_recipe
text = pathlib.Path("encore/recipes/probe.toml").read_text()
text = text.replace("[training]", "[training]\\nlabel_smoothing = 0.25")
pathlib.Path("mine.toml").write_text(text)
print(load_recipe("mine.toml").training.label_smoothing)
"""
FORM = """
import json
from flows.train_reward_model import train_reward_model
print(json.dumps(train_reward_model.parameters.model_dump()))
"""
LOGGED = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiments = [experiment.experiment_id for experiment in client.search_experiments()]
print(json.dumps([run.data.params for run in client.search_runs(experiments)]))
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the product and add an option to its training."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("encore", "tasks", "flows", "sql"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    config = folder / "encore" / "training" / "training_options.py"
    text = config.read_text(encoding="utf-8")
    assert text.count("    objective: Objective") == 1
    config.write_text(text.replace("    objective: Objective", FIELD), encoding="utf-8")
    return folder


def python(folder: Path, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.check_output(command, cwd=folder, env=environment, text=True)


def test_help_form_recipe_and_reference_page_show_the_option(changed):
    assert "--label-smoothing" in python(changed, "-m", "encore.cli", "train", "--help")
    assert "label_smoothing" in python(changed, "-c", FORM)
    assert python(changed, "-c", RECIPE).strip() == "0.25"
    (changed / "docs").mkdir()
    python(changed, "-m", "encore.cli.reference")
    assert "* `--label-smoothing " in (changed / "docs" / "reference.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.full
def test_mlflow_shows_the_option_and_its_default_changes_no_key(changed, tmp_path):
    llama = write_tiny_llama(tmp_path / "llama")
    study = study_of(numbered_pairs(8), tmp_path / "study")
    train = ("-m", "encore.cli", "train", study, "--backbone", llama, "--json")
    train += ("--objective", "bradley-terry", "--max-steps", 1, "--max-length", 64)
    before = json.loads(python(ROOT, *train, "--out", tmp_path / "before"))["run_key"]
    assert json.loads(python(changed, *train, "--out", tmp_path / "default"))["run_key"] == before
    smoothed = json.loads(python(changed, *train, "--label-smoothing", 0.25))
    assert smoothed["run_key"] != before
    python(changed, "-m", "tasks.tracking", study)
    params = json.loads(python(changed, "-c", LOGGED, f"sqlite:///{study / 'mlflow.db'}"))
    assert any("0.25" in run.values() and "label_smoothing" in " ".join(run) for run in params)
