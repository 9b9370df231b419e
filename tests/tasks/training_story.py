"""A training run as reporters hear of it, without a model: its files, its records, its crashes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from encore.training.recording import RecordingReporter
from encore.training.records import (
    CheckpointRecord,
    EvaluationRecord,
    Reporter,
    StepRecord,
    TrainingPlan,
    TrainingResult,
)
from encore.training.run import TrainingRun

HEADS = ("kindness", "privacy")
IDENTITY = {
    "config": {"objective": "multi-head", "learning_rate": 2e-05, "adam_betas": [0.9, 0.999]},
    "backbone_identity": {"name": "tiny", "template_sha256": "7e" * 32},
    "data_sha256": "da" * 32,
}


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Story:
    """Ten steps; an evaluation and a checkpoint after each `every`-th, the newest two kept."""

    def __init__(self, out: Path, *, num_steps: int = 10, every: int = 4) -> None:
        self.run = TrainingRun(folder=out, identity=IDENTITY)
        self.num_steps = num_steps
        self.every = every
        self.run.checkpoints_dir.mkdir(parents=True)
        about = {"versions": {"torch": "2.13.0"}, "notes": ["two pairs without ratings"]}
        manifest = {"run_key": self.run.key, "identity": IDENTITY, **about}
        self.run.manifest_path.write_text(json.dumps(manifest))

    def tell(self, reporter: Reporter, *, dies_after: int | None = None) -> None:
        """Go on from the newest checkpoint to the end, or to the death of the process."""
        start = max(self._saved(), default=0)
        with contextlib.suppress(Killed):
            with RecordingReporter(self.run, reporter, start_step=start) as recorder:
                recorder.started(self._plan(start))
                for step in range(start + 1, self.num_steps + 1):
                    recorder.stepped(step_record(step))
                    if step % self.every == 0:
                        recorder.evaluated(evaluation_record(step))
                        recorder.saved(self._save(step))
                    if step == dies_after:
                        raise Killed
                recorder.evaluated(evaluation_record(self.num_steps))
            reporter.finished(self.result())

    def result(self, *, is_new: bool = True) -> TrainingResult:
        self.run.model_dir.mkdir(exist_ok=True)
        return TrainingResult(
            out=self.run.folder,
            model_dir=self.run.model_dir,
            num_steps=self.num_steps,
            final_evaluation=evaluation_record(self.num_steps),
            is_new=is_new,
        )

    def _plan(self, start: int) -> TrainingPlan:
        return TrainingPlan(
            num_steps=self.num_steps,
            steps_per_epoch=self.num_steps,
            num_pairs=20,
            num_evaluation_pairs=5,
            num_tokens_per_epoch=1000,
            num_parameters=100,
            head_ids=HEADS,
            start_step=start,
            out=self.run.folder,
        )

    def _save(self, step: int) -> CheckpointRecord:
        path = self.run.checkpoints_dir / f"step-{step:08d}"
        path.mkdir(exist_ok=True)
        for old in self._saved()[:-2]:
            (self.run.checkpoints_dir / f"step-{old:08d}").rmdir()
        return CheckpointRecord(step=step, path=path, evaluation=evaluation_record(step))

    def _saved(self) -> Sequence[int]:
        names = (path.name for path in self.run.checkpoints_dir.glob("step-*"))
        return sorted(int(name.removeprefix("step-")) for name in names)


def step_record(step: int) -> StepRecord:
    return StepRecord(
        step=step,
        epoch=step / 10,
        loss=1 / step,
        learning_rate=2e-05,
        num_tokens=100,
        num_computed=110,
        seconds=0.5,
        tokens_per_second=200.0,
        mfu=None,
        peak_memory_bytes=1 << 30,
        grad_norm=1.5,
    )


def evaluation_record(step: int) -> EvaluationRecord:
    return EvaluationRecord(
        step=step,
        loss=2 / step,
        r2_by_head={"kindness": 0.5, "privacy": None},
        accuracy_half=None,
        num_pairs=5,
        accuracy_half_by_head={"kindness": 0.75, "privacy": 0.5},
    )


class Outage:
    """A client of a tracker that is away for a while; the rest of the time it is the real one."""

    def __init__(self, client: object, error: Exception) -> None:
        self._client = client
        self._error = error
        self.is_away = False
        self.calls: list[str] = []

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.is_away = True
        yield
        self.is_away = False

    def __getattr__(self, name: str) -> object:
        self.calls.append(name)
        if self.is_away:
            raise self._error
        return getattr(self._client, name)
