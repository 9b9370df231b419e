"""Pair by pair, `encore benchmark` says what the `rewardbench` command from PyPI says.

On real pairs in RewardBench's columns: the command in an environment of its own, float32, nothing
quantized, the same maximum length, one pair at a time (it pads on the left, which moves positions).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions, PairsConfig
from encore.benchmarks.run_benchmark import run_benchmark
from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.demo import JUDGE_PATH
from encore.exports.write_export import export_model
from encore.model.backbone_options import EXPORT_FILE, BackboneConfig
from encore.model.open_model import open_reward_model
from encore.training.train import train
from encore.training.training_options import TrainingRunConfig
from tests.exports.readers.rewardbench import run_rewardbench

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

TOLERANCE = 1e-5
#: Longer than any conversation of these.
MAX_LENGTH = 512


@pytest.fixture(scope="module")
def world(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a study of real pairs and an exported Bradley–Terry model on them."""
    folder = tmp_path_factory.mktemp("rewardbench")
    ingest([str(shared_data / "hh-harmless-dev.jsonl.gz")], out=folder / "study")
    config = TrainingRunConfig(
        backbone=BackboneConfig(model=str(JUDGE_PATH), max_length=MAX_LENGTH),
        objective="bradley-terry",
        method="probe",
        limit=300,
    )
    run = train(open_study(folder / "study"), config).out
    opened = open_reward_model(run, device="cpu", dtype="float32")
    export_model(opened, out=folder / "llama", weights={"reward": 1.0})
    return folder


@pytest.mark.parametrize("ends", ["at the turn", "in a line break"])
def test_every_pair_is_judged_as_by_the_rewardbench_command(world, shared_data, tmp_path, ends):
    plain, data = world / "llama", shared_data / "xstest-dev.jsonl"
    if ends == "in a line break":  # as ChatML has it: somebody else's model, and the token scored
        (plain / EXPORT_FILE).unlink()
        template = (plain / "chat_template.jinja").read_text() + "{{- '\\n' -}}"
        (plain / "chat_template.jinja").write_text(template)
        settings = json.loads((plain / "tokenizer_config.json").read_text())
        settings["chat_template"] = template
        (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    config = BenchmarkConfig(
        reward_models=(f"plain={plain}",), pairs=PairsConfig(benchmark="generic", data=data)
    )
    how = BenchmarkRunOptions(out=tmp_path / "out")
    done = run_benchmark(open_study(world / "study"), config, how)
    theirs = run_rewardbench(plain, done.pairs.pairs, max_length=MAX_LENGTH, folder=tmp_path)
    [row] = done.rows
    np.testing.assert_allclose(row.reward_P2, theirs.score_P2, atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(row.credit_P, theirs.score_P2[:, 0] > theirs.score_P2[:, 1])
    assert row.credit_P.mean() == pytest.approx(theirs.accuracy, abs=1e-12)
    assert np.ptp(theirs.score_P2) > 1000 * TOLERANCE  # else a wrong reader would agree too
