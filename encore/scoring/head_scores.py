"""Head scores on disk: their columns, the manifest of a scoring, and reading them back.

From here every weighting of the heads is arithmetic. The grain of the table is one row per
(source, pair_id, response). Suffixes: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from encore.buckets.study_mirror import study_path
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.shown_record import ShownRecord
from encore.data.records import RESPONSES
from encore.data.schemas import text_columns
from encore.data.study import is_study
from encore.runs.manifest import RunManifest, list_runs, only_run
from encore.runs.shard_files import RunStatus, run_status
from encore.weighting.preference_head import has_preference_head, rule_heads
from encore.weighting.weight_vector import head_weights

SCORES_DIR = "scores"
#: Prefix of a synthetic part that belongs to the model, not to the data.
SYNTHETIC_MODEL = "model: "

#: Columns that identify a row; every further column is a head's score. ``subset`` is null where
#: a data set has no subsets.
KEY_FIELDS = (
    *text_columns("pair_id", "source"),
    pa.field("subset", pa.string(), nullable=True),
    *text_columns("response"),
)
KEY_NAMES = tuple(field.name for field in KEY_FIELDS)

_Objects = NDArray[np.object_]


def head_scores_schema(head_ids: Sequence[str]) -> pa.Schema:
    """Return the schema of head scores: the key columns, then a float32 column per head id.

    A score is null if the model's chat template refuses the pair.

    Raises:
        InputError: A head is called like a key column, or two heads have one name.
    """
    for head_id in head_ids:
        if head_id in KEY_NAMES or list(head_ids).count(head_id) > 1:
            raise InputError(
                f"head {head_id!r}: a column of head scores already has this name; expected heads "
                f"with names of their own, none of {', '.join(KEY_NAMES)}"
            )
    heads = [pa.field(head_id, pa.float32(), nullable=True) for head_id in head_ids]
    return pa.schema([*KEY_FIELDS, *heads])


class ScoreManifest(RunManifest):
    """Manifest of a scoring.

    The identity holds the model's digest, the heads and their means, data and plan. The layout of
    sequences and the device change rounding alone and are not part of it.

    Attributes:
        score_key: Key of the scoring, a hash of its identity.
        model: Name of the model, for people.
        split: Seed and share (``evaluation_share``) by which the model's training held out
            prompts, by content hash (`encore.training.training_examples.split`). None if that is
            not known, or nothing was held out.
        num_set_aside: Number of pairs that the chat template refuses; their scores are null.
        set_aside_reasons: Number of these pairs by the template's reason.
        num_partly_read: Number of pairs of which the template leaves out a turn.
    """

    FILE: ClassVar[str] = "score.json"
    KEY_FIELD: ClassVar[str] = "score_key"
    COMMAND: ClassVar[str] = "encore score"
    DOING: ClassVar[str] = "scoring"
    DONE: ClassVar[str] = "scored"
    UNIT: ClassVar[str] = "responses"

    score_key: str
    model: str
    split: dict[str, int | float] | None = None
    num_set_aside: int = 0
    set_aside_reasons: dict[str, int] = Field(default_factory=dict)
    num_partly_read: int = 0

    @property
    def title(self) -> str:
        """Return the model's name, for a list of runs."""
        return f"model {self.model}"

    @property
    def rows_per_pair(self) -> int:
        """Return 2: one row for each response."""
        return len(RESPONSES)

    @property
    def head_ids(self) -> tuple[str, ...]:
        """Return the head ids in head order."""
        return tuple(self.identity["head_ids"])

    @property
    def mean(self) -> tuple[float, ...]:
        """Return the mean of each head's targets, which training subtracted from them."""
        return tuple(self.identity["mean"])


ScoreStatus = RunStatus[ScoreManifest]


