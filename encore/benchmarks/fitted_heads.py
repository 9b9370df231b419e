"""Row of the best constant weights of a model's heads, fitted to the labels of its training study.

Row ``bradley-terry weights`` is fitted to the judge's ratings. This row is fitted to what the heads
make of them, and so shows how much any constant weights of these heads can reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encore.benchmarks.benchmark_models import ScoredModel
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.table_rows import RowMetadata, TableRow, reward_row
from encore.core.errors import InputError
from encore.data.pairs import iter_pairs
from encore.data.study import Study
from encore.scoring.head_accuracy import held_out_P
from encore.scoring.head_scores import SCORES_DIR, ScoreManifest, read_head_scores, score_statuses
from encore.weighting.schemes.bradley_terry import fit_scores, weights_of_scores


def fitted_heads_row(
    study: Study, model: ScoredModel, pairs: BenchmarkPairs, rule_ids: Sequence[str]
) -> TableRow:
    """Return the row of constant weights that are fitted to the study's labels on the heads.

    Prompts that the model's training held out are not learnt from, if the model says which.

    Args:
        study: Study whose pairs the model was scored on (`encore score`).
        model: The model with its scores of the benchmark.
        pairs: Pairs of the benchmark.
        rule_ids: Heads to weigh; any other head gets weight 0.

    Raises:
        InputError: The study has no scores of this model.
        StudyIncompleteError: Its scoring is not complete.
    """
    manifest = _largest_scoring(study, model)
    study_scores = read_head_scores(study.path / SCORES_DIR / manifest.score_key).scored
    notes: tuple[str, ...]
    notes = ("fitted-heads: the model does not say which prompts its training held out",)
    if manifest.split is not None:
        is_held_out_P = held_out_P(manifest.split, iter_pairs(study), study_scores)
        study_scores, notes = study_scores.take(np.flatnonzero(~is_held_out_P)), ()
    columns = [study_scores.head_ids.index(rule_id) for rule_id in rule_ids]
    score_P2R = study_scores.score_P2R[:, :, columns].astype(np.float64)
    weight_R, scale = weights_of_scores(fit_scores(score_P2R[:, 0] - score_P2R[:, 1]))
    weights = dict.fromkeys(model.scores.head_ids, 0.0)
    weights |= dict(zip(rule_ids, weight_R.tolist(), strict=True))
    metadata = RowMetadata(
        kind="scheme",
        params={"scale": scale, "num_pairs": study_scores.num_pairs, "scoring": manifest.score_key},
        uses_labels=True,
        notes=notes,
        scheme="fitted-heads",
    )
    name = "weights fitted on heads"
    return reward_row(
        name, model.scores.compose(weights), pairs=pairs, metadata=metadata, weights=weights
    )


def _largest_scoring(study: Study, model: ScoredModel) -> ScoreManifest:
    """Return the study's scoring by this model; of several (pilots) the one with most pairs.

    Raises:
        InputError: There is none.
    """
    scorings = [
        status.manifest
        for status in score_statuses(study.path)
        if status.manifest.identity["model_digest"] == model.model_identity["digest"]
    ]
    if not scorings:
        raise InputError(
            f"scheme fitted-heads: study {study.path} has no scores of model {model.name}; run "
            f"`encore score {study.path} --model MODEL` first"
        )
    return max(scorings, key=lambda run: run.num_pairs)
