"""What a training run's files say happened so far: the source for what a tracker lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.data.study import open_study
from encore.shards import list_runs, read_run
from encore.training.log import read_log
from encore.training.records import CheckpointRecord
from encore.training.run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """A run folder's records up to a step.

    Attributes:
        run_key: Of the run.
        manifest: What `training.json` says.
        steps: Step records as JSON, by step.
        evaluations: Evaluation records as JSON, by step.
        checkpoints: Those that are on the disk now.
    """

    run_key: str
    manifest: Mapping[str, Any]
    steps: Mapping[int, Mapping[str, Any]]
    evaluations: Mapping[int, Mapping[str, Any]]
    checkpoints: tuple[CheckpointRecord, ...]


def read_run_files(out: Path, *, last_step: int) -> RunFiles:
    """The records of a run folder up to the step that the next process goes on from.

    Raises:
        OSError: `training.json` cannot be read; the training run writes it before anything else.
    """
    run = TrainingRun(folder=out, identity={})
    manifest = json.loads(run.manifest_path.read_text(encoding="utf-8"))
    found = (int(path.name.removeprefix("step-")) for path in run.checkpoints_dir.glob("step-*"))
    return RunFiles(
        run_key=manifest["run_key"],
        manifest=manifest,
        steps=_by_step(run.log_path, last_step),
        evaluations=_by_step(run.evaluations_path, last_step),
        checkpoints=tuple(
            CheckpointRecord(step=step, path=run.checkpoints_dir / f"step-{step:08d}")
            for step in sorted(found)
            if step <= last_step
        ),
    )


def rating_params(study: Path, *, run: str | None, judge: str | None) -> dict[str, str]:
    """Digests of the rating run that is learned from: prompt, rules, judge; empty if not one.

    Args:
        study: The study's directory.
        run: A prefix of the run's key.
        judge: The name of its judge.
    """
    folder = open_study(study).ratings_dir
    found = [read_run(path) for path in list_runs(folder) if path.name.startswith(run or "")]
    found = [manifest for manifest in found if judge in (None, manifest.judge)]
    if len(found) != 1:
        return {}
    [manifest] = found
    return {
        "ratings.run_key": manifest.run_key,
        "ratings.judge": manifest.judge,
        "ratings.rule_set": manifest.rule_set,
        "ratings.rules_sha256": str(manifest.identity["rules_sha256"]),
        "ratings.prompt_sha256": str(manifest.identity["prompt_sha256"]),
    }


def _by_step(path: Path, last_step: int) -> dict[int, Mapping[str, Any]]:
    return {record["step"]: record for record in read_log(path) if record["step"] <= last_step}
