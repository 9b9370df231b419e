"""`encore train`: learn a reward model from a study's ratings, or from its preferences."""

from __future__ import annotations

import dataclasses
import json as json_module
from typing import TYPE_CHECKING, Any

from rich.table import Table

from encore.cli.one_voice import is_first_process, one_voice
from encore.cli.output import compact_table
from encore.cli.training_progress import ShownTraining
from encore.options import JsonOption, command
from encore.terminal import out, print_json, progress_bar, say, warn
from encore.training.config import TrainConfig

if TYPE_CHECKING:
    from encore.training.records import EvaluationRecord, TrainingResult


@command
def train(config: TrainConfig, *, json: JsonOption = False) -> None:
    """Train a reward model on a backbone: one head per rule, or one head from preferences.

    Every head learns the ratings of its rule; how heads are weighed is decided afterwards, without
    training (`encore weights`). `--objective bradley-terry` trains the baseline that needs no
    ratings. `--method probe` leaves the backbone as it is and solves the heads in closed form: a
    quick look at what it knows. `--method lora` trains adapters in a fraction of the memory.

    Run the same command again after a crash or Ctrl-C: it goes on from the last checkpoint and
    ends as if nothing had happened. Other settings or data make another run beside this one. The
    GPU is used where there is one; several, by a launcher, which starts a process for each:
    `torchrun --nproc-per-node 8 -m encore.cli train my-study …` (or `accelerate launch`).

    Example: encore train my-study --backbone ./my-llama --method probe
    """
    from encore.training.driver import train_study

    with one_voice():
        _warn_of_unused(config)
        with progress_bar() as bar:
            shown = ShownTraining(bar)
            result = train_study(
                config.study,
                backbone=config.backbone,
                config=config.training,
                reporter=shown,
                ratings=config.ratings,
                run=config.run,
                judge=config.judge,
                limit=config.limit,
                out=config.out,
                on_embedded=shown.embedded,
            )
    if not is_first_process():
        return
    next_step = (
        f"encore weights {config.ratings or config.study}"
        if config.objective == "multi-head"
        else f"encore score {config.study} --model {result.out}"
    )
    _report(result, next_step=next_step, as_json=json)


#: What says how steps are taken, of which method probe takes none.
_OF_STEPS = (
    *("epochs", "learning_rate", "batch_pairs", "warmup_steps", "weight_decay", "max_steps"),
    *("optimizer", "gradient_checkpointing", "evaluate_every", "checkpoint_every"),
)
_OF_ADAPTERS = ("lora_rank", "lora_alpha")


def _warn_of_unused(config: TrainConfig) -> None:
    """Say which options were given that change nothing."""
    unused: tuple[str, ...] = () if config.method == "lora" else _OF_ADAPTERS
    if config.method == "probe":
        unused += _OF_STEPS
    given = [name for name in unused if name in config.model_fields_set]
    for name in given:
        warn(
            f"method {config.method} has no use for --{name.replace('_', '-')}: it changes nothing"
        )
    if config.objective == "bradley-terry" and any((config.ratings, config.run, config.judge)):
        warn(
            "objective bradley-terry reads no ratings: --ratings, --run and --judge change nothing"
        )


def _report(result: TrainingResult, *, next_step: str, as_json: bool) -> None:
    evaluation, manifest = result.final_evaluation, _manifest(result)
    if as_json:
        print_json(_as_json(result, manifest))
    elif evaluation is not None:
        out.print(heads_table(evaluation))
    for note in result.notes:
        warn(note)
    for part in manifest["synthetic"]:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
    if evaluation is None:
        warn("nothing was held out, so nothing says how good this model is")
    did = f"done in {result.seconds:.0f} s" if result.is_new else "finished before, nothing done"
    say(f"{did}: {result.num_steps} steps; model {result.model_dir}")
    say(f"next: {next_step}")


def _manifest(result: TrainingResult) -> dict[str, Any]:
    """What the run's folder says of the run."""
    from encore.training.run import MANIFEST_FILE

    content: dict[str, Any] = json_module.loads(
        (result.out / MANIFEST_FILE).read_text(encoding="utf-8")
    )
    return content


def _as_json(result: TrainingResult, manifest: dict[str, Any]) -> dict[str, Any]:
    evaluation = result.final_evaluation
    return {
        "run_key": manifest["run_key"],
        "out": str(result.out),
        "model": None if result.model_dir is None else str(result.model_dir),
        "num_steps": result.num_steps,
        "is_new": result.is_new,
        "seconds": result.seconds,
        "evaluation": None if evaluation is None else dataclasses.asdict(evaluation),
        "notes": list(result.notes),
        "synthetic": manifest["synthetic"],
    }


def heads_table(evaluation: EvaluationRecord) -> Table:
    """One line a head: how much of the ratings it explains, how often it ranks as people did."""
    rows = [
        (
            head_id,
            _or_dash(evaluation.r2_by_head.get(head_id), "{:.3f}"),
            _or_dash(accuracy, "{:.1%}"),
        )
        for head_id, accuracy in evaluation.accuracy_half_by_head.items()
    ]
    title = f"Heads on {evaluation.num_pairs} held-out pairs"
    return compact_table(("head", "R²", "accuracy"), rows, title=title)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
