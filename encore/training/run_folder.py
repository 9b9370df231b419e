"""The folder of one training run: manifest, lock, logs and result.

Files, in the order in which they are written:

- ``training.json``: the run key, the identity that the key is a digest of, and facts for people;
- ``embeddings/``: pooled states of the frozen backbone (method and head_init ``probe``);
- ``log.jsonl``, ``evaluations.jsonl``: one line of JSON for each step and each evaluation. No step
  occurs twice: a run that continues from a checkpoint first truncates both files to its step;
- ``checkpoints/step-00000100/``: see `encore.training.checkpoints`;
- ``model/``: the trained model;
- ``result.json``: number of steps, last evaluation, and the digest of each file of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encore.core.config import identity_of
from encore.core.errors import EncoreError, InputError
from encore.core.file_lock import lock_descriptor
from encore.core.files import atomic_write_bytes, file_sha256, fsync_path, json_text, write_json
from encore.core.folder_watches import tell_changed
from encore.core.leftovers import is_left_behind
from encore.core.shown_record import ShownRecord
from encore.runs.identity import differences, run_key_of
from encore.training.training_options import TrainingRunConfig

TRAINING_DIR = "training"
MANIFEST_FILE = "training.json"
RESULT_FILE = "result.json"
LOG_FILE = "log.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
_LOCK_FILE = ".lock"
#: Fields of a backbone's config that locate files. The files are identified by their content.
_LOCATION_FIELDS = frozenset({"model", "revision", "chat_template"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The identity of a training run, and its folder.

    Attributes:
        folder: Folder of the run.
        identity: Everything that the trained weights depend on; see `run_identity`.
    """

    folder: Path
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return the run key: 16 hex digits that follow from the identity alone."""
        return run_key_of(self.identity)

    @property
    def checkpoints_dir(self) -> Path:
        """Return the folder with one folder per checkpoint."""
        return self.folder / "checkpoints"

    @property
    def embeddings_dir(self) -> Path:
        """Return the folder of pooled states, which a continued run reads again."""
        return self.folder / "embeddings"

    @property
    def model_dir(self) -> Path:
        """Return the folder of the trained model."""
        return self.folder / "model"


def run_identity(
    config: TrainingRunConfig, *, backbone: Mapping[str, Any], data_sha256: str
) -> dict[str, Any]:
    """Return everything that the trained weights depend on. It contains no path of a machine.

    Args:
        config: Settings of the training and of the backbone.
        backbone: Identity of the backbone, from `encore.model.load_backbone.backbone_identity`. Its
            name is left out, because it is only the name of a folder.
        data_sha256: Digest of the training data (`TrainingExamples.digest`).
    """
    settings = identity_of(config.backbone)
    return {
        "config": identity_of(config.training),
        "backbone": {name: settings[name] for name in settings if name not in _LOCATION_FIELDS},
        "backbone_identity": {name: backbone[name] for name in backbone if name != "name"},
        "data_sha256": data_sha256,
    }


@contextlib.contextmanager
def opened_run(run: TrainingRun, *, metadata: Mapping[str, Any]) -> Iterator[None]:
    """Create or check the folder of a run, and lock it for this process inside the block.

    Temporary files of killed processes are deleted. The operating system releases the lock even if
    the process is killed.

    Args:
        run: Run to work on; its folder is created if it does not exist.
        metadata: Facts for people to write beside the identity (versions, notes).

    Raises:
        InputError: The folder holds another run; the message names the first difference.
        EncoreError: Another process trains in this folder, or `training.json` is damaged.
    """
    folder = run.folder
    contents = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    names = {path.name for path in contents}
    if names and not names & {MANIFEST_FILE, _LOCK_FILE}:
        raise EncoreError(
            f"{folder}: no training run's folder (it is or holds {min(names)}); name a new or "
            "empty one with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as stream:
        lock = lock_descriptor(stream.fileno(), folder=folder)
        if lock == "busy":
            raise EncoreError(
                f"{folder}: another process is training here; wait for it or end it, then run "
                "this again"
            )
        manifest_path = folder / MANIFEST_FILE
        if manifest_path.exists():
            recorded_identity = _read_identity(manifest_path)
            check_same_run(recorded_identity, run.identity, path=folder)
        else:
            write_json(manifest_path, {"run_key": run.key, "identity": run.identity, **metadata})
        for parent in (folder, run.checkpoints_dir, *run.embeddings_dir.glob("*")):
            for path in (*parent.glob(".*.tmp-*"), *parent.glob(".*.old-*")):
                if lock == "held" or is_left_behind(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def _read_identity(path: Path) -> dict[str, Any]:
    """Read the identity that a run's manifest records, and check its digest."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        identity: dict[str, Any] = manifest["identity"]
        if run_key_of(identity) != manifest["run_key"]:
            raise ValueError("its run key is not the digest of its identity")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EncoreError(
            f"{path}: damaged ({error}); delete that file and run the same command again: "
            "checkpoints say themselves which run they belong to"
        ) from error
    return identity


def check_same_run(recorded: Any, identity: Any, *, path: Path) -> None:
    """Raise if the identity recorded in a file or folder is not that of this run.

    Args:
        recorded: Identity found on disk.
        identity: Identity of this run.
        path: File or folder that holds the recorded identity, for the message.

    Raises:
        InputError: They differ; the message names the first difference with both values.
    """
    for name, recorded_value, value in differences(recorded, identity):
        raise InputError(
            f"{path} belongs to another training run: {name} is {recorded_value} there and {value} "
            "here; give the same settings to continue it, or another --out to train anew"
        )


