"""`encore benchmark`: a table on stdout, notes on stderr, one clear line on bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden.command_line import encore
from tests.worlds.studies import write_lines
from tests.worlds.tables import jsonl_rows, make_world
from tests.worlds.trainings import RULES

pytestmark = pytest.mark.services

NUM_PAIRS = 30


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    return make_world(folder, num_rows=NUM_PAIRS, synthetic=["backbone (made up)"])


@pytest.fixture
def arguments(world: Path, tmp_path: Path) -> list[object]:
    study = shutil.copytree(world / "study", tmp_path / "study")
    ratings = ("--ratings", world / "ratings.parquet", "--num-random", 20)
    data = ("--benchmark", "generic", "--data", world / "rows.jsonl")
    return [study, "--model", world / "model", *ratings, *data]


def test_one_command_prints_every_row_and_a_second_one_scores_nothing(arguments, world):
    models = ("--reward-model", f"initial={world / 'initial'}")
    result = encore("benchmark", *arguments, *models)
    assert result.code == 0, result.err
    assert all(f"single: {rule}" in result.out for rule in RULES)
    assert "60 pairs scored" in result.err
    assert "synthetic: model model: backbone (made up)" in result.err.replace("\n", "")
    second = encore("benchmark", *arguments, *models)
    assert "scored before" in second.err
    assert second.out == result.out


def test_a_partial_benchmark_is_refused_or_marked(arguments, world):
    partial = list(arguments)
    partial[partial.index("generic")] = "rewardbench-safety"
    rows = jsonl_rows(6, subsets=("donotanswer", "refusals-dangerous"))
    partial[-1] = write_lines(world / "partial.jsonl", rows)
    assert "--allow-partial" in encore("benchmark", *partial).error
    result = encore("benchmark", *partial, "--allow-partial")
    assert "PARTIAL" in result.out
    assert "partial: pairs of the benchmark are missing" in result.err
    content = encore("benchmark", *partial, "--allow-partial", "--json").json
    uniform = content["rows"][0]
    assert uniform["ours"]["is_partial"]
    assert uniform["paper"]["score"] == 0.855
    assert uniform["difference_to_paper"] is None  # six pairs are not the paper's 740


def test_bad_input_is_one_line(arguments, world, tmp_path):
    model = f"heads={world / 'model'}"
    for options, message in (
        (("--reward-model", "nameless"), "expected NAME=FOLDER_OR_ID"),
        (("--reward-model", "a=b", "--reward-model", "a=c"), "expected NAME=FOLDER_OR_ID, once"),
        (("--reward-model", model), "it has 3 heads, not one"),
        (("--scheme", "best"), "there is none of this name"),
        (("--gate", tmp_path), "no gate.json"),
    ):
        assert message in encore("benchmark", *arguments, *options).error
    arguments[arguments.index(world / "model")] = world / "initial"
    assert "there is nothing to weigh" in encore("benchmark", *arguments).error
    for usage in ((), ("study", "--table", "html"), ("study", "--k", 0), ("study", "--seed", -1)):
        assert encore("benchmark", *usage).code == 2
