"""How often each head ranks a pair as people did, on all pairs and on those training held out.

Suffixes: P pairs, R heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.data.pairs import iter_pairs
from encore.data.records import PreferencePair
from encore.data.study import Study
from encore.scoring.head_scores import HeadScores, read_head_scores
from encore.scoring.scoring_run import ScoreResult
from encore.training.training_examples import group_of, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAccuracy:
    """One head on some pairs.

    Attributes:
        head_id: The head.
        num_pairs: All pairs.
        num_ties: Those with two equal scores.
        half: Share ranked as people did, a tie counting one half.
        strict: The same, a tie counting as a miss.
    """

    head_id: str
    num_pairs: int
    num_ties: int
    half: float
    strict: float


def head_accuracies(scores: HeadScores) -> tuple[HeadAccuracy, ...]:
    """Every head's accuracy, in head order; empty without pairs."""
    if not scores.num_pairs:
        return ()
    chosen_PR, rejected_PR = scores.score_P2R[:, 0], scores.score_P2R[:, 1]
    is_win_PR, is_tie_PR = chosen_PR > rejected_PR, chosen_PR == rejected_PR
    return tuple(
        HeadAccuracy(
            head_id=head_id,
            num_pairs=scores.num_pairs,
            num_ties=int(is_tie_PR[:, head].sum()),
            half=float((is_win_PR[:, head] + is_tie_PR[:, head] / 2).mean()),
            strict=float(is_win_PR[:, head].mean()),
        )
        for head, head_id in enumerate(scores.head_ids)
    )


def held_out_P(
    split: Mapping[str, int | float], pairs: Iterable[PreferencePair], scores: HeadScores
) -> NDArray[np.bool_]:
    """Of each scored pair, whether training held out its prompt, shape [P].

    That follows from the prompt alone, whatever data the model was trained on.

    Args:
        split: How the model's training parted prompts (`ScoreManifest`).
        pairs: At least the scored ones.
        scores: Of some pairs.
    """
    seed, share = int(split["seed"]), split["evaluation_share"]
    held_out = {
        (pair.source, pair.pair_id) for pair in pairs if place_of(group_of(pair), seed=seed) < share
    }
    keys = zip(scores.source_P.tolist(), scores.pair_id_P.tolist(), strict=True)
    return np.array([key in held_out for key in keys], dtype=np.bool_)


def accuracies_of(
    study: Study, result: ScoreResult
) -> tuple[tuple[HeadAccuracy, ...], tuple[HeadAccuracy, ...]]:
    """Every head's accuracy on all pairs of a whole scoring, and on those training held out.

    The second is empty where the model does not say what its training held out.

    Args:
        study: The opened study.
        result: Of scoring it.

    Raises:
        StudyIncompleteError: Shards are missing.
    """
    scores = read_head_scores(result.out)
    if result.split is None:
        return head_accuracies(scores), ()
    is_held_out_P = held_out_P(result.split, iter_pairs(study), scores)
    return head_accuracies(scores), head_accuracies(scores.take(is_held_out_P.nonzero()[0]))
