"""The folder of one training run: which run it is, which process trains in it, how it ended.

Files, in the order in which they are written:

- ``training.json``: the run key, the identity that it is a digest of, and notes for people;
- ``plan.json``: what the newest process set out to do (steps, pairs, tokens, parameters);
- ``embeddings/``: hidden states of the frozen backbone (method and head_init ``probe``);
- ``log.jsonl``, ``evaluations.jsonl``: see `encore.training.metrics_log`;
- ``checkpoints/step-00000100/``: see `encore.training.checkpoints`;
- ``model/``: the trained model;
- ``result.json``: steps, last evaluation and the digest of each file of the model.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.config import identity_of
from encore.errors import EncoreError, InputError
from encore.files import atomic_write_bytes, file_sha256
from encore.model.config import BackboneConfig
from encore.runs import run_key_of
from encore.training.config import TrainingConfig

TRAINING_DIR = "training"
MANIFEST_FILE = "training.json"
PLAN_FILE = "plan.json"
RESULT_FILE = "result.json"
_LOCK_FILE = ".lock"
#: Fields that say where something lies on this machine; what lies there is identified by content.
_PLACES = frozenset({"model", "revision", "chat_template"})
_MISSING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run and where it is. ``key`` follows from ``identity`` alone."""

    folder: Path
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """16 hex digits."""
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
    config: TrainingConfig,
    *,
    backbone: BackboneConfig,
    backbone_identity: Mapping[str, Any],
    data_sha256: str,
) -> dict[str, Any]:
    """Everything that the weights of a run follow from, and no machine's path.

    A backbone's name is its folder's, so it is left out: its content is what counts.
    """
    settings = identity_of(backbone)
    return {
        "config": identity_of(config),
        "backbone": {name: settings[name] for name in settings if name not in _PLACES},
        "backbone_identity": {
            name: value for name, value in backbone_identity.items() if name != "name"
        },
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
    if folder.exists() and not folder.is_dir():
        raise EncoreError(f"{folder}: this is a file; name a new directory with --out")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {MANIFEST_FILE, _LOCK_FILE}:
        raise EncoreError(
            f"{folder}: a directory with other things in it ({min(names)}); name a new or empty "
            "one with --out"
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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one of the folder's JSON files, whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write_bytes(path, text.encode())


def write_result(run: TrainingRun, *, num_steps: int, evaluation: Mapping[str, Any] | None) -> None:
    """Say that the run has ended, with the digest of every file of its model."""
    files = sorted(path for path in run.model_dir.rglob("*") if path.is_file())
    digests = {
        path.relative_to(run.model_dir).as_posix(): {
            "num_bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in files
    }
    content = {"run_key": run.key, "num_steps": num_steps, "evaluation": evaluation}
    write_json(run.folder / RESULT_FILE, {**content, "model": digests})


def read_result(run: TrainingRun) -> dict[str, Any] | None:
    """What `write_result` wrote; None while the run has not ended or a model file is damaged."""
    try:
        content = json.loads((run.folder / RESULT_FILE).read_text(encoding="utf-8"))
        is_whole = content["run_key"] == run.key and all(
            (run.model_dir / name).stat().st_size == file["num_bytes"]
            and file_sha256(run.model_dir / name) == file["sha256"]
            for name, file in content["model"].items()
        )
        return {**content, "num_steps": int(content["num_steps"])} if is_whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def first_difference(recorded: Any, wanted: Any) -> str | None:
    """The first place where two JSON values differ, with both; None where they are equal.

    Example: ``config.learning_rate is 2e-05 there and 1e-05 here``.
    """
    # Tuples become what JSON makes of them; names are looked at in their order.
    there, here = (json.loads(json.dumps(value, sort_keys=True)) for value in (recorded, wanted))
    return next(_differences(there, here, name=""), None)


def _differences(there: Any, here: Any, *, name: str) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in (*there, *(key for key in here if key not in there)):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key, _MISSING), here.get(key, _MISSING), name=inner)
    elif there != here:
        shown = [
            value if value == _MISSING else json.dumps(value, ensure_ascii=False)
            for value in (there, here)
        ]
        yield f"{name} is {shown[0]} there and {shown[1]} here"


def refuse_other_identity(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], *, place: str
) -> None:
    """Refuse to continue what another configuration began.

    Args:
        recorded: Which run is on disk.
        wanted: Which run is asked for now.
        place: Which file or folder holds the former, for the message.

    Raises:
        InputError: They differ: the first place, both values, the next step.
    """
    if difference := first_difference(recorded, wanted):
        raise InputError(
            f"{place} belongs to another training run: {difference}; give the same settings to "
            "continue it, or another --out to train anew"
        )


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
    refuse_other_identity(recorded, run.identity, place=str(run.folder))
