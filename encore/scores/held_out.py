"""Which of the scored pairs a model cannot have learnt from: those its training held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from encore.data.pairs import iter_pairs
from encore.data.records import PreferencePair
from encore.data.study import open_study
from encore.scores.accuracy import HeadAccuracy, head_accuracies
from encore.scores.head_scores import HeadScores, read_head_scores
from encore.training.groups import group_of, place_of

if TYPE_CHECKING:
    from encore.scores.driver import ScoreResult

# Suffix: P pairs.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSplit:
    """How a model's training parted prompts by content hash (`encore.training.splits.split`).

    Attributes:
        evaluation_share: Prompts drawn below it were held out.
        seed: Of the draw.
    """

    evaluation_share: float
    seed: int

    def holds_out(self, pair: PreferencePair) -> bool:
        """Whether a pair would have been held out, whatever data the model was trained on."""
        return place_of(group_of(pair), seed=self.seed) < self.evaluation_share


def trained_split(metadata: Mapping[str, Any]) -> TrainedSplit | None:
    """What a model's metadata says of its split; None where it says nothing, or held nothing out.

    Args:
        metadata: Of `encore.model.opening.OpenedModel`.
    """
    config = metadata.get("config")
    if not isinstance(config, Mapping) or not config.get("evaluation_share"):
        return None
    return TrainedSplit(
        evaluation_share=float(config["evaluation_share"]), seed=int(config.get("seed", 0))
    )


def held_out_P(
    split: TrainedSplit, pairs: Iterable[PreferencePair], scores: HeadScores
) -> NDArray[np.bool_]:
    """Of each scored pair, whether training held out its prompt, shape [P].

    Args:
        split: The model's.
        pairs: At least the scored ones.
        scores: Of some pairs.
    """
    held_out = {(pair.source, pair.pair_id) for pair in pairs if split.holds_out(pair)}
    keys = zip(scores.source_P.tolist(), scores.pair_id_P.tolist(), strict=True)
    return np.array([key in held_out for key in keys], dtype=np.bool_)


def accuracies_of(
    study: Path, result: ScoreResult
) -> tuple[tuple[HeadAccuracy, ...], tuple[HeadAccuracy, ...]]:
    """Every head's accuracy on all pairs of a whole scoring, and on those training held out.

    The second is empty where the model does not say what its training held out.

    Args:
        study: The study's directory.
        result: Of scoring it.

    Raises:
        StudyIncompleteError: Shards are missing.
    """
    scores = read_head_scores(result.out)
    if result.split is None:
        return head_accuracies(scores), ()
    is_held_out_P = held_out_P(result.split, iter_pairs(open_study(study)), scores)
    return head_accuracies(scores), head_accuracies(scores.take(is_held_out_P.nonzero()[0]))
