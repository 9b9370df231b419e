"""`encore score`: a table of heads at the end, one clear line on bad input, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from encore.cli.score import score
from encore.errors import InputError, StudyIncompleteError
from encore.scoring.head_scores import read_head_scores
from tests.cli.invoking import Command
from tests.rating_shards import shard_path
from tests.scoring.models import make_model
from tests.training.studies import RULES, make_study

NUM_PAIRS = 12

invoke = Command(score)
error_of = invoke.error_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model", synthetic=["backbone (made up)"])
    return folder


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "study", tmp_path / "study"))


def test_scoring_ends_with_a_table_of_heads_and_what_to_do_next(study, made):
    result = invoke(study, "--model", made / "model", "--shard-size", 5)
    assert result.exit_code == 0, result.output
    assert all(rule in result.stdout for rule in RULES)
    assert "strict" in result.stdout
    assert f"Heads on {NUM_PAIRS} pairs" in result.stdout
    said = result.stderr
    assert "shard 2 scored (3 of 3)" in said
    assert "tokens/s, 0.0% padding" in said
    assert "synthetic: model: backbone (made up)" in said
    assert "next: encore sql --query head_accuracy" in said


def test_pairs_that_training_held_out_are_shown_apart(study, made, tmp_path):
    model = make_model(tmp_path / "split", config={"evaluation_share": 0.5, "seed": 1})
    result = json.loads(invoke(study, "--model", model, "--json").stdout)
    assert [one["num_pairs"] for one in result["accuracy"]] == [NUM_PAIRS] * len(RULES)
    (num_held_out,) = {one["num_pairs"] for one in result["accuracy_held_out"]}
    assert 0 < num_held_out < NUM_PAIRS
    shown = invoke(study, "--model", model)
    assert f"{num_held_out} of them held out from training" in " ".join(shown.stdout.split())
    assert "the others it may have learnt from" in shown.stderr


def test_json_is_all_there_is_on_stdout_and_agrees_with_the_files(study, made):
    arguments = (study, "--model", made / "model", "--shard-size", 5, "--json")
    result = json.loads(invoke(*arguments).stdout)
    scores = read_head_scores(Path(result["out"]))
    assert result["num_scores"] == scores.score_P2R.size
    assert result["is_complete"]
    assert result["tokens_per_second"] > 0
    margin_PR = scores.score_P2R[:, 0] - scores.score_P2R[:, 1]
    assert [one["head_id"] for one in result["accuracy"]] == list(RULES)
    for place, one in enumerate(result["accuracy"]):
        assert one["strict"] == pytest.approx((margin_PR[:, place] > 0).mean())
        assert one["half"] == pytest.approx(one["strict"])  # no ties among random scores
    again = invoke(*arguments)
    assert "scored before, nothing done" in again.stderr
    assert json.loads(again.stdout)["accuracy"] == result["accuracy"]
    shard_path(Path(result["out"]), 1).write_bytes(b"damaged")
    mended = invoke(*arguments)
    assert "2 of 3 shards reused" in mended.stderr
    assert "shard 1 scored (3 of 3)" in mended.stderr


def test_the_options_reach_the_scoring(study, made, tmp_path):
    options = ("--limit", 4, "--shard-size", 3, "--max-length", 20, "--out", tmp_path / "here")
    more = ("--layout", "sorted", "--tokens-per-microbatch", 64, "--dtype", "bfloat16")
    found = json.loads(invoke(study, "--model", made / "model", *options, *more, "--json").stdout)
    assert (found["num_pairs"], found["num_shards"]) == (4, 2)
    assert found["out"] == str(tmp_path / "here")


def test_a_shard_that_fails_makes_the_exit_code_3(study, made, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise InputError("pair abc: the template refuses it")

    monkeypatch.setattr("encore.scoring.scoring_run.score_encoded", refuse)
    result = invoke(study, "--model", made / "model", "--shard-size", 5)
    assert isinstance(result.exception, StudyIncompleteError)
    assert result.exception.exit_code == 3
    assert "3 of 3 shards failed; run the same command again" in str(result.exception)
    assert "shard 0: InputError: pair abc: the template refuses it" in result.stderr
    assert "Heads on" not in result.stdout


def test_bad_input_is_one_line(study, made, tmp_path):
    assert "no such folder" in str(error_of(study, "--model", tmp_path / "nowhere"))
    assert "gives no scores" in str(error_of(study, "--model", made / "model-backbone"))
    assert invoke(study, "--model", "m", "--layout", "heap").exit_code == 2
