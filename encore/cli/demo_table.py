"""The demo's table: the models beside the heads, the rule judge, and every row on the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from encore.cli.output import compact_table
from encore.cli.train import train_shown
from encore.terminal import out, say

if TYPE_CHECKING:
    from encore.benchmarks.judging.judge_report import JudgeReport
    from encore.benchmarks.run import BenchmarkRun
    from encore.benchmarks.table import TableLine
    from encore.recipes.recipe import Recipe

SYNTHETIC = "synthetic data: read these figures as an example, not as evidence"
RULE_JUDGE = "rule judge, encore (τ 2)"
#: Of these it is said which the pairs tell apart.
_COMPARED = ("uniform", "encore (τ 2)", "encore (τ 5)", "encore (τ 10)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What stands beside the heads in the table.

    Attributes:
        reward_models: With one head each, by the name of their row.
        gate: Over the heads.
        judged: The rule judge.
    """

    reward_models: dict[str, Path]
    gate: Path
    judged: JudgeReport


def compare_on_benchmark(
    study: Path,
    *,
    recipe: Recipe,
    heads: Path,
    initial: Path,
) -> BenchmarkRun:
    """Train and judge what stands beside the heads, make the table and print it.

    Args:
        study: The demo's, rated.
        recipe: The demo's.
        heads: The training run of the model whose heads are weighed.
        initial: The reward model that training started from.
    """
    beside = Compared(
        reward_models=_reward_models(study, recipe=recipe, initial=initial),
        gate=_gate(study, recipe=recipe, heads=heads),
        judged=_judged(study, recipe=recipe),
    )
    run = _benchmarked(study, recipe=recipe, heads=heads, beside=beside)
    print_table(run)
    return run


def print_table(run: BenchmarkRun) -> None:
    """The rows of the paper's methods with their intervals, and where all others are."""
    from encore.benchmarks.table import told_apart

    table = run.table
    shown = [row for row in table.own_rows if row.own.method is not None or row.kind != "scheme"]
    about, mark = table.benchmark, ", SYNTHETIC" if table.synthetic else ""
    title = f"{about.headline}, % of {about.num_pairs} pairs{mark}: the paper's methods"
    columns = ("row", "score", "95 %", f"Δ {table.reference}", "95 % of Δ")
    out.print(compact_table(columns, [_cells(row) for row in shown], title=title))
    if table.synthetic:
        out.print(Text(SYNTHETIC, "bold"))
    compared = [row for row in run.rows if row.name in _COMPARED]
    if len(compared) > 1:
        say(f"{told_apart(compared, pairs=run.pairs)} (95 % intervals of paired differences)")
    say(f"all {len(run.rows)} rows, every subset and what limits them: {run.markdown_path}")
    say(f"every pair under every row: {run.results_path}")


def _cells(row: TableLine) -> tuple[str, ...]:
    from encore.report.words import NONE, interval, number, points

    headline, found = row.own.headline, row.own.comparison
    score = number(100 * headline.score, digits=1)
    own = interval(100 * headline.ci_low, 100 * headline.ci_high, digits=1)
    if found is None:
        return (row.name, score, own, NONE, NONE)
    low, high = (points(end, digits=1) for end in (found.ci_low, found.ci_high))
    return (row.name, score, own, points(found.difference, digits=1), f"{low} to {high}")


def _reward_models(study: Path, *, recipe: Recipe, initial: Path) -> dict[str, Path]:
    """The untouched initial model, and two trained on the pairs' preferences alone."""
    [plain] = recipe.rows
    assert plain.training is not None, "and trains it"
    say("for comparison: a Bradley–Terry model from the judge, on the preferences alone")
    from_judge = train_shown(study, backbone=plain.backbone, training=plain.training)
    say("for comparison: the same from the initial reward model")
    from_initial = train_shown(
        study,
        backbone=recipe.backbone.model_copy(update={"model": str(initial)}),
        training=plain.training.model_copy(update={"head_init": "own"}),
    )
    return {
        "initial model": initial,
        plain.name: from_judge.out,
        f"{plain.name}-initialised": from_initial.out,
    }


def _gate(study: Path, *, recipe: Recipe, heads: Path) -> Path:
    """The paper's MoE gate over the heads."""
    from encore.data.study import open_study
    from encore.recipes.finished import once
    from encore.training.gate import TrainGateConfig, train_gate

    config, out_dir = recipe.gate, heads / "gate"
    assert config is not None, "the demo's recipe has a gate"
    over_heads = TrainGateConfig(study=study, model=heads / "model", gate=config, out=out_dir)

    def work() -> list[Path]:
        say(f"for comparison: a gate that weighs the heads by the prompt, {config.num_steps} steps")
        result = train_gate(open_study(study), over_heads)
        say(result.losses)
        names = ("gate.json", "gate.safetensors", "gate-result.json")
        return [out_dir / name for name in names]

    record = study / "recipes" / "make-demo" / "gate.json"
    inputs = {"run": heads.name, "num_steps": config.num_steps}
    once(record, study=study, inputs=inputs, work=work)
    return out_dir


def _judged(study: Path, *, recipe: Recipe) -> JudgeReport:
    """The judge's own ratings of the benchmark, weighed: a reward without a reward model."""
    from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
    from encore.benchmarks.judging.judge_report import judge_benchmark

    say("for comparison: the judge's own ratings of the benchmark's pairs, ENCORE's weights")
    rating = recipe.rating
    config = JudgeBenchmarkConfig(
        judge=rating.judge,
        out=study / "judged",
        pairs=recipe.benchmark.pairs,
        by="rating",
        rules=rating.rules,
        weights_from=study,
        shard_size=rating.shard_size,
        max_reply_tokens=rating.max_reply_tokens,
        name=RULE_JUDGE,
    )
    return judge_benchmark(config)


def _benchmarked(study: Path, *, recipe: Recipe, heads: Path, beside: Compared) -> BenchmarkRun:
    from encore.benchmarks.run import run_benchmark
    from encore.data.study import open_study

    say("the table: every scheme over the heads, and the models beside them, on the benchmark")
    models = tuple(f"{name}={path}" for name, path in beside.reward_models.items())
    config = recipe.benchmark.model_copy(
        update={
            "model": str(heads),
            "reward_models": models,
            "gate": beside.gate,
            "results": (str(beside.judged.results),),
        }
    )
    return run_benchmark(open_study(study), config)
