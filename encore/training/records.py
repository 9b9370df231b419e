"""What a training run says about itself while it runs, and to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from encore.errors import EncoreError

_NAMED_PAIRS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a run is about to do.

    Attributes:
        num_steps: Optimizer steps of the whole run.
        steps_per_epoch: Of one pass over the training pairs.
        num_pairs: Training pairs.
        num_evaluation_pairs: Pairs held out; 0 where there is no evaluation.
        num_tokens_per_epoch: Real tokens, prompts counted with both responses.
        num_parameters: Of the model, all of them.
        num_trained_parameters: Those that training changes.
        head_ids: Names of the heads, in head order.
        start_step: Steps that an earlier process did; 0 for a new run.
        device: ``cpu`` or ``cuda``.
        out: The run's folder.
        identity: What makes the run what it is: configs, digests, versions.
    """

    num_steps: int
    steps_per_epoch: int
    num_pairs: int
    num_evaluation_pairs: int
    num_tokens_per_epoch: int
    num_parameters: int
    num_trained_parameters: int | None = None
    head_ids: tuple[str, ...] = ()
    start_step: int = 0
    device: str = "cpu"
    out: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step. Times, speeds and memory are no part of what a rerun repeats.

    Attributes:
        step: From 1: the steps done with this one.
        epoch: Passes over the training pairs that are done with this step, with a fraction.
        loss: Mean over the responses (multi-head) or pairs (bradley-terry) of the step, before it.
        learning_rate: Of this step.
        num_tokens: Real tokens, every response counted as if it stood alone.
        num_computed: Token positions that were computed: more by padding, fewer by sharing.
        seconds: Of this step, without evaluation and checkpoints.
        tokens_per_second: Real tokens, over the last steps.
        mfu: Share of the device's peak that the model's arithmetic used over the last steps,
            recomputation not counted; None where the peak is not known, as on a CPU.
        peak_memory_bytes: The most so far: allocated on the GPU, else resident in the process.
        grad_norm: Of the whole gradient; None where the optimizer does not know it.
        num_pairs: Of the step.
    """

    step: int
    epoch: float
    loss: float
    learning_rate: float
    num_tokens: int
    num_computed: int
    seconds: float
    tokens_per_second: float
    mfu: float | None
    peak_memory_bytes: int
    grad_norm: float | None
    num_pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The model on the held-out pairs after a step.

    Attributes:
        step: Steps done.
        loss: The training loss over the held-out responses or pairs; None where none has a target.
        r2_by_head: 1 - squared error / squared deviation from the targets' own mean, over the
            held-out responses that the rule rated; None where these targets are constant or absent.
            Empty for bradley-terry.
        accuracy_half: Share of held-out pairs that a bradley-terry model ranks as people did, a
            tie counting half; None for multi-head models, whose weights are no part of training.
        accuracy_half_by_head: The same for the ranking of each head alone.
        num_pairs: Held-out pairs.
        seconds: The evaluation took.
    """

    step: int
    loss: float | None
    r2_by_head: dict[str, float | None]
    accuracy_half: float | None
    num_pairs: int
    accuracy_half_by_head: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint on the disk, with the evaluation of the same step where there was one."""

    step: int
    path: Path
    evaluation: EvaluationRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a finished run leaves.

    Attributes:
        out: The run's folder.
        model_dir: The final model; None where the run stopped before it.
        num_steps: Steps done over all processes.
        final_evaluation: After the last step; None where nothing was held out.
        notes: What the reader should know of the data, a sentence each.
        is_new: False where the run was already finished and nothing was done.
        seconds: Of this process.
    """

    out: Path
    model_dir: Path | None
    num_steps: int
    final_evaluation: EvaluationRecord | None
    notes: tuple[str, ...] = ()
    is_new: bool = True
    seconds: float = 0.0


class Reporter(Protocol):
    """Hears of a run as it goes: a progress bar, a log, a tracker."""

    def started(self, plan: TrainingPlan) -> None:
        """Before the first step of this process."""

    def stepped(self, record: StepRecord) -> None:
        """After each step."""

    def evaluated(self, record: EvaluationRecord) -> None:
        """After each evaluation."""

    def saved(self, record: CheckpointRecord) -> None:
        """After each checkpoint, once it is whole on the disk."""

    def finished(self, result: TrainingResult) -> None:
        """After the last step, once the model is whole on the disk."""


class SilentReporter:
    """Tells nobody; also a base for reporters that care about some events only."""

    def started(self, plan: TrainingPlan) -> None:
        """Nothing."""

    def stepped(self, record: StepRecord) -> None:
        """Nothing."""

    def evaluated(self, record: EvaluationRecord) -> None:
        """Nothing."""

    def saved(self, record: CheckpointRecord) -> None:
        """Nothing."""

    def finished(self, result: TrainingResult) -> None:
        """Nothing."""


class TrainingDivergedError(EncoreError):
    """A loss or a gradient is not finite.

    Attributes:
        step: The step that could not be done, from 1.
        pair_ids: The pairs it was computed from, the most telling ones only where these are known.
    """

    def __init__(self, *, what: str, step: int, pair_ids: Sequence[str] = ()) -> None:
        self.step = step
        self.pair_ids = tuple(pair_ids)
        pairs = f" on {_some(self.pair_ids)}" if self.pair_ids else ""
        super().__init__(
            f"training diverged: {what} at step {step}{pairs}; expected finite numbers; the last "
            "checkpoint is kept: look at these pairs (encore show PAIR), or start a new run with a "
            "lower learning rate"
        )


def _some(pair_ids: tuple[str, ...]) -> str:
    named = ", ".join(pair_ids[:_NAMED_PAIRS])
    more = len(pair_ids) - _NAMED_PAIRS
    word = "pair" if len(pair_ids) == 1 else "pairs"
    return f"{word} {named}" + (f" and {more} more" if more > 0 else "")
