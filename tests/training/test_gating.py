"""A gate over the heads of a trained model: it learns which head counts for which prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from encore.cli.app import app
from encore.errors import InputError
from encore.training.driver import train_study
from encore.training.gate import GateConfig, load_gate
from encore.training.gating import RESULT_FILE, train_gate_of
from encore.training.records import SilentReporter
from tests.training.studies import (
    RULES,
    backbone_config,
    make_backbone,
    make_study,
    training_config,
    write_ratings,
)

CONFIG = GateConfig(num_steps=20, hidden_size=16)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("gating") / "study", num_pairs=40)


@pytest.fixture(scope="module")
def model(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated")
    result = train_study(
        study,
        backbone=backbone_config(make_backbone(folder / "tiny")),
        config=training_config(method="probe"),
        ratings=write_ratings(study, folder / "ratings.parquet"),
        reporter=SilentReporter(),
    )
    assert result.model_dir is not None
    return result.model_dir


def test_a_gate_lies_beside_its_model_and_weighs_its_heads(study: Path, model: Path) -> None:
    result = train_gate_of(study, model=model, config=CONFIG)

    assert result.out == model.parent / "gate"
    assert load_gate(result.out, head_ids=sorted(RULES)).config == CONFIG
    assert set(result.mean_weights) == set(RULES)
    assert sum(result.mean_weights.values()) == pytest.approx(1.0, abs=1e-6)
    assert result.num_pairs + result.num_evaluation_pairs == 40
    assert result.accuracy_gated is not None
    recorded = json.loads((result.out / RESULT_FILE).read_text())
    assert recorded["accuracy_gated"] == result.accuracy_gated
    assert recorded["model"].startswith("sha256:")


def test_what_the_model_has_learnt_from_is_not_held_out_from_the_gate(
    study: Path, model: Path
) -> None:
    """The gate's seed is another one than the model's."""
    other = CONFIG.model_copy(update={"seed": 7})
    result = train_gate_of(study, model=model, config=other)
    recorded = json.loads((model.parent / "training.json").read_text())
    assert result.num_evaluation_pairs == recorded["num_evaluation_pairs"]
    assert result.num_pairs == recorded["num_pairs"]


def test_training_it_again_gives_the_same_gate_from_kept_states(
    study: Path, model: Path, tmp_path: Path
) -> None:
    heard: list[tuple[int, int]] = []

    def train() -> dict[str, object]:
        train_gate_of(
            study,
            model=model,
            config=CONFIG,
            out=tmp_path / "gate",
            on_embedded=lambda done, total: heard.append((done, total)),
        )
        return {
            name: tensor.tolist()
            for name, tensor in load_file(tmp_path / "gate" / "gate.safetensors").items()
        }

    first = train()
    states = sorted((tmp_path / "gate" / "embeddings").rglob("*.safetensors"))
    written = [path.stat().st_mtime_ns for path in states]

    assert train() == first
    assert [path.stat().st_mtime_ns for path in states] == written
    assert heard[-1] == (40, 40)


def test_a_model_with_a_single_head_has_nothing_to_weigh(study: Path, tmp_path: Path) -> None:
    result = train_study(
        study,
        backbone=backbone_config(make_backbone(tmp_path / "tiny")),
        config=training_config(method="probe", objective="bradley-terry"),
        reporter=SilentReporter(),
    )
    assert result.model_dir is not None
    with pytest.raises(InputError, match="its only head is 'reward'"):
        train_gate_of(study, model=result.model_dir, config=CONFIG)


def test_the_command_prints_weights_and_accuracies(
    study: Path, model: Path, tmp_path: Path
) -> None:
    arguments = ["gate", str(study), "--model", str(model), "--steps", "5"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "gate"), "--json"])

    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert set(answer["mean_weights"]) == set(RULES)
    assert answer["num_evaluation_pairs"] > 0
