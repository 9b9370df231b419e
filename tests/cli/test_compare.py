"""`encore compare`: tables on stdout, warnings on stderr."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH
from tests.golden.command_line import encore
from tests.worlds.studies import create_study
from tests.worlds.tables import benchmark_pairs, every_row, write_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = create_study(tmp_path_factory.mktemp("compare") / "study").path
    pairs = benchmark_pairs()
    write_run(path, every_row(pairs), pairs=pairs, synthetic=["model made (made up)"])
    return path


def test_the_rows_are_printed_best_first_with_their_intervals(study):
    result = encore("compare", study, "--by", "safety")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("made-up 1 (")
    assert "Safety on 50 pairs; Δ to uniform, in points" in lines[0]
    rows = [line for line in lines if "…" in line]
    assert len(rows) == len(encore("compare", study, "--json").json["datasets"][0]["rows"])
    [uniform] = [row for row in rows if row.split()[0] == "uniform"]
    assert uniform.split()[-3:] == ["–", "–", "–"]
    assert "synthetic: model made (made up)" in result.err
    assert "there is none of this name" in encore("compare", study, "--reference", "best").error


def test_the_documented_table_is_on_the_same_pairs_as_the_demo_s():
    """Rows on other pairs cannot be compared with those of the demo's study."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8").replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("python -m flows.evaluate")]
    arguments = shlex.split(line)
    assert arguments[3] == "demo-study"
    shipped = {"--benchmark": BENCHMARK_PATH, "--data": BENCHMARK_DATA_PATH}
    for option, path in shipped.items():
        assert ROOT / arguments[arguments.index(option) + 1] == path


def test_rules_are_numbered_and_named_under_the_rows(study):
    """As in the other tables: the numbers are those of the heads, from 1."""
    output = encore("compare", study).out
    [dataset] = encore("compare", study, "--json").json["datasets"]
    for position, rule_id in enumerate(dataset["rule_ids"], start=1):
        assert f"single: {rule_id}" in [row["name"] for row in dataset["rows"]]
        assert f" single: rule {position} " in output
        assert f"{position} {rule_id}" in output
