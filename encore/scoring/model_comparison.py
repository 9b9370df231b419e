"""Compare two reward models by the judge's ratings under each rule, on the same pairs.

Under a rule, the better response of a pair is the one that the judge rates higher; pairs that it
ties say nothing. A model is right if it scores that response higher, and half right if it ties. A
model with a head for the rule is asked by that head, a model with a single head by this one.

Suffixes: P pairs; 2 before P: the first and the second model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import TAIL, Estimate
from encore.analysis.paired_difference import mean_difference_interval
from encore.core.errors import InputError
from encore.core.number_text import first_names, points
from encore.core.record_table import RecordTable
from encore.data.study import Study, as_study
from encore.runs.manifest import list_runs, read_manifest
from encore.scoring.head_scores import SCORES_DIR, HeadScores, ScoreManifest, read_head_scores
from encore.warehouse import PairRatings, open_ratings, read_pairs_of

#: Value of `RuleModels.rule_id` for people's preferences.
PEOPLE = "people"

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleModels:
    """Agreement of two models with one rule, or with people.

    Attributes:
        rule_id: The rule, or `PEOPLE`.
        num_pairs: Number of pairs that both models scored and the judge does not tie.
        first: Share of these on which the first model is right; None without pairs.
        second: Share on which the second model is right.
        difference: The second less the first; its interval holds for all rows at once.
        num_first_pairs: Number of pairs on which the first model is more right than the second.
        num_second_pairs: Number of pairs on which the second one is.
    """

    rule_id: str
    num_pairs: int
    first: float | None
    second: float | None
    difference: Estimate
    num_first_pairs: int
    num_second_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """Result of `compare_models`.

    Attributes:
        models: Names of the two models, with the keys of their scorings.
        rows: Each rule of the run; first people's preferences, if both models have a single head.
        sentence: The result in one sentence.
        synthetic: Names of the synthetic inputs.
    """

    models: tuple[str, str]
    rows: RecordTable[RuleModels]
    sentence: str
    synthetic: tuple[str, ...]


def compare_models(
    study: Study | str | Path, scorings: Sequence[str], *, run: str | None = None
) -> ModelComparison:
    """Compare two reward models that scored a study, rule by rule, on the same pairs.

    Args:
        study: A study with a rating run and two scorings (`encore score`).
        scorings: Keys of the two scorings, or unique prefixes of these.
        run: Key of the rating run. Default: the run with most pairs.

    Raises:
        InputError: There are not two such scorings, or a model has several heads and none for a
            rule, or they share no pair with the ratings.
    """
    study = as_study(study)
    if len(scorings) != 2:
        raise InputError(f"{len(scorings)} scorings; expected the keys of two models' scorings")
    folders = [_scoring(study, key) for key in scorings]
    manifests = [read_manifest(folder, ScoreManifest) for folder in folders]
    ratings = open_ratings(study, run=run)
    rows = compare_scores(read_pairs_of(ratings), [read_head_scores(folder) for folder in folders])
    first, second = (f"{scored.model} ({scored.score_key[:8]})" for scored in manifests)
    synthetic = [*ratings.synthetic, *(part for scored in manifests for part in scored.synthetic)]
    return ModelComparison(
        models=(first, second),
        rows=RecordTable(rows),
        sentence=_sentence(rows, first=first, second=second),
        synthetic=tuple(dict.fromkeys(synthetic)),
    )


def compare_scores(ratings: PairRatings, scores: Sequence[HeadScores]) -> tuple[RuleModels, ...]:
    """Return the agreement of two models with each rule; `PEOPLE` first, if both have one head.

    Args:
        ratings: The judge's ratings.
        scores: The scores of the two models.
    """
    index_of: list[Mapping[tuple[str, str], int]] = [
        {key: row for row, key in enumerate(_keys(scored))} for scored in scores
    ]
    pair_P = np.array(
        [all(key in index for index in index_of) for key in _keys(ratings)], dtype=np.bool_
    ).nonzero()[0]
    if not len(pair_P):
        raise InputError("the ratings and the two scorings have no pair in common")
    ratings = ratings.take(pair_P)
    scores = [
        scored.take(np.array([index[key] for key in _keys(ratings)]))
        for scored, index in zip(scores, index_of, strict=True)
    ]
    better_by_rule: dict[str, _Floats] = {}
    if all(len(scored.head_ids) == 1 for scored in scores):
        better_by_rule[PEOPLE] = np.ones(len(pair_P))
    better_by_rule |= dict(zip(ratings.rule_ids, np.sign(ratings.margin_PR.T), strict=True))
    return tuple(
        _compared(
            rule_id,
            better_P,
            np.stack([_margins(scored, rule_id) for scored in scores]),
            ratings.group_P,
            tail=TAIL / len(better_by_rule),
        )
        for rule_id, better_P in better_by_rule.items()
    )


def _compared(
    rule_id: str, better_P: _Floats, margin_2P: _Floats, group_P: NDArray[np.intp], *, tail: float
) -> RuleModels:
    """Return one row: ``better_P`` is 1 if the chosen response is better, -1 if the other one."""
    is_compared_P = (np.abs(better_P) == 1) & ~np.isnan(margin_2P).any(axis=0)
    credit_2P = (np.sign(margin_2P) * better_P + 1)[:, is_compared_P] / 2
    delta_P = credit_2P[1] - credit_2P[0]
    first, second = credit_2P.mean(axis=1).tolist() if len(delta_P) else (None, None)
    return RuleModels(
        rule_id=rule_id,
        num_pairs=len(delta_P),
        first=first,
        second=second,
        difference=mean_difference_interval(delta_P, group_N=group_P[is_compared_P], tail=tail),
        num_first_pairs=int((delta_P < 0).sum()),
        num_second_pairs=int((delta_P > 0).sum()),
    )


def _margins(scores: HeadScores, rule_id: str) -> _Floats:
    """Return the chosen response's score minus the other one's, of the head for a rule."""
    if rule_id not in scores.head_ids and len(scores.head_ids) > 1:
        raise InputError(
            f"rule {rule_id!r}: a model has {len(scores.head_ids)} heads and none for it; make one "
            "reward of them with encore export, and score the study with that"
        )
    head = scores.head_ids.index(rule_id) if rule_id in scores.head_ids else 0
    score_P2 = scores.score_P2R[:, :, head].astype(np.float64)
    return np.asarray(score_P2[:, 0] - score_P2[:, 1])


def _sentence(rows: Sequence[RuleModels], *, first: str, second: str) -> str:
    """Return in one sentence which model agrees more, and where."""
    parts = []
    for model, sign in ((second, 1), (first, -1)):
        bounds = [(row, row.difference.low if sign > 0 else row.difference.high) for row in rows]
        names = [
            f"{row.rule_id} ({points(row.difference.value)})"
            for row, bound in bounds
            if bound is not None and sign * bound > 0
        ]
        if names:
            parts.append(f"{model} agrees more with {first_names(names)}")
    return f"{'; '.join(parts) or 'Neither model is shown to agree more with any rule'}."


def _keys(pairs: PairRatings | HeadScores) -> Iterator[tuple[Any, Any]]:
    return zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)


def _scoring(study: Study, key: str) -> Path:
    """Return the folder of the one scoring whose key begins so."""
    folders = list_runs(study.path / SCORES_DIR, ScoreManifest)
    matching = [folder for folder in folders if folder.name.startswith(key)]
    if len(matching) != 1:
        names = ", ".join(folder.name for folder in folders) or "none"
        raise InputError(f"scoring {key!r}: {len(matching)} match; the study has {names}")
    return matching[0]
