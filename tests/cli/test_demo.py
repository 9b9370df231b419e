"""The demo: ratings, weights and a reward model, in `encore demo` and logged to MLflow."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from pathlib import Path

import pytest

import encore.demo
from encore.demo import data_paths, training_config
from encore.rules import load_rule_set
from encore.training.run import RESULT_FILE
from flows import demo as flow
from tests.tasks.mlflow_store import Logged, new_template

ROOT = Path(__file__).resolve().parents[2]
NUM_PAIRS = 8
HEADS = [rule.rule_id for rule in load_rule_set("encore-10").rules]


@pytest.fixture
def few_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo on its first pairs, two steps of training."""
    label, path = next(iter(data_paths().items()))
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)[:NUM_PAIRS]
    few = tmp_path / path.name
    few.write_bytes(gzip.compress(b"".join(lines)))
    monkeypatch.setattr(encore.demo, "data_paths", lambda: {label: few})
    short = training_config().model_copy(
        update={"max_steps": 2, "evaluate_every": 1, "checkpoint_every": 1, "batch_pairs": 2}
    )
    monkeypatch.setattr(encore.demo, "training_config", lambda: short)


def test_the_demo_ends_with_a_table_of_heads_and_needs_no_tracker(
    encore, few_pairs, tmp_path, monkeypatch
):
    for package in ("mlflow", "prefect"):
        monkeypatch.setitem(sys.modules, package, None)  # an import fails
    study = tmp_path / "study"

    finished = encore("demo", "--out", study, "--backend", "transformers")

    assert finished.code == 0, finished.err
    table = finished.out[finished.out.index("Heads on ") :]
    assert all(head in table for head in HEADS)
    assert "R²" in table
    assert "accuracy" in table
    assert finished.out.count("synthetic data: read these figures as an example") == 2
    assert "trained in" in finished.err
    assert not (study / "mlflow.db").exists()
    [result] = study.glob(f"training/*/{RESULT_FILE}")
    assert result.is_file()

    again = encore("demo", "--out", study, "--backend", "transformers")
    assert again.code == 0
    assert "trained before: 2 steps" in again.err


def test_make_demo_logs_the_training_in_the_study_and_says_how_to_look(
    few_pairs, tmp_path, monkeypatch, capsys
):
    study = tmp_path / "study"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere.else:5000")
    real = flow.tracked_training

    def on_a_ready_store(uri: str, **options):
        new_template(study)
        return real(uri, **options)

    monkeypatch.setattr(flow, "tracked_training", on_a_ready_store)

    flow.main(study, backend="transformers")

    logged = Logged(f"sqlite:///{study.resolve()}/mlflow.db")
    assert logged.run().info.status == "FINISHED"
    assert logged.steps("eval/loss") == [1, 2]
    assert "synthetic" in logged.run().data.tags["encore.synthetic"]
    assert "**Synthetic: " in logged.run().data.tags["mlflow.note.content"]
    assert logged.run().data.params["ratings.rules_sha256"]
    assert logged.run().data.params["ratings.prompt_sha256"]
    assert sorted(logged.models()) == ["model", "step-00000001", "step-00000002"]
    said = " ".join(capsys.readouterr().err.split())
    assert "mlflow ui --backend-store-uri 'sqlite:////" in said
    assert "--host 127.0.0.1" in said
    assert logged.run().info.run_id in said


@pytest.mark.full
def test_the_whole_demo_takes_less_than_five_minutes_and_its_heads_learn(tmp_path):
    began = time.monotonic()
    command = [sys.executable, "-m", "flows.demo", "--out", str(tmp_path / "study")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert time.monotonic() - began < 300

    run = Logged(f"sqlite:///{tmp_path.resolve()}/study/mlflow.db").run()
    r2 = [run.data.metrics[f"eval/r2/{head}"] for head in HEADS]
    accuracy = [run.data.metrics[f"eval/accuracy_half/{head}"] for head in HEADS]
    # Guessing gives R² 0 at best and accuracy 1/2; the judge's own ratings have some 0.55.
    assert sum(r2) / len(r2) > 0.02
    assert sum(accuracy) / len(accuracy) > 0.6