def score_statuses(study: Path) -> tuple[ScoreStatus, ...]:
    """Check every scoring of a study and return the results, sorted by key.

    Raises:
        EncoreError: A `score.json` is missing or damaged.
    """
    folders = list_runs(study / SCORES_DIR, ScoreManifest)
    return tuple(run_status(folder, ScoreManifest) for folder in folders)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeadScores(ShownRecord):
    """The scores of both responses of P pairs under R heads, raw and centred.

    Attributes:
        pair_id_P: Id of each pair, text, shape [P].
        source_P: Data set of each pair, text, shape [P].
        subset_P: Part of the data set, text or None, shape [P].
        score_P2R: Scores, the chosen response first; float32, shape [P, 2, R]. NaN for a pair that
            was set aside: the model's chat template refuses it.
        head_ids: Ids of the R heads, in head order.
        mean_R: Mean of each head's targets, which training subtracted; shape [R]. Add it to a
            score before people see it.
    """

    pair_id_P: _Objects
    source_P: _Objects
    subset_P: _Objects
    score_P2R: NDArray[np.float32]
    head_ids: tuple[str, ...]
    mean_R: NDArray[np.float64]

    @property
    def num_pairs(self) -> int:
        """Return the number of pairs, P."""
        return len(self.pair_id_P)

    @property
    def scored(self) -> HeadScores:
        """Return the scores of the pairs that have any: without those that were set aside."""
        return self.take(np.flatnonzero(~np.isnan(self.score_P2R).any(axis=(1, 2))))

    def take(self, row_N: NDArray[np.int64]) -> HeadScores:
        """Return the scores of the pairs with these indices, in their order."""
        names = ("pair_id_P", "source_P", "subset_P", "score_P2R")
        return replace(self, **{name: getattr(self, name)[row_N] for name in names})

    @property
    def of_rules(self) -> HeadScores:
        """Return the scores of the rules' heads: all but head 0, if the model has one."""
        first = int(has_preference_head(self.head_ids))
        return replace(
            self,
            score_P2R=self.score_P2R[:, :, first:],
            head_ids=rule_heads(self.head_ids),
            mean_R=self.mean_R[first:],
        )

    def compose(self, weights: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the weighted sum of the heads' scores, shape [P, 2] (paper, eq. "encore").

        A plain export with the same weights gives the same rewards.

        Args:
            weights: Weight of every head, by head id; with head 0 those of
                `encore.weighting.head_mix.mix_heads`.

        Raises:
            InputError: See `encore.weighting.weight_vector.head_weights`.
        """
        return self.score_P2R.astype(np.float64) @ head_weights(weights, head_ids=self.head_ids)


def read_head_scores(path: str | Path) -> HeadScores:
    """Read the head scores of one scoring.

    Args:
        path: A study with one scoring, or a folder that `encore score` wrote.

    Raises:
        InputError: The study has no scoring, or several.
        StudyIncompleteError: Shards of the scoring are missing or damaged.
        EncoreError: `score.json` is missing or damaged.
    """
    path = study_path(path)
    if is_study(path):
        path = only_run(path / SCORES_DIR, ScoreManifest)
    status = run_status(path, ScoreManifest)
    if problems := status.unfinished:
        raise StudyIncompleteError(
            f"{path}: {len(problems)} of {len(status.shards)} shards are not done (shard "
            f"{problems[0].index}: {problems[0].state}); run the same `encore score` again"
        )
    head_ids = status.manifest.head_ids
    table = pa.concat_tables(
        [pq.read_table(shard_path, partitioning=None) for shard_path in status.paths]
    )
    score_NR = np.stack([table[head_id].to_numpy() for head_id in head_ids], axis=1)
    pair_id_P, source_P, subset_P = (
        np.array(table[key].to_pylist()[::2], dtype=np.object_)
        for key in ("pair_id", "source", "subset")
    )
    return HeadScores(
        pair_id_P=pair_id_P,
        source_P=source_P,
        subset_P=subset_P,
        score_P2R=score_NR.reshape(-1, 2, len(head_ids)),
        head_ids=head_ids,
        mean_R=np.array(status.manifest.mean, dtype=np.float64),
    )
