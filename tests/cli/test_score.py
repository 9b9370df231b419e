"""`encore score`: a table of heads at the end, one clear line on bad input, exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.core.errors import InputError
from tests.golden.command_line import encore
from tests.worlds.scorings import make_model
from tests.worlds.trainings import RULES, make_study

NUM_PAIRS = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    make_model(folder / "model", synthetic=["backbone (made up)"])
    return folder


@pytest.fixture
def study(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world / "study", tmp_path / "study"))


def test_scoring_ends_with_a_table_of_heads_and_the_next_command(study, world):
    result = encore("score", study, "--model", world / "model", "--shard-size", 5)
    assert result.code == 0, result.err
    assert all(rule in result.out for rule in RULES)
    assert "strict" in result.out
    assert f"Heads on {NUM_PAIRS} pairs" in result.out
    assert "synthetic: model: backbone (made up)" in result.err
    for message in ("scoring 24 of 24  ", "tokens/s", " --query head_accuracy"):
        assert message in result.err


def test_pairs_that_training_held_out_have_their_own_accuracy(study, world, tmp_path):
    model = make_model(tmp_path / "split", config={"evaluation_share": 0.5, "seed": 1})
    result = encore("score", study, "--model", model, "--json").json
    assert [head["num_pairs"] for head in result["accuracy"]] == [NUM_PAIRS] * len(RULES)
    (num_held_out,) = {head["num_pairs"] for head in result["accuracy_held_out"]}
    assert 0 < num_held_out < NUM_PAIRS
    stdout = encore("score", study, "--model", model).out
    assert f"{num_held_out} of them held out from training" in " ".join(stdout.split())


def test_only_the_last_slice_completes_a_scoring(study, world):
    command = (study, "--model", world / "model", "--shard-size", 5, "--json")
    slices = [encore("score", *command, "--slice", f"{index}/2") for index in range(2)]
    assert [finished.code for finished in slices] == [0, 0], slices[0].err
    first, last = [finished.json for finished in slices]  # shards 0 and 2; shard 1
    assert (first["is_complete"], first["accuracy"]) == (False, [])
    assert "next: encore sql" not in slices[0].err
    assert (last["is_complete"], len(last["accuracy"])) == (True, len(RULES))


def test_a_shard_that_fails_makes_the_exit_code_3(study, world, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise InputError("pair abc: the template refuses it")

    monkeypatch.setattr("encore.scoring.scoring_run.score_encoded", refuse)
    result = encore("score", study, "--model", world / "model", "--shard-size", 5)
    assert result.code == 3
    assert "3 of 3 shards failed; run the same command again" in result.error
    assert "shard 0: InputError: pair abc: the template refuses it" in result.err
    assert "Heads on" not in result.out
