"""The paper's values are the defaults, nothing unknown gets in, nothing heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from encore.training.config import TrainingConfig
from encore.training.records import TrainingDivergedError


def test_the_papers_values_are_the_defaults():
    config = TrainingConfig()
    assert (config.epochs, config.learning_rate) == (1, 2e-5)
    assert (config.objective, config.method) == ("multi-head", "full")


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rat": 1e-5},
        {"learning_rate": 0},
        {"epochs": 0},
        {"batch_pairs": 0},
        {"evaluation_share": 1},
        {"adam_betas": (0.9, 1.0)},
        {"seed": -1},
        {"layout": "padded"},
        {"method": "probe", "head_init": "own"},
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused(settings):
    with pytest.raises(ValidationError):
        TrainingConfig(**settings)


def test_a_config_survives_json_as_it_was():
    config = TrainingConfig(adam_betas=(0.8, 0.95), max_steps=3, layout="sorted")
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config


def test_reading_a_config_loads_no_torch():
    code = "import json, sys, encore.training.config; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "peft"} & set(json.loads(answer.stdout))


def test_a_divergence_names_a_few_of_many_pairs():
    error = TrainingDivergedError(what="the loss is nan", step=3, pair_ids=list("abcdefg"))
    assert str(error).startswith(
        "training diverged: the loss is nan at step 3 on pairs a, b, c, d, e and 2 more; "
    )
    assert (error.step, error.pair_ids) == (3, tuple("abcdefg"))
    assert "on pair x;" in str(TrainingDivergedError(what="nan", step=1, pair_ids=["x"]))
    assert "at step 1;" in str(TrainingDivergedError(what="nan", step=1))
