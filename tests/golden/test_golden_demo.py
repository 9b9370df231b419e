"""Golden: the benchmark table of `encore demo --full`, from start to end. It takes minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.command_line import encore_process
from tests.golden.same import check_golden, mask_keys_and_paths

#: Trainings and an engine in single precision: one of the 80 pairs may fall to the other side.
ONE_PAIR = 1.01 / 80
#: The same of a subset's 16.
ONE_OF_16 = 1.01 / 16
CLOSE = {
    "rows.*.score": ONE_PAIR,
    "rows.*.ci_*": ONE_PAIR,
    "rows.*.accuracies.*": ONE_OF_16,
    "rows.*.difference*": 2 * ONE_PAIR,
    "rows.*.weights.*": 1e-5,
}


def table_of(study: Path) -> dict[str, Any]:
    """Return the stored table with the figures that are compared."""
    [path] = study.glob("benchmarks/*/table.json")
    table = json.loads(path.read_text())
    return {
        **{name: table[name] for name in ("benchmark", "model", "reference", "notes", "synthetic")},
        "rows": [row_of(row) for row in table["rows"]],
    }


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one row that are compared."""
    ours = row["ours"]
    comparison = ours["comparison"] or {}
    return {
        "name": row["name"],
        "kind": row["kind"],
        "keys": sorted(ours),
        **{name: ours[name] for name in ("method", "uses_labels", "is_mean", "ties", "is_partial")},
        "num_pairs": ours["headline"]["num_pairs"],
        "score": ours["headline"]["score"],
        "ci_low": ours["headline"]["ci_low"],
        "ci_high": ours["headline"]["ci_high"],
        "accuracies": {subset["subset"]: subset["accuracy"] for subset in ours["subsets"]},
        "difference": comparison.get("difference"),
        "weights": ours["weights"],
    }


@pytest.mark.full
@pytest.mark.timeout(3600)  # two minutes on free cores, an hour on busy ones
def test_the_demos_table(tmp_path):
    done = encore_process("demo", "--full", tmp_path / "demo")
    assert done.code == 0, done.err
    table = table_of(tmp_path / "demo")
    names = [row["name"] for row in table["rows"]]
    query = "select row from benchmark_rows order by place"
    rows = encore_process("sql", tmp_path / "demo", query, "--json").json
    assert [row["row"] for row in rows] == names
    check_golden("demo-table", mask_keys_and_paths(table), CLOSE)
