"""`encore compare`: tables on stdout, warnings on stderr, one clear line on bad input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from encore.cli.compare import compare
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH
from tests.benchmarks.stored_world import every_row, model_row, real_pairs, write_run
from tests.cli.invoking import Command
from tests.studies import create_study

ROOT = Path(__file__).resolve().parents[2]
invoke = Command(compare)


def error_of(*arguments: object) -> str:
    return str(invoke.error_of(*arguments))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = create_study(tmp_path_factory.mktemp("compare") / "study").path
    pairs = real_pairs()
    write_run(path, every_row(pairs), pairs=pairs, synthetic=["model made (made up)"])
    return path


def test_the_rows_are_printed_best_first_with_their_intervals(study):
    result = invoke(study, "--by", "safety")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("made-up 1 (")
    assert "Safety on 50 pairs; Δ to uniform, in points" in lines[0]
    rows = [line for line in lines if " to " in line][1:]
    assert len(rows) == len(json.loads(invoke(study, "--json").stdout)["datasets"][0]["rows"])
    [uniform] = [row for row in rows if row.split()[0] == "uniform"]
    assert uniform.split()[-3:] == ["–", "–", "–"]
    assert "synthetic: model made (made up)" in result.stderr


def test_marks_and_notes_of_two_rows_are_said_wherever_they_are_printed(tmp_path):
    """Another row's are not: it is compared with neither."""
    path, pairs = create_study(tmp_path / "part").path, real_pairs({"refuse": 6}, is_partial=True)
    first, second, third = (model_row(name, [1.0] * 6, pairs=pairs) for name in "abc")
    first = first.noted(synthetic=("model a (made up)",), notes=("two rows were cut",))
    third = third.noted(synthetic=("model c (made up)",))
    write_run(path, [first, second, third], pairs=pairs)
    result = invoke(path, "--row", "a", "--row", "b")
    assert result.exit_code == 0, result.output
    assert "PARTIAL, SYNTHETIC" in result.stdout.splitlines()[0]
    assert "a: two rows were cut" in result.stdout
    assert "synthetic: model a (made up)" in result.stderr
    assert "model c" not in result.output
    found = json.loads(invoke(path, "--row", "a", "--row", "b", "--json").stdout)
    assert found["is_partial"]
    assert found["synthetic"] == ["model a (made up)"]
    assert list(found["notes"].values()) == [["two rows were cut"], []]


def test_the_documented_table_is_made_on_the_pairs_of_the_demos_own():
    """Rows on other pairs cannot be compared with those of the demo's study."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8").replace("\\\n", " ")
    [line] = [one for one in text.splitlines() if one.startswith("python -m flows.evaluate")]
    words = shlex.split(line)
    assert words[3] == "demo-study"
    shipped = {"--benchmark": BENCHMARK_PATH, "--data": BENCHMARK_DATA_PATH}
    for option, path in shipped.items():
        assert ROOT / words[words.index(option) + 1] == path


def test_bad_input_is_one_line(study):
    two = (study, "--row", "initial", "--row", "uniform")
    assert "neither --by nor" in error_of(*two, "--by", "refuse")
    assert "nor --reference" in error_of(*two, "--reference", "uniform")
    assert "given 1 times" in error_of(study, "--row", "uniform")
    assert "there is none of this name" in error_of(study, "--row", "best", "--row", "uniform")
    assert "no such figure" in error_of(study, "--by", "kindness")
    assert invoke().exit_code == 2
