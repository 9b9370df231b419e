"""Write the files that MLflow shows of a study: a training that grows, a table of three rows.

No model is behind them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.benchmarks.benchmark_options import BenchmarkConfig, PairsConfig, RowsConfig
from tests.worlds.studies import numbered_pairs, study_of, write_lines
from tests.worlds.tables import make_world

RUN_KEY = "ab12" * 4
_CONFIG = {"objective": "multi-head", "learning_rate": 2e-05, "adam_betas": [0.9, 0.999]}
_IDENTITY = {
    "config": {"learning_rate": 2e-05},
    "backbone_identity": {"template_sha256": "7e" * 32},
    "data_sha256": "da" * 32,
}
_RATINGS = {"run_key": "0c" * 8, "judge": "j", "ratings_sha256": "f5" * 32}


def make_study(folder: Path) -> Path:
    """Make a study of two pairs."""
    return study_of(numbered_pairs(2), folder, label="small")


def train(study: Path, *, num_steps: int, is_finished: bool = False) -> Path:
    """Write a training after so many steps; every second step has a checkpoint."""
    folder = study / "training" / RUN_KEY
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "run_key": RUN_KEY,
        "identity": _IDENTITY,
        "config": _CONFIG,
        "versions": {"encore-reward": "0.1.0"},
        "notes": ["a note"],
        "synthetic": ["pairs"],
        "ratings": _RATINGS,
    }
    write_json(folder / "training.json", manifest)
    steps = [
        {"step": step, "loss": 1 / step, "learning_rate": 0.1, "seconds": 0.5, "mfu": None}
        for step in range(1, num_steps + 1)
    ]
    evaluations = [
        {"step": step, "loss": 2 / step, "r2_by_head": {"kind": 0.1 * step, "mute": None}}
        for step in range(2, num_steps + 1, 2)
    ]
    for name, records in (("log", steps), ("evaluations", evaluations)):
        write_lines(folder / f"{name}.jsonl", records)
    for path in folder.glob("checkpoints/*"):
        path.rmdir()
    for record in evaluations[-2:]:
        (folder / "checkpoints" / f"step-{record['step']:08d}").mkdir(parents=True)
    if is_finished:
        (folder / "model").mkdir(exist_ok=True)
        write_json(folder / "result.json", {"num_steps": num_steps, "evaluation": evaluations[-1]})
    return folder


def benchmark(study: Path, *, key: str = "0123456789abcdef", num_rows: int = 3) -> Path:
    """Write a table with uniform weights, ENCORE's, and a mean over draws."""
    folder = study / "benchmarks" / key
    folder.mkdir(parents=True)
    names = ("uniform", "encore (τ 2)", "random (100 draws)")[:num_rows]
    table = {
        "benchmark": {
            "name": "generic",
            "version": "1.0",
            "dataset": None,
            "revision": None,
            "headline": "Accuracy",
            "weighting": "pairs",
            "num_pairs": 4,
            "digest": "d1" * 32,
            "is_partial": True,
        },
        "model": "tiny",
        "reference": "uniform",
        "rows": [_table_row(index, name) for index, name in enumerate(names)],
        "notes": ["of the table", "of uniform"],
        "synthetic": ["pairs"],
    }
    write_json(folder / "table.json", table)
    (folder / "table.md").write_text("| row |\n")
    schemes = {"uniform": {"scheme": "uniform"}, "encore (τ 2)": {"scheme": "encore"}}
    footer = json.dumps({"rows": schemes}).encode()
    results = pa.table({"credit": [1.0]}).replace_schema_metadata({"encore": footer})
    pq.write_table(results, folder / "results.parquet")
    model = {"name": "tiny", "digest": "e4" * 32, "revision": None, "gate": None}
    identity = {"ratings": {**_RATINGS, "rules_sha256": None}}
    write_json(
        folder / "evaluation.json",
        {"key": key, "identity": identity, "models": dict.fromkeys(names, model)},
    )
    return folder


def make_evaluation(folder: Path, *, num_pairs: int) -> BenchmarkConfig:
    """Make a study, a model of its rules, a model with one head, and a benchmark; score nothing."""
    make_world(folder, num_rows=num_pairs, num_pairs=8)
    return BenchmarkConfig(
        model=str(folder / "model"),
        reward_models=(f"initial={folder / 'initial'}",),
        pairs=PairsConfig(benchmark="generic", data=folder / "rows.jsonl"),
        rows=RowsConfig(schemes=("encore",), taus=(2.0,)),
        ratings=folder / "ratings.parquet",
    )


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _table_row(index: int, name: str) -> dict[str, Any]:
    """Return a row whose accuracy is 0.5, 0.6 or 0.7, by its index."""
    is_mean = "draws" in name
    difference = {
        "difference": 0.1,
        "ci_low": -0.1,
        "ci_high": 0.3,
        "mcnemar_p": None if is_mean else 0.5,
    }
    interval = {"num_pairs": 4, "ci_low": 0.25, "ci_high": 0.95}
    ours = {
        "method": None,
        "params": {"tau": 2.0} if "τ" in name else {},
        "uses_labels": False,
        "synthetic": [],
        "notes": [f"of {name}"],
        "ties": "loss",
        "headline": {"name": "Accuracy", "score": 0.5 + index / 10, **interval},
        "subsets": [{"subset": "refuse", "accuracy": 0.5, **interval}],
        "comparison": difference if index else None,
        "draws": {"num_draws": 100, "mean": 0.7, "low": 0.6, "high": 0.8} if is_mean else None,
        "weights": None if is_mean else {"kind": 0.75, "mute": 0.25},
    }
    return {
        "name": name,
        "kind": "scheme",
        "paper": None,
        "difference_to_paper": None,
        "ours": ours,
    }
