"""Measure how often each head ranks a pair as people did, on all pairs and on held-out pairs.

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
from encore.training.training_examples import group_draw, prompt_group


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAccuracy:
    """Accuracy of one head on a set of pairs.

    Attributes:
        head_id: Id of the head, which is the id of its rule.
        num_pairs: Number of pairs, ties included.
        num_ties: Number of pairs whose two scores are equal.
        half: Share of pairs ranked as people did, from 0 to 1; a tie counts one half.
        strict: Share of pairs ranked as people did, from 0 to 1; a tie counts as a miss.
    """

    head_id: str
    num_pairs: int
    num_ties: int
    half: float
    strict: float


def head_accuracies(scores: HeadScores) -> tuple[HeadAccuracy, ...]:
    """Return the accuracy of every head on the scored pairs, in head order; empty without any."""
    scores = scores.scored
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
    """Return for each scored pair True if training held out its prompt, shape [P].

    The answer follows from the prompt alone, whatever data the model was trained on.

    Args:
        split: Seed and share by which training held out prompts (`ScoreManifest.split`).
        pairs: The scored pairs, and perhaps further ones.
        scores: Scores of P pairs.
    """
    seed, share = int(split["seed"]), split["evaluation_share"]
    held_out = {
        (pair.source, pair.pair_id)
        for pair in pairs
        if group_draw(prompt_group(pair), seed=seed) < share
    }
    keys = zip(scores.source_P.tolist(), scores.pair_id_P.tolist(), strict=True)
    return np.array([key in held_out for key in keys], dtype=np.bool_)


def scoring_accuracies(
    study: Study, result: ScoreResult
) -> tuple[tuple[HeadAccuracy, ...], tuple[HeadAccuracy, ...]]:
    """Return every head's accuracy on all pairs of a scoring, and on the held-out pairs.

    The second tuple is empty if the model does not say what its training held out.

    Args:
        study: The opened study.
        result: Result of scoring that study.

    Raises:
        StudyIncompleteError: Shards of the scoring are missing.
    """
    scores = read_head_scores(result.out)
    if result.split is None:
        return head_accuracies(scores), ()
    is_held_out_P = held_out_P(result.split, iter_pairs(study), scores)
    return head_accuracies(scores), head_accuracies(scores.take(is_held_out_P.nonzero()[0]))
