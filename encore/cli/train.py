"""`encore train`: train a reward model on a study's ratings, or on its preferences."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from encore.cli.output import compact_table, percent, show_result, warn_of_unused
from encore.core.command_parser import JsonOption, command
from encore.core.config import unused_options
from encore.core.errors import EncoreError
from encore.core.model_files import refuse_missing_folder
from encore.core.terminal import console, out, say, say_next, terminal_reporter, warn
from encore.training.training_options import TrainConfig

if TYPE_CHECKING:
    from encore.training.run_folder import EvaluationRecord


@command
def train(config: TrainConfig, *, json: JsonOption = False) -> None:
    """Train a reward model on a backbone: one head per rule, or one head from preferences.

    Each head learns the ratings of its rule. Weights of the heads are chosen later, without
    training (`encore weights`). `--preference-head` adds head 0, a reward head, before the rules.
    `--objective bradley-terry` trains the baseline, which needs no ratings. `--method probe` does
    not change the backbone and solves the heads in closed form: a quick test of the backbone.
    `--method lora` trains adapters in a fraction of the memory.

    Run the same command again after a crash or Ctrl-C: it continues from the last checkpoint, with
    the same result. Other settings or data make another run beside this one. A GPU is used if there
    is one. Several GPUs need a launcher, which starts a process for each:
    `torchrun --nproc-per-node 8 -m encore.cli train my-study …` (or `accelerate launch`).

    Example: encore train my-study --backbone ./my-llama --method probe
    """
    refuse_missing_folder("backbone", config.backbone.model)
    from encore.data.study import open_study
    from encore.training.train import train as train_stage

    with rank_zero_only(), terminal_reporter() as reporter:
        for field in ("method", "preference_head"):
            who = f"{field.replace('_', '-')} {getattr(config, field)}"
            warn_of_unused(unused_options(config, because_of=field), who=who)
        if config.objective == "bradley-terry":
            rating_options = {name: getattr(config, name) for name in ("ratings", "run", "judge")}
            warn_of_unused(rating_options, who="objective bradley-terry")
        study = open_study(config.study)
        result = train_stage(study, config, reporter=reporter)
    if not is_rank_zero():
        return
    evaluation = result.final_evaluation
    values = asdict(result)
    values |= {"model": values.pop("model_dir"), "evaluation": values.pop("final_evaluation")}
    tables = [heads_table(evaluation)] if evaluation else []
    show_result(values, tables, result.notes, synthetic=result.synthetic, as_json=json)
    if evaluation is None:
        warn("nothing was held out, so the quality of this model is unknown")
    outcome = (
        f"done in {result.seconds:.0f} s" if result.is_new else "finished before, nothing done"
    )
    say(f"{outcome}: {result.num_steps:,} steps; model {result.model_dir}")
    if config.objective == "multi-head":
        say_next("weights", config.ratings or config.study)
    else:
        say_next("score", config.study, "--model", result.out)


def heads_table(evaluation: EvaluationRecord) -> Table:
    """Return a table of the heads: R² of their ratings, and accuracy of their ranking."""
    rows = [
        (head, evaluation.r2_by_head.get(head), percent(accuracy))
        for head, accuracy in evaluation.accuracy_half_by_head.items()
    ]
    title = f"Heads on {evaluation.num_pairs:,} held-out pairs"
    return compact_table(("head", "R²", "accuracy"), rows, title=title)


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
