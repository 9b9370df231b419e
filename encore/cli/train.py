"""`encore train`: train a reward model on a study's ratings, or on its preferences."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from encore.cli.output import compact_table, percent, show_result, span, warn_of_unused
from encore.core.command_parser import JsonOption, command
from encore.core.config import unused_options
from encore.core.errors import EncoreError, InputError
from encore.core.model_files import refuse_missing_folder
from encore.core.number_text import number
from encore.core.terminal import console, out, say, say_next, terminal_reporter, warn
from encore.data.study_options import StudyArgument
from encore.training.seed_runs import SeedSummary, Spread, summarise_seeds
from encore.training.training_options import SeedsConfig, TrainingRunConfig

if TYPE_CHECKING:
    from encore.training.run_folder import EvaluationRecord, TrainingResult


@command
def train(
    study: StudyArgument, config: TrainingRunConfig, seeds: SeedsConfig, *, json: JsonOption = False
) -> None:
    """Train a reward model on a backbone: one head per rule, or one head from preferences.

    Each head learns the ratings of its rule. Weights of the heads are chosen later, without
    training (`encore weights`). `--preference-head` adds head 0, a reward head, before the rules.
    `--objective bradley-terry` trains the baseline, which needs no ratings. `--method probe` does
    not change the backbone and solves the heads in closed form: a quick test of the backbone.
    `--method lora` trains adapters in a fraction of the memory.

    `--seeds 3` trains three models and prints mean and range of their held-out figures.

    Run the same command again after a crash or Ctrl-C: it continues from the last checkpoint, with
    the same result. Other settings or data make another run beside this one. A GPU is used if there
    is one. Several GPUs need a launcher, which starts a process for each:
    `torchrun --nproc-per-node 8 -m encore.cli train my-study …` (or `accelerate launch`).

    Example: encore train my-study --backbone ./my-llama --method probe
    """
    refuse_missing_folder("backbone", config.backbone.model)
    if seeds.num_seeds > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"--seeds {seeds.num_seeds} with several processes: expected one seed a command; start "
            "the launcher once for each --seed"
        )
    from encore.data.study import open_study
    from encore.training.seed_runs import seed_configs
    from encore.training.train import train as train_stage

    with rank_zero_only(), terminal_reporter() as reporter:
        _warn_of_idle_options(config)
        opened = open_study(study)
        results = [
            train_stage(opened, seed_config, reporter=reporter)
            for seed_config in seed_configs(config, num_seeds=seeds.num_seeds)
        ]
    if not is_rank_zero():
        return
    _show(results, as_json=json)
    for result in results:
        outcome = (
            f"done in {result.seconds:.0f} s" if result.is_new else "finished before, nothing done"
        )
        say(f"{outcome}: {result.num_steps:,} steps; model {result.model_dir}")
    if config.objective == "multi-head":
        say_next("weights", config.ratings or study)
    else:
        say_next("score", study, "--model", results[0].out)


def _warn_of_idle_options(config: TrainingRunConfig) -> None:
    """Warn of options that were given and that this kind of training does not read."""
    for field in ("method", "preference_head"):
        who = f"{field.replace('_', '-')} {getattr(config, field)}"
        warn_of_unused(unused_options(config, because_of=field), who=who)
    if config.objective == "bradley-terry":
        rating_options = {name: getattr(config, name) for name in ("ratings", "run", "judge")}
        warn_of_unused(rating_options, who="objective bradley-terry")


def _show(results: Sequence[TrainingResult], *, as_json: bool) -> None:
    """Print the runs, and with several seeds the spread of their evaluations."""
    evaluations = [run.final_evaluation for run in results if run.final_evaluation is not None]
    runs = [asdict(run) for run in results]
    for values in runs:
        values |= {"model": values.pop("model_dir"), "evaluation": values.pop("final_evaluation")}
    answer: dict[str, Any] = runs[0]
    tables = [heads_table(record) for record in evaluations[:1]]
    if len(results) > 1:
        summary = summarise_seeds(evaluations) if evaluations else None
        answer = {"runs": runs, "over_seeds": summary}
        tables = [] if summary is None else [_seeds_table(summary, num_seeds=len(results))]
    notes = dict.fromkeys(note for run in results for note in run.notes)
    synthetic = [*dict.fromkeys(part for run in results for part in run.synthetic)]
    show_result(answer, tables, notes, synthetic=synthetic, as_json=as_json)
    if not evaluations:
        warn("nothing was held out, so the quality of this model is unknown")


def heads_table(evaluation: EvaluationRecord) -> Table:
    """Return a table of the heads: R² of their ratings, and accuracy of their ranking."""
    rows = [
        (head, evaluation.r2_by_head.get(head), percent(accuracy))
        for head, accuracy in evaluation.accuracy_half_by_head.items()
    ]
    title = f"Heads on {evaluation.num_pairs:,} held-out pairs"
    return compact_table(("head", "R²", "accuracy"), rows, title=title)


def _seeds_table(summary: SeedSummary, *, num_seeds: int) -> Table:
    """Return a table of the heads: mean and range of R² and accuracy over seeds."""

    def cells(spread: Spread | None, show: Callable[[float | None], str]) -> tuple[str, str]:
        if spread is None:
            return show(None), span(None, None)
        return show(spread.mean), span(spread.lowest, spread.highest, show)

    rows = [
        (head, *cells(summary.r2_by_head[head], number), *cells(accuracy, percent))
        for head, accuracy in summary.accuracy_half_by_head.items()
    ]
    loss, loss_range = cells(summary.loss, partial(number, digits=4))
    title = f"Held-out pairs of {num_seeds} seeds, mean and range; loss {loss} ({loss_range})"
    return compact_table(("head", "R²", "range", "accuracy", "range"), rows, title=title)


# --- several processes --------------------------------------------------------------------------

#: Wait before a process prints its error. If rank 0 has the same error, the launcher ends this
#: process in the meantime.
_PATIENCE_SECONDS = 5.0


def is_rank_zero() -> bool:
    """Return True if this process may print: it is rank 0, or there is no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) <= 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def rank_zero_only() -> Iterator[None]:
    """Silence all processes but rank 0 inside the block.

    An error that only this process has is printed all the same, because rank 0 does not print it.
    """
    if is_rank_zero():
        yield
        return
    console.quiet = out.quiet = True
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (EncoreError, OSError) as error:
            time.sleep(_PATIENCE_SECONDS)
            console.quiet = out.quiet = False
            logging.disable(logging.NOTSET)
            raise EncoreError(f"process {os.environ['RANK']}: {error}") from error
