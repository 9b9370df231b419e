"""Scorings on disk: the table of head scores, a scoring's manifest, and which ones a study has.

The grain of the table is one row per (source, pair_id, response).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from encore import runs
from encore.data.records import RESPONSES
from encore.errors import InputError
from encore.runs import RunManifest, RunStatus

SCORES_DIR = "scores"
#: Begins a synthetic part that is the model's, not the data's.
SYNTHETIC_MODEL = "model: "

#: What identifies a row; every further column is a head's score. ``subset`` is null where a data
#: set has none.
KEY_FIELDS = (
    pa.field("pair_id", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("subset", pa.string(), nullable=True),
    pa.field("response", pa.string(), nullable=False),
)
KEY_NAMES = tuple(field.name for field in KEY_FIELDS)


def head_scores_schema(head_ids: Sequence[str]) -> pa.Schema:
    """Columns of the scores of these heads: the keys, then a float32 column per head, by its id.

    Raises:
        InputError: a head called like a key column, or two heads of one name.
    """
    for head_id in head_ids:
        if head_id in KEY_NAMES or list(head_ids).count(head_id) > 1:
            raise InputError(
                f"head {head_id!r}: a column of head scores already has this name; expected heads "
                f"with names of their own, none of {', '.join(KEY_NAMES)}"
            )
    heads = [pa.field(head_id, pa.float32(), nullable=False) for head_id in head_ids]
    return pa.schema([*KEY_FIELDS, *heads])


def head_ids_of(schema: pa.Schema, *, name: str) -> tuple[str, ...]:
    """The heads of a table of head scores: its columns of numbers beside the keys.

    Args:
        schema: Of the table.
        name: The file, for messages.

    Raises:
        InputError: a key column is missing, a further column holds no numbers, there is no head.
    """
    missing = [key for key in KEY_NAMES if key not in schema.names]
    heads = [field for field in schema if field.name not in KEY_NAMES]
    wrong = [field for field in heads if not pa.types.is_floating(field.type)]
    if missing or wrong or not heads:
        problem = (
            f"column {missing[0]!r} is missing"
            if missing
            else f"column {wrong[0].name!r} is {wrong[0].type}"
            if wrong
            else "there is no column of scores"
        )
        raise InputError(
            f"{name}: no head scores: {problem}; expected {', '.join(KEY_NAMES)} and one column of "
            "floats per head, as `encore score` writes them"
        )
    return tuple(field.name for field in heads)


class ScoreManifest(RunManifest):
    """The manifest of a scoring; ``model`` is the model's name, for people.

    The identity holds the model's digest, the heads and their means, data and plan. How sequences
    are laid out and on what they are computed change rounding alone and are not part of it.
    """

    FILE: ClassVar[str] = "score.json"
    KEY_FIELD: ClassVar[str] = "score_key"
    COMMAND: ClassVar[str] = "encore score"
    DOING: ClassVar[str] = "scoring"
    DONE: ClassVar[str] = "scored"

    score_key: str
    model: str

    @property
    def title(self) -> str:
        """The model."""
        return f"model {self.model}"

    @property
    def head_ids(self) -> tuple[str, ...]:
        """The heads in head order."""
        return tuple(self.identity["head_ids"])

    @property
    def mean(self) -> tuple[float, ...]:
        """What was subtracted from each head's targets: in no score."""
        return tuple(self.identity["mean"])

    @property
    def rows_per_pair(self) -> int:
        """One for each response."""
        return len(RESPONSES)

    def check(self, run_dir: Path, /) -> None:
        """Refuse a manifest whose key or heads do not fit its identity."""
        super().check(run_dir)
        if not self.head_ids or len(self.mean) != len(self.head_ids):
            raise ValueError("its heads are empty, or their means are missing")


ScoreStatus = RunStatus[ScoreManifest]


def score_status(run_dir: Path) -> ScoreStatus:
    """Every planned shard of a scoring, checked.

    Raises:
        EncoreError: `score.json` is missing or damaged.
    """
    return runs.run_status(run_dir, ScoreManifest)


def list_scores(study: Path) -> tuple[Path, ...]:
    """The folders of all scorings of a study, sorted by key."""
    return tuple(sorted(path.parent for path in study.glob(f"{SCORES_DIR}/*/{ScoreManifest.FILE}")))


def choose_scores(study: Path, key: str | None = None) -> Path:
    """The only scoring of a study, or the one whose key begins with ``key``.

    Raises:
        InputError: None, several, or none that matches; the message lists them.
    """
    found = list_scores(study)
    if not found:
        raise InputError(f"{study}: no head scores yet; run `encore score` first")
    chosen = [folder for folder in found if folder.name.startswith(key or "")]
    if len(chosen) == 1:
        return chosen[0]
    listing = "; ".join(runs.describe_run(folder, ScoreManifest) for folder in found)
    raise InputError(
        f"{study}: {len(chosen) or 'no'} scorings match {key or 'any key'}; expected one of: "
        f"{listing}: name its folder"
    )
