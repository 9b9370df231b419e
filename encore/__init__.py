"""ENCORE: audit safety rules and compose multi-head reward models.

    import encore

    analysis = encore.analyze("ratings.csv")  # or a data frame, a list of dicts, a study, …
    analysis  # which rules to trust: a table in a notebook, a dozen lines in a terminal
    analysis.to_pandas()  # the same table as a data frame
    analysis.plot()
    weights = encore.weights(analysis)
    dict(weights)
    encore.report(analysis, "report.html")

The other functions do what the commands of the same names do: paths (strings too) in, records out.
They are loaded when first used.

    encore.ingest({"mine": pairs}, out="study")  # a file, a data frame, a list of dicts, …
    encore.rate("study", encore.RatingConfig(judge=encore.JudgeConfig(model="./judge")))
    run = encore.benchmark("study", encore.BenchmarkConfig(model="a-model"))  # RewardBench's rows
    encore.sql("study", "from ratings").to_pandas()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encore.analysis.analyze import analyze as analyze
    from encore.analysis.answer_options import AnswerOptions as AnswerOptions
    from encore.analysis.check_options import CheckConfig as CheckConfig
    from encore.analysis.check_study import check_study
    from encore.analysis.run_comparison import compare_runs as compare_runs
    from encore.benchmarks.benchmark_options import BenchmarkConfig as BenchmarkConfig
    from encore.benchmarks.benchmark_options import BenchmarkRunOptions as BenchmarkRunOptions
    from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig as JudgeBenchmarkConfig
    from encore.benchmarks.compare_tables import compare as compare
    from encore.benchmarks.judging.run_judge import judge_benchmark
    from encore.benchmarks.run_benchmark import run_benchmark
    from encore.core.errors import EncoreError as EncoreError
    from encore.core.folder_watches import sending_studies as sending_studies
    from encore.data.ingestion import ingest as ingest
    from encore.data.rating_runs import status as status
    from encore.data.rule_sets import load_rule_set as load_rule_set
    from encore.data.study import open_study as open_study
    from encore.exports.guard import guard as guard
    from encore.exports.write_export import export_model
    from encore.judges.judge_options import JudgeConfig as JudgeConfig
    from encore.judges.server_options import ServerOptions as ServerOptions
    from encore.model.open_model import open_reward_model as open_reward_model
    from encore.people.rates_by_rule import corrected_rates as corrected_rates
    from encore.rating.rating_options import PlanRateConfig as PlanRateConfig
    from encore.rating.rating_options import RatingConfig as RatingConfig
    from encore.rating.rating_options import RatingRunOptions as RatingRunOptions
    from encore.rating.rating_run import rate as rate
    from encore.recipes.plan import plan as plan
    from encore.reports.write_report import report as report
    from encore.runs.run_options import RunOptions as RunOptions
    from encore.scoring.head_scores import read_head_scores as read_head_scores
    from encore.scoring.model_comparison import compare_models as compare_models
    from encore.scoring.scoring_options import ScoringConfig as ScoringConfig
    from encore.scoring.scoring_options import ScoringRunOptions as ScoringRunOptions
    from encore.scoring.scoring_run import score_study
    from encore.tables.pair_details import show as show
    from encore.tables.publish import publish as publish
    from encore.tables.sql_query import sql as sql
    from encore.training.baselines.gate import train_gate
    from encore.training.train import train as train
    from encore.training.training_options import GateTrainingConfig as GateTrainingConfig
    from encore.training.training_options import TrainingRunConfig as TrainingRunConfig
    from encore.training.training_plan import PlanTrainConfig as PlanTrainConfig
    from encore.warehouse import open_ratings as open_ratings
    from encore.weighting.scheme_comparison import compare_schemes as compare_schemes
    from encore.weighting.theory import theory as theory
    from encore.weighting.weigh import weights as weights

    benchmark, export, gate = run_benchmark, export_model, train_gate
    check, judge, score = check_study, judge_benchmark, score_study

__version__ = "0.2.0"

#: Module and name of every public function and class.
_WHERE = {
    "AnswerOptions": "encore.analysis.answer_options.AnswerOptions",
    "BenchmarkConfig": "encore.benchmarks.benchmark_options.BenchmarkConfig",
    "BenchmarkRunOptions": "encore.benchmarks.benchmark_options.BenchmarkRunOptions",
    "CheckConfig": "encore.analysis.check_options.CheckConfig",
    "EncoreError": "encore.core.errors.EncoreError",
    "GateTrainingConfig": "encore.training.training_options.GateTrainingConfig",
    "JudgeBenchmarkConfig": "encore.benchmarks.benchmark_options.JudgeBenchmarkConfig",
    "JudgeConfig": "encore.judges.judge_options.JudgeConfig",
    "PlanRateConfig": "encore.rating.rating_options.PlanRateConfig",
    "PlanTrainConfig": "encore.training.training_plan.PlanTrainConfig",
    "RatingConfig": "encore.rating.rating_options.RatingConfig",
    "RatingRunOptions": "encore.rating.rating_options.RatingRunOptions",
    "RunOptions": "encore.runs.run_options.RunOptions",
    "ScoringConfig": "encore.scoring.scoring_options.ScoringConfig",
    "ScoringRunOptions": "encore.scoring.scoring_options.ScoringRunOptions",
    "ServerOptions": "encore.judges.server_options.ServerOptions",
    "TrainingRunConfig": "encore.training.training_options.TrainingRunConfig",
    "analyze": "encore.analysis.analyze.analyze",
    "benchmark": "encore.benchmarks.run_benchmark.run_benchmark",
    "check": "encore.analysis.check_study.check_study",
    "compare": "encore.benchmarks.compare_tables.compare",
    "compare_models": "encore.scoring.model_comparison.compare_models",
    "compare_runs": "encore.analysis.run_comparison.compare_runs",
    "compare_schemes": "encore.weighting.scheme_comparison.compare_schemes",
    "corrected_rates": "encore.people.rates_by_rule.corrected_rates",
    "export": "encore.exports.write_export.export_model",
    "gate": "encore.training.baselines.gate.train_gate",
    "guard": "encore.exports.guard.guard",
    "ingest": "encore.data.ingestion.ingest",
    "judge": "encore.benchmarks.judging.run_judge.judge_benchmark",
    "load_rule_set": "encore.data.rule_sets.load_rule_set",
    "open_ratings": "encore.warehouse.open_ratings",
    "open_reward_model": "encore.model.open_model.open_reward_model",
    "open_study": "encore.data.study.open_study",
    "plan": "encore.recipes.plan.plan",
    "publish": "encore.tables.publish.publish",
    "rate": "encore.rating.rating_run.rate",
    "read_head_scores": "encore.scoring.head_scores.read_head_scores",
    "report": "encore.reports.write_report.report",
    "score": "encore.scoring.scoring_run.score_study",
    "sending_studies": "encore.core.folder_watches.sending_studies",
    "show": "encore.tables.pair_details.show",
    "sql": "encore.tables.sql_query.sql",
    "status": "encore.data.rating_runs.status",
    "theory": "encore.weighting.theory.theory",
    "train": "encore.training.train.train",
    "weights": "encore.weighting.weigh.weights",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'encore' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].rpartition(".")
    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from encore.core.extras import missing_package

        raise ImportError(missing_package(f"encore.{name}", str(error.name))) from error
    if not isinstance(value, type):
        from encore.core.python_calls import with_python_errors

        value = with_python_errors(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
