"""The metrics of a training run: a line a step in `log.jsonl`, a line each in `evaluations.jsonl`.

A line is a record below as JSON. No step is there twice: a run that goes on from a checkpoint first
cuts both files back to the checkpoint's step.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from encore.files import atomic_write_bytes

logger = logging.getLogger(__name__)

LOG_FILE = "log.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"


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
        grad_norm: Of the whole gradient, before clipping; None where the optimizer does not know.
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

    @property
    def summary(self) -> str:
        """Loss, speed and memory in a few words."""
        words = [f"loss {self.loss:.4g}", f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.mfu is not None:
            words.append(f"{self.mfu:.0%} MFU")
        return ", ".join([*words, f"{self.peak_memory_bytes / 2**30:.1f} GiB"])


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
class TrainingResult:
    """A finished run.

    Attributes:
        out: The run's folder.
        run_key: 16 hex digits that follow from settings and data.
        model_dir: The final model.
        num_steps: Steps done over all processes.
        final_evaluation: After the last step; None where nothing was held out.
        notes: What the reader should know of the data and the steps, a sentence each.
        synthetic: What of data and backbone is synthetic, in words.
        is_new: False where the run was already finished and nothing was done.
        seconds: Of this process.
    """

    out: Path
    run_key: str
    model_dir: Path
    num_steps: int
    final_evaluation: EvaluationRecord | None
    notes: tuple[str, ...] = ()
    synthetic: tuple[str, ...] = ()
    is_new: bool = True
    seconds: float = 0.0


def metrics_of(record: StepRecord | EvaluationRecord) -> dict[str, float]:
    """The figures of a record by name, nested ones as ``r2_by_head/RULE``; missing ones left out.

    An evaluation's names begin with ``eval/``, a step's with ``train/``.
    """
    prefix = "train" if isinstance(record, StepRecord) else "eval"
    metrics: dict[str, float] = {}
    for name, value in dataclasses.asdict(record).items():
        inner = value if isinstance(value, Mapping) else {None: value}
        for key, number in inner.items():
            if number is not None and name != "step":
                path = (prefix, name.removesuffix("_by_head"), *([] if key is None else [key]))
                metrics["/".join(path)] = float(number)
    return metrics


class MetricsLog:
    """Appends records to both files of a run's folder, each flushed as it comes.

    Args:
        folder: The run's.
        start_step: Lines of later steps are cut off.
    """

    def __init__(self, folder: Path, *, start_step: int) -> None:
        _cut(folder / LOG_FILE, step=start_step, has_every_step=True)
        _cut(folder / EVALUATIONS_FILE, step=start_step, has_every_step=False)
        self._steps = (folder / LOG_FILE).open("a", encoding="utf-8")
        self._evaluations = (folder / EVALUATIONS_FILE).open("a", encoding="utf-8")

    def append(self, record: StepRecord | EvaluationRecord) -> None:
        """Write one line; NaN and infinity are refused."""
        stream = self._steps if isinstance(record, StepRecord) else self._evaluations
        line = json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False)
        stream.write(line + "\n")
        stream.flush()

    def sync(self) -> None:
        """Wait until everything is on the disk: before a checkpoint, which must not be ahead."""
        os.fsync(self._steps.fileno())
        os.fsync(self._evaluations.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.close()
        self._evaluations.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log in order, up to the first line that is none; empty without a file.

    A killed process may leave half a line at the end.
    """
    records: list[dict[str, Any]] = []
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        records.append(record)
    return records


def _cut(path: Path, *, step: int, has_every_step: bool) -> None:
    """Take the records after ``step`` off a log, whole lines only, by one rename."""
    records = [record for record in read_log(path) if record["step"] <= step]
    if has_every_step and [record["step"] for record in records] != list(range(1, step + 1)):
        logger.warning(
            "%s has %d of the %d steps before the checkpoint: it was changed after it was written",
            path,
            len(records),
            step,
        )
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    atomic_write_bytes(path, "".join(lines).encode())