def write_result(run: TrainingRun, *, num_steps: int, evaluation: Mapping[str, Any] | None) -> None:
    """Write `result.json`, which marks the run as finished: steps, evaluation, model digests."""
    model = {
        path.relative_to(run.model_dir).as_posix(): {"sha256": file_sha256(path)}
        for path in sorted(run.model_dir.rglob("*"))
        if path.is_file()
    }
    content = {"run_key": run.key, "num_steps": num_steps, "evaluation": evaluation}
    tell_changed(run.folder / LOG_FILE, run.folder / EVALUATIONS_FILE)
    write_json(run.folder / RESULT_FILE, {**content, "model": model})


def read_result(run: TrainingRun) -> dict[str, Any] | None:
    """Read `result.json`; return None if the run has not finished or its model is damaged."""
    try:
        content = json.loads((run.folder / RESULT_FILE).read_text(encoding="utf-8"))
        is_intact = content["run_key"] == run.key and all(
            file_sha256(run.model_dir / name) == file["sha256"]
            for name, file in content["model"].items()
        )
        return {**content, "num_steps": int(content["num_steps"])} if is_intact else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


# --- metrics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Metrics of one optimizer step. A rerun repeats all but times, speeds and memory.

    Attributes:
        step: Number of the step, from 1.
        epoch: Passes over the training pairs after this step, e.g. 0.25.
        loss: Mean loss of the step's responses (multi-head) or pairs (bradley-terry), or the
            weighted sum of both (with head 0, joint), before the update.
        learning_rate: Learning rate of this step.
        num_tokens: Tokens of all responses, with shared tokens counted for each of them.
        num_computed: Computed token positions; padding adds positions, shared prompts save some.
        seconds: Duration of the step, without evaluation and checkpoints.
        tokens_per_second: ``num_tokens`` per second.
        mfu: Share of the device's peak that useful arithmetic reached, without recomputation; None
            if the peak is not known, as on a CPU.
        peak_memory_bytes: Most memory so far: allocated on the GPU, or resident in the process.
        grad_norm: Norm of the whole gradient before clipping; None if the optimizer has none.
        num_pairs: Number of pairs of the step.
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
        """Return loss, speed and memory as text."""
        memory = f"{self.peak_memory_bytes / 2**30:.1f} GiB"
        return f"loss {self.loss:.4g}, {self.tokens_per_second:,.0f} tokens/s, {memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """Metrics of the model on the held-out pairs after a step.

    Attributes:
        step: Number of steps before the evaluation.
        loss: Training loss of the held-out responses or pairs; None if none has a target.
        r2_by_head: R² of each head: 1 - squared error / squared deviation from the targets' mean,
            over the held-out responses with a rating. None if these ratings are constant or
            missing. Without head 0; empty for bradley-terry.
        accuracy_half: Share of held-out pairs that a bradley-terry model or head 0 ranks as people
            did, with ties counted half; None for heads of rules alone, which have no weights during
            training.
        accuracy_half_by_head: The same share for the ranking by each head alone.
        num_pairs: Number of held-out pairs.
        seconds: Duration of the evaluation.
    """

    step: int
    loss: float | None
    r2_by_head: dict[str, float | None]
    accuracy_half: float | None
    num_pairs: int
    accuracy_half_by_head: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0


LogRecord = StepRecord | EvaluationRecord


def append_record(folder: Path, record: LogRecord) -> None:
    """Append one line to a log of a run's folder. NaN and infinity are refused."""
    name = LOG_FILE if isinstance(record, StepRecord) else EVALUATIONS_FILE
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(json_text(dataclasses.asdict(record), indent=None))


def sync_logs(folder: Path) -> None:
    """Flush both logs to the disk, so that a checkpoint written later is not ahead of them."""
    fsync_path(folder / LOG_FILE)
    fsync_path(folder / EVALUATIONS_FILE)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log in order, up to the first incomplete line.

    A killed process may leave half a line at the end. A missing file has no records.
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


def truncate_logs(folder: Path, *, step: int) -> None:
    """Remove the records after a step, and incomplete lines, from both logs."""
    for name in (LOG_FILE, EVALUATIONS_FILE):
        records = [record for record in read_log(folder / name) if record["step"] <= step]
        lines = (json_text(record, indent=None) for record in records)
        atomic_write_bytes(folder / name, "".join(lines).encode())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult(ShownRecord):
    """A finished training run.

    Attributes:
        out: Folder of the run.
        run_key: Key of the run, 16 hex digits that follow from settings and data.
        model_dir: Folder of the trained model.
        num_steps: Number of steps of the whole run, earlier calls included.
        final_evaluation: Evaluation after the last step; None if no pairs were held out.
        num_set_aside: Number of pairs that the chat template refuses; they are left out.
        notes: Sentences about the data: pairs left out, texts cut, ratings missing.
        synthetic: Names of the synthetic parts of data and backbone; empty if there are none.
        is_new: False if the run had finished before and nothing was done.
        seconds: Duration of this call.
    """

    out: Path
    run_key: str
    model_dir: Path
    num_steps: int
    final_evaluation: EvaluationRecord | None
    num_set_aside: int = 0
    notes: tuple[str, ...] = ()
    synthetic: tuple[str, ...] = ()
    is_new: bool = True
    seconds: float = 0.0
