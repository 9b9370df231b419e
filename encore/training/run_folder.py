"""The folder of one training run: which run it is, who trains in it, its metrics, how it ended.

Files, in the order in which they are written:

- ``training.json``: the run key, the identity that it is a digest of, and notes for people;
- ``embeddings/``: hidden states of the frozen backbone (method and head_init ``probe``);
- ``log.jsonl``, ``evaluations.jsonl``: a line each step and each evaluation, a record below as
  JSON. No step is there twice: a run that goes on from a checkpoint first cuts both files back to
  the checkpoint's step;
- ``checkpoints/step-00000100/``: see `encore.training.checkpoints`;
- ``model/``: the trained model;
- ``result.json``: steps, last evaluation and the digest of each file of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encore.core.config import identity_of
from encore.core.errors import EncoreError, InputError
from encore.core.files import atomic_write_bytes, file_sha256, fsync_path, write_json
from encore.runs.run_files import differences, run_key_of
from encore.training.training_config import TrainConfig

TRAINING_DIR = "training"
MANIFEST_FILE = "training.json"
RESULT_FILE = "result.json"
LOG_FILE = "log.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
_LOCK_FILE = ".lock"
#: Fields that say where something lies on this machine; what lies there is identified by content.
_PLACES = frozenset({"model", "revision", "chat_template"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run and where it is. ``key`` (16 hex digits) follows from ``identity`` alone."""

    folder: Path
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """See above."""
        return run_key_of(self.identity)

    @property
    def checkpoints_dir(self) -> Path:
        """One folder per checkpoint."""
        return self.folder / "checkpoints"

    @property
    def embeddings_dir(self) -> Path:
        """Frozen hidden states, kept between attempts."""
        return self.folder / "embeddings"

    @property
    def model_dir(self) -> Path:
        """The trained model."""
        return self.folder / "model"


def run_identity(
    config: TrainConfig, *, origin: Mapping[str, Any], data_sha256: str
) -> dict[str, Any]:
    """Everything that the weights of a run follow from, and no machine's path.

    A backbone's name is its folder's, so it is left out: its content is what counts. ``origin`` is
    the backbone's, as `encore.model.loading.backbone_identity` says it.
    """
    settings = identity_of(config.backbone)
    return {
        "config": identity_of(config.training),
        "backbone": {name: settings[name] for name in settings if name not in _PLACES},
        "backbone_identity": {name: origin[name] for name in origin if name != "name"},
        "data_sha256": data_sha256,
    }


@contextlib.contextmanager
def opened_run(run: TrainingRun, *, about: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run's folder for this process alone: made, checked to be this run's, swept.

    The lock is the operating system's and is released even when its holder is killed.

    Args:
        run: The run; its folder is made if it is not there.
        about: What people may want to know of it besides the identity (versions, notes).

    Raises:
        InputError: The folder holds another run: the first difference.
        EncoreError: Another process trains here, or `training.json` is damaged.
    """
    folder = run.folder
    inside = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    names = {path.name for path in inside}
    if names and not names & {MANIFEST_FILE, _LOCK_FILE}:
        raise EncoreError(
            f"{folder}: no training run's folder (it is or holds {min(names)}); name a new or "
            "empty one with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EncoreError(
                f"{folder}: another process is training here; wait for it or end it, then run "
                "this again"
            ) from error
        _claim(run, about)
        for place in (folder, run.checkpoints_dir, *run.embeddings_dir.glob("*")):
            for path in (*place.glob(".*.tmp-*"), *place.glob(".*.old-*")):  # of killed processes
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def _claim(run: TrainingRun, about: Mapping[str, Any]) -> None:
    """Write `training.json`, or compare it with this run."""
    path = run.folder / MANIFEST_FILE
    if not path.exists():
        write_json(path, {"run_key": run.key, "identity": run.identity, **about})
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        recorded, key = content["identity"], content["run_key"]
        if run_key_of(recorded) != key:
            raise ValueError("its run key is not the digest of its identity")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EncoreError(
            f"{path}: damaged ({error}); delete that file and run the same command again: "
            "checkpoints say themselves which run they belong to"
        ) from error
    refuse_other_identity(recorded, run.identity, place=run.folder)


def refuse_other_identity(recorded: Any, wanted: Any, *, place: Path) -> None:
    """Refuse to continue what another configuration began in a file or folder.

    Raises:
        InputError: They differ: the first place, both values, the next step.
    """
    for name, there, here in differences(recorded, wanted):
        raise InputError(
            f"{place} belongs to another training run: {name} is {there} there and {here} here; "
            "give the same settings to continue it, or another --out to train anew"
        )


def write_result(run: TrainingRun, *, num_steps: int, evaluation: Mapping[str, Any] | None) -> None:
    """Say that the run has ended, with the digest of every file of its model."""
    model = {
        path.relative_to(run.model_dir).as_posix(): {"sha256": file_sha256(path)}
        for path in sorted(run.model_dir.rglob("*"))
        if path.is_file()
    }
    content = {"run_key": run.key, "num_steps": num_steps, "evaluation": evaluation}
    write_json(run.folder / RESULT_FILE, {**content, "model": model})


def read_result(run: TrainingRun) -> dict[str, Any] | None:
    """What `write_result` wrote; None while the run has not ended or a model file is damaged."""
    try:
        content = json.loads((run.folder / RESULT_FILE).read_text(encoding="utf-8"))
        is_whole = content["run_key"] == run.key and all(
            file_sha256(run.model_dir / name) == file["sha256"]
            for name, file in content["model"].items()
        )
        return {**content, "num_steps": int(content["num_steps"])} if is_whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


# --- metrics ------------------------------------------------------------------------------------


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
        tokens_per_second: Real tokens.
        mfu: Share of the device's peak that the model's arithmetic used, recomputation not counted;
            None where the peak is not known, as on a CPU.
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
        memory = f"{self.peak_memory_bytes / 2**30:.1f} GiB"
        return f"loss {self.loss:.4g}, {self.tokens_per_second:,.0f} tokens/s, {memory}"


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


Record = StepRecord | EvaluationRecord


def append_record(folder: Path, record: Record) -> None:
    """Add one line to a log of a run's folder; NaN and infinity are refused."""
    name = LOG_FILE if isinstance(record, StepRecord) else EVALUATIONS_FILE
    line = json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False)
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def sync_logs(folder: Path) -> None:
    """Wait until both logs are on the disk: before a checkpoint, which must not be ahead."""
    fsync_path(folder / LOG_FILE)
    fsync_path(folder / EVALUATIONS_FILE)


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


def cut_logs(folder: Path, *, step: int) -> None:
    """Take the records after a step off both logs, whole lines only, each by one rename."""
    for name in (LOG_FILE, EVALUATIONS_FILE):
        records = [record for record in read_log(folder / name) if record["step"] <= step]
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        atomic_write_bytes(folder / name, "".join(lines).encode())


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
