"""The folder of one scoring: what it is a scoring of, and how far it is.

Layout: ``score.json`` (what the score key is a hash of, and notes for people), then as for ratings
one ``shard-00000.parquet`` per shard with its ``.sha256``, ``failed-00000.json``, ``locks/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from encore.errors import EncoreError, InputError
from encore.files import atomic_write_bytes
from encore.shards import (
    Shard,
    ShardFile,
    ShardState,
    inspect_file,
    plan_shards,
    run_key_of,
    run_key_of_file,
    shard_path,
)

SCORES_DIR = "scores"
MANIFEST_FILE = "score.json"
#: What the names of everything begin with that scoring writes, hidden temporary files too.
_OWN_NAMES = ("locks", "shard-", "failed-", ".shard-", ".score")
#: How a synthetic part is marked that is the model's, not the data's.
SYNTHETIC_MODEL = "model: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreManifest:
    """What `score.json` says: the score key and everything it is a hash of.

    Attributes:
        score_key: 16 hex digits.
        identity: Model digest, heads and their means, data and plan; no layout and no place.
        model: The model's name, for people; the key does not cover it.
        synthetic: What of data and model is synthetic, in words.
        versions: For people.
    """

    score_key: str
    identity: Mapping[str, Any]
    model: str
    synthetic: Sequence[str]
    versions: Mapping[str, str]

    @property
    def head_ids(self) -> tuple[str, ...]:
        """The heads in head order."""
        return tuple(self.identity["head_ids"])

    @property
    def mean(self) -> tuple[float, ...]:
        """What was subtracted from each head's targets: in no score."""
        return tuple(self.identity["mean"])

    @property
    def num_pairs(self) -> int:
        """Pairs in the plan."""
        return int(self.identity["plan"]["num_pairs"])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The plan."""
        return plan_shards(self.num_pairs, shard_size=int(self.identity["plan"]["shard_size"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStatus:
    """Every shard of one scoring, as its files say: in the plan's order."""

    folder: Path
    manifest: ScoreManifest
    shards: tuple[ShardFile | ShardState, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard validates."""
        return all(isinstance(shard, ShardFile) for shard in self.shards)

    @property
    def problems(self) -> tuple[ShardState, ...]:
        """The shards that are not done, and why."""
        return tuple(shard for shard in self.shards if isinstance(shard, ShardState))

    @property
    def valid_paths(self) -> tuple[Path, ...]:
        """The files of the shards that are done: the only ones anything may read."""
        return tuple(
            shard_path(self.folder, index)
            for index, shard in enumerate(self.shards)
            if isinstance(shard, ShardFile)
        )


def identity_of(
    *,
    model_digest: str,
    head_ids: Sequence[str],
    mean: Sequence[float],
    data_sha256: str,
    num_pairs: int,
    shard_size: int,
) -> dict[str, Any]:
    """Everything that the scores of a run and their cut into shards follow from.

    How sequences are laid out and on what they are computed change rounding alone.
    """
    return {
        "format": 1,
        "model_digest": model_digest,
        "head_ids": list(head_ids),
        "mean": list(mean),
        "data_sha256": data_sha256,
        "plan": {"order": "pair_id", "shard_size": shard_size, "num_pairs": num_pairs},
    }


def claim_folder(folder: Path, manifest: ScoreManifest) -> None:
    """Make a scoring's folder with its manifest, or find that it is this scoring's already.

    Raises:
        InputError: the folder holds another scoring, or something else.
        EncoreError: a damaged `score.json`.
    """
    if folder.is_dir() and (folder / MANIFEST_FILE).exists():
        found = read_manifest(folder)
        if found.score_key != manifest.score_key:
            raise InputError(
                f"{folder}: holds the scoring {found.score_key} (model {found.model}), not "
                f"{manifest.score_key}: another model, other data or another plan; name another "
                "folder with --out"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: this is a file; name a new directory with --out")
    if folder.is_dir():
        _refuse_other_things(folder, manifest)
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write_bytes(folder / MANIFEST_FILE, text.encode())


def _refuse_other_things(folder: Path, manifest: ScoreManifest) -> None:
    """A folder without a manifest may hold this scoring's own shards, whose manifest was lost."""
    names = sorted(path.name for path in folder.iterdir())
    other = [name for name in names if not name.startswith(_OWN_NAMES)]
    if other:
        raise InputError(
            f"{folder}: a directory with other things in it ({other[0]}); name a new or empty one "
            "with --out"
        )
    for path in sorted(folder.glob("shard-*.parquet")):
        key = run_key_of_file(path)
        if key not in (None, manifest.score_key):
            raise InputError(
                f"{path}: a shard of {key}, not of the scoring {manifest.score_key}; name another "
                "folder with --out"
            )


def read_manifest(folder: Path) -> ScoreManifest:
    """The manifest of a scoring.

    Raises:
        EncoreError: `score.json` is missing or damaged, or its key does not follow from it.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = ScoreManifest(**json.loads(path.read_text(encoding="utf-8")))
        if run_key_of(manifest.identity) != manifest.score_key:
            raise ValueError("its key is not the hash of its identity")
        if not manifest.shards or len(manifest.mean) != len(manifest.head_ids):
            raise ValueError("its plan or its heads are empty")
    except FileNotFoundError as error:
        raise EncoreError(
            f"{folder}: {MANIFEST_FILE} is missing; run `encore score` with the same parameters to "
            "write it again"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EncoreError(
            f"{path}: damaged ({type(error).__name__}: {error}); delete that file and run `encore "
            "score` with the same parameters: valid shards are kept"
        ) from error
    return manifest


def inspect_scores(folder: Path, manifest: ScoreManifest, shard: Shard) -> ShardFile | ShardState:
    """Where a shard of scores stands, from its files alone. The digest is always checked."""
    return inspect_file(folder, shard, run_key=manifest.score_key, num_rows=2 * shard.num_pairs)


def score_status(folder: Path) -> ScoreStatus:
    """Every planned shard of a scoring, checked.

    Raises:
        EncoreError: a damaged `score.json`.
    """
    manifest = read_manifest(folder)
    shards = tuple(inspect_scores(folder, manifest, shard) for shard in manifest.shards)
    return ScoreStatus(folder=folder, manifest=manifest, shards=shards)


def list_scores(study: Path) -> tuple[Path, ...]:
    """The folders of all scorings of a study, sorted by key."""
    return tuple(sorted(path.parent for path in study.glob(f"{SCORES_DIR}/*/{MANIFEST_FILE}")))


def choose_scores(study: Path, key: str | None = None) -> Path:
    """The only scoring of a study, or the one whose key begins with ``key``.

    Raises:
        InputError: none, several, or none that matches; the message lists them.
    """
    found = list_scores(study)
    if not found:
        raise InputError(f"{study}: no head scores yet; run `encore score` first")
    chosen = [folder for folder in found if folder.name.startswith(key or "")]
    if len(chosen) == 1:
        return chosen[0]
    listing = "; ".join(f"{folder.name} (model {_model_of(folder)})" for folder in found)
    raise InputError(
        f"{study}: {len(chosen) or 'no'} scorings match {key or 'any key'}; expected one of: "
        f"{listing}: name its folder"
    )


def _model_of(folder: Path) -> str:
    try:
        return read_manifest(folder).model
    except EncoreError:
        return f"{MANIFEST_FILE} damaged"
