"""A study as MLflow is told of it: trainings that grow, a table of three rows; no model behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.benchmarks.benchmark_config import BenchmarkStudyConfig, PairsConfig, RowsConfig
from tests.benchmarks.table_world import make_world
from tests.studies import study_of, write_lines

RUN_KEY = "ab12" * 4
_IDENTITY = {
    "config": {"objective": "multi-head", "learning_rate": 2e-05, "adam_betas": [0.9, 0.999]},
    "backbone_identity": {"template_sha256": "7e" * 32},
    "data_sha256": "da" * 32,
}


def make_study(folder: Path) -> Path:
    """Two pairs, nothing else."""
    rows = [{"prompt": f"Q {n}", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(2)]
    return study_of(rows, folder, label="small")


def train(study: Path, *, num_steps: int, is_finished: bool = False) -> Path:
    """A training after so many steps: a checkpoint and an evaluation after every second one."""
    folder = study / "training" / RUN_KEY
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"run_key": RUN_KEY, "identity": _IDENTITY, "versions": {"encore-reward": "0.1.0"}}
    ratings = {"run_key": "0c" * 8, "judge": "j", "ratings_sha256": "f5" * 32}
    about = {"notes": ["a note"], "synthetic": ["pairs"], "ratings": ratings}
    write_json(folder / "training.json", {**manifest, **about})
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


def benchmark(study: Path, *, key: str = "0123456789abcdef", rows: int = 3) -> Path:
    """A table: uniform weights, ENCORE's, a mean over draws."""
    folder = study / "benchmarks" / key
    folder.mkdir(parents=True)
    names = ("uniform", "encore (τ 2)", "random (100 draws)")[:rows]
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
        "rows": [_line(place, name) for place, name in enumerate(names)],
        "notes": ["of the table", "of uniform"],
        "synthetic": ["pairs"],
    }
    write_json(folder / "table.json", table)
    (folder / "table.md").write_text("| row |\n")
    about = {"uniform": {"scheme": "uniform"}, "encore (τ 2)": {"scheme": "encore"}}
    footer = json.dumps({"rows": about}).encode()
    results = pa.table({"credit": [1.0]}).replace_schema_metadata({"encore": footer})
    pq.write_table(results, folder / "results.parquet")
    behind = {"name": "tiny", "digest": "e4" * 32, "revision": None, "gate": None}
    ratings = {"run_key": "0c" * 8, "judge": "j", "ratings_sha256": "f5" * 32}
    ratings["rules_sha256"] = None
    write_json(
        folder / "evaluation.json",
        {"key": key, "identity": {"ratings": ratings}, "models": dict.fromkeys(names, behind)},
    )
    return folder


def make_evaluation(folder: Path, *, num_pairs: int) -> BenchmarkStudyConfig:
    """A study, a model of its rules, another with one head, and a benchmark; nothing is scored."""
    make_world(folder, num_rows=num_pairs, num_pairs=8)
    return BenchmarkStudyConfig(
        study=folder / "study",
        model=str(folder / "model"),
        reward_models=(f"initial={folder / 'initial'}",),
        pairs=PairsConfig(benchmark="generic", data=folder / "rows.jsonl"),
        rows=RowsConfig(schemes=("encore",), taus=(2.0,)),
        ratings=folder / "ratings.parquet",
    )


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _line(place: int, name: str) -> dict[str, Any]:
    is_mean = "draws" in name
    difference = {"difference": 0.1, "ci_low": -0.1, "ci_high": 0.3}
    difference["mcnemar_p"] = None if is_mean else 0.5
    figure = {"num_pairs": 4, "ci_low": 0.25, "ci_high": 0.95}
    ours = {
        "method": None,
        "params": {"tau": 2.0} if "τ" in name else {},
        "uses_labels": False,
        "synthetic": [],
        "notes": [f"of {name}"],
        "ties": "loss",
        "headline": {"name": "Accuracy", "score": 0.5 + place / 10, **figure},
        "subsets": [{"subset": "refuse", "accuracy": 0.5, **figure}],
        "comparison": difference if place else None,
        "draws": {"num_draws": 100, "mean": 0.7, "low": 0.6, "high": 0.8} if is_mean else None,
        "weights": None if is_mean else {"kind": 0.75, "mute": 0.25},
    }
    about = {"name": name, "kind": "scheme", "paper": None, "difference_to_paper": None}
    return {**about, "ours": ours}
