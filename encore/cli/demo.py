"""`encore demo`: the whole path on shipped synthetic pairs and a shipped small judge.

The training can be tracked by whoever calls `run_demo`; the command itself tracks nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from encore.cli.output import out, progress_bar, say, warn
from encore.cli.stopping import stopped_by_sigterm

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel
    from encore.training.records import (
        CheckpointRecord,
        EvaluationRecord,
        Reporter,
        StepRecord,
        TrainingPlan,
        TrainingResult,
    )

    #: Given the study, gives who else hears of the training, for as long as it lasts.
    Tracking = Callable[[Path], AbstractContextManager[Reporter]]

Backend = Literal["vllm", "transformers"]
DEFAULT_STUDY = Path("demo-study")
StudyOption = Annotated[
    Path, typer.Option("--out", help="Where the study goes; an existing demo is continued.")
]
BackendOption = Annotated[
    Backend | None,
    typer.Option(help="The judge's engine; default: vLLM, transformers where it is missing."),
]
#: Small enough that killing the demo costs seconds, large enough for the engine.
_PAIRS_PER_SHARD = 60
_SYNTHETIC = "synthetic data: read these figures as an example, not as evidence"


def demo(study: StudyOption = DEFAULT_STUDY, backend: BackendOption = None) -> None:
    """From preference pairs to weights and a reward model on shipped synthetic data, offline.

    Ingests the synthetic pairs, has the small shipped judge rate every response under the paper's
    ten rules on a real vLLM engine, measures the rules, prints their table with the weights,
    trains a reward model with a head for every rule, scores every response with it and exports it
    for other tools. Minutes on a CPU. Pairs, judge and therefore every figure are synthetic: they
    show how the tool works and say nothing about the paper's claim.
    """
    run_demo(study, backend=backend, tracking=_untracked)


def run_demo(study: Path, *, backend: Backend | None, tracking: Tracking) -> None:
    """Do all of it and print what came of it.

    Args:
        study: Where the study goes; an existing demo is continued.
        backend: The judge's engine; None: vLLM where it is installed.
        tracking: Given the study, what else hears of the training.
    """
    started = time.monotonic()
    chosen = backend or _available_backend()
    say("ENCORE demo: everything in it is synthetic, made for this demo by a seeded script")
    _rate_and_weigh(study, backend=chosen)
    with tracking(study) as reporter:
        trained = _train(study, reporter)
    _score_and_export(study, run=trained.out)
    out.print(Text(_SYNTHETIC, "bold"))
    say(f"done in {time.monotonic() - started:.0f} s; next:")
    for command, purpose in _next_steps(study):
        out.print(
            Text.assemble(f"  {_program()} {command}  ", (f"# {purpose}", "dim")), soft_wrap=True
        )


def _rate_and_weigh(study: Path, *, backend: Backend) -> None:
    from encore.cli.ingest import ingest
    from encore.cli.rate import rate_and_report
    from encore.cli.weights import weights_table
    from encore.config import JudgeConfig, RatingConfig
    from encore.demo import data_paths, judge_path
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.weigh import weigh_rules

    ingest([f"{label}={path}" for label, path in data_paths().items()], study=study)
    config = RatingConfig(
        judge=JudgeConfig(model=str(judge_path()), backend=backend), shard_size=_PAIRS_PER_SHARD
    )
    rate_and_report(study, config)
    out.print(weights_table(weigh_rules(study, scheme="encore", options=SchemeOptions())))
    out.print(Text(_SYNTHETIC, "bold"))


def _train(study: Path, reporter: Reporter) -> TrainingResult:
    from encore.cli.train import heads_table
    from encore.cli.training_progress import ShownTraining
    from encore.demo import backbone_config, training_config
    from encore.training.driver import train_study

    say("training a reward model on these ratings: one head per rule, the judge as the backbone")
    with progress_bar() as bar, stopped_by_sigterm():
        result = train_study(
            study,
            backbone=backbone_config(),
            config=training_config(),
            reporter=_Told(ShownTraining(bar), reporter),
        )
    assert result.final_evaluation is not None, "the demo holds pairs out"
    out.print(heads_table(result.final_evaluation))
    done = f"trained in {result.seconds:.0f} s" if result.is_new else "trained before"
    say(f"{done}: {result.num_steps} steps; model {result.model_dir}")
    return result


def _score_and_export(study: Path, *, run: Path) -> None:
    """Score once, compose by arithmetic, and write what other tools load."""
    from encore.export import ExportAbout, export_model
    from encore.export.weights_input import scheme_weights
    from encore.model.opening import open_reward_model

    say("scoring every response once under all heads; composing them is arithmetic from here")
    opened = open_reward_model(run, device="cpu")
    composition = scheme_weights(study, head_ids=opened.model.head_ids, scheme="encore")
    _score_and_compose(study, opened, composition.weights)
    exports = study / "exports"
    for name, weights in (("heads", None), ("composed", composition.weights)):
        result = export_model(
            opened,
            out=exports / name,
            weights=weights,
            about=ExportAbout(composition=None if weights is None else composition),
        )
        labels = "a label for each rule" if weights is None else "ENCORE's weights folded in"
        say(
            f"{result.folder}: {labels}; plain transformers gives the same scores (to "
            f"{result.verification.max_difference:.0e})"
        )


def _score_and_compose(study: Path, opened: OpenedModel, weights: Mapping[str, float]) -> None:
    from encore.cli.score import show_scoring
    from encore.pairs import iter_pairs
    from encore.scores.accuracy import accuracy_of
    from encore.scores.head_scores import read_head_scores
    from encore.scores.held_out import held_out_P
    from encore.study import open_study

    result = show_scoring(study, opened)
    scores = read_head_scores(result.out)
    assert result.split is not None, "the demo holds pairs out"
    is_held_out_P = held_out_P(result.split, iter_pairs(open_study(study)), scores)
    held_out = scores.take(is_held_out_P.nonzero()[0])
    uniform = dict.fromkeys(weights, 1 / len(weights))
    half = {
        name: accuracy_of(held_out.compose(composed), name=name).half
        for name, composed in (("ENCORE's weights", weights), ("uniform weights", uniform))
    }
    told = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in half.items())
    say(f"{result.num_scores:,} scores in {result.out}")
    say(f"sides with the labels on the {held_out.num_pairs} held-out pairs: {told}")


class _Told:
    """Two reporters hear of a training, the second one also of what the first one showed."""

    def __init__(self, first: Reporter, second: Reporter) -> None:
        self._reporters = (first, second)

    def started(self, plan: TrainingPlan) -> None:
        for reporter in self._reporters:
            reporter.started(plan)

    def stepped(self, record: StepRecord) -> None:
        for reporter in self._reporters:
            reporter.stepped(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        for reporter in self._reporters:
            reporter.evaluated(record)

    def saved(self, record: CheckpointRecord) -> None:
        for reporter in self._reporters:
            reporter.saved(record)

    def finished(self, result: TrainingResult) -> None:
        for reporter in self._reporters:
            reporter.finished(result)


def _untracked(_study: Path) -> AbstractContextManager[Reporter]:
    from encore.training.records import SilentReporter

    return nullcontext(SilentReporter())


def _available_backend() -> Backend:
    if find_spec("vllm") is not None:
        return "vllm"
    warn(
        "vLLM is not installed on this machine (it needs Linux); the demo uses the transformers "
        "backend instead: the same replies, several times slower"
    )
    return "transformers"


def _program() -> str:
    """How this very command can be called again: by name where the shell finds it, else by path."""
    if found := which("encore"):
        return Path(found).name
    program = Path(sys.argv[0])
    return os.path.relpath(program) if program.name == "encore" else "encore"


def _next_steps(study: Path) -> tuple[tuple[str, str], ...]:
    return (
        (f"analyze {study} --by-source", "entropy, four accuracies, their correlation"),
        (f"weights {study} --tau 0.5", "a sharper preference for low-entropy rules"),
        (f"status {study}", "every rating shard, its digest checked"),
        (f"show PAIR --study {study}", "text, prompts, replies and ratings of one pair"),
        (f"serve {study}/exports/composed", "its rewards over HTTP"),
        ("ingest --help", "your own preference pairs"),
        ("train --help", "a reward model on a backbone of your own"),
    )
