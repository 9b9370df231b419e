"""ENCORE: audit safety rules and compose multi-head reward models.

The functions below are what the command line does, for Python: paths in (for `analyze` and
`weights` also pyarrow Tables and pandas DataFrames), records out. They are loaded when first used.

    import encore

    encore.ingest(["mine=pairs.jsonl.gz"], out=Path("study"))
    encore.rate(Path("study"), encore.RatingConfig(judge=encore.JudgeConfig(model="./judge")))
    analysis = encore.analyze(Path("study"), by_source=True)
    vector = encore.weights(Path("study"), scheme="encore", tau=2.0)
    table = encore.compare_schemes(Path("study"))
    study, config = encore.open_study(Path("study")), encore.BenchmarkConfig(model="a-model")
    run = encore.run_benchmark(study, config)  # RewardBench's rows
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encore.analysis.analyze import analyze as analyze
    from encore.benchmarks.benchmark_options import BenchmarkConfig as BenchmarkConfig
    from encore.benchmarks.judging.run_judge import judge_benchmark as judge_benchmark
    from encore.benchmarks.run_benchmark import run_benchmark as run_benchmark
    from encore.core.errors import EncoreError as EncoreError
    from encore.data.ingestion import ingest as ingest
    from encore.data.rating_runs import status as status
    from encore.data.rule_sets import load_rule_set as load_rule_set
    from encore.data.study import open_study as open_study
    from encore.export.write_export import export_model as export_model
    from encore.judges.judge_options import JudgeConfig as JudgeConfig
    from encore.model.open_model import open_reward_model as open_reward_model
    from encore.rating.rating_config import RatingConfig as RatingConfig
    from encore.rating.rating_run import rate as rate
    from encore.scoring.head_scores import read_head_scores as read_head_scores
    from encore.scoring.scoring_run import score_study as score_study
    from encore.tables.publish_database import publish_database as publish_database
    from encore.tables.publish_dataset import publish_dataset as publish_dataset
    from encore.warehouse import open_ratings as open_ratings
    from encore.weighting.run_comparison import compare_runs as compare_runs
    from encore.weighting.scheme_comparison import compare_schemes as compare_schemes
    from encore.weighting.theory import theory as theory
    from encore.weighting.weigh import weights as weights

__version__ = "0.1.0"

_WHERE = {
    "BenchmarkConfig": "encore.benchmarks.benchmark_options",
    "EncoreError": "encore.core.errors",
    "JudgeConfig": "encore.judges.judge_options",
    "RatingConfig": "encore.rating.rating_config",
    "analyze": "encore.analysis.analyze",
    "compare_schemes": "encore.weighting.scheme_comparison",
    "compare_runs": "encore.weighting.run_comparison",
    "export_model": "encore.export.write_export",
    "ingest": "encore.data.ingestion",
    "judge_benchmark": "encore.benchmarks.judging.run_judge",
    "load_rule_set": "encore.data.rule_sets",
    "open_ratings": "encore.warehouse",
    "open_study": "encore.data.study",
    "open_reward_model": "encore.model.open_model",
    "publish_database": "encore.tables.publish_database",
    "publish_dataset": "encore.tables.publish_dataset",
    "rate": "encore.rating.rating_run",
    "read_head_scores": "encore.scoring.head_scores",
    "run_benchmark": "encore.benchmarks.run_benchmark",
    "score_study": "encore.scoring.scoring_run",
    "status": "encore.data.rating_runs",
    "theory": "encore.weighting.theory",
    "weights": "encore.weighting.weigh",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'encore' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
