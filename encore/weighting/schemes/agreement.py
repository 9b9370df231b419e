"""Agreement: weights from people's labels of responses (`encore annotate`), by Cohen's kappa.

A rule's weight is its kappa between the judge and people's median label, clipped at 0 and divided
by the sum over rules. It is not a softmax, because a kappa of 0 has a meaning: the judge agrees
with people no better than chance. Such a rule gets no weight whatever the kappas of other rules
are, and there is no temperature to choose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.analysis.rater_agreement import kappa_interval, nearest_level
from encore.core.errors import InputError
from encore.data.annotations import people_labels
from encore.data.records import RESPONSES
from encore.data.study import Study
from encore.warehouse import PairRatings
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions

# Suffixes: P pairs, R rules, N labelled responses; 4 columns: label, rating, rule, pair.

_Floats = NDArray[np.float64]


def _compute(evidence: Evidence, _options: SchemeOptions) -> SchemeResult:
    # Only labels of the evidence's pairs are read: test pairs are held out there.
    pairs = evidence.read_pairs()
    label_N4 = _labels_with_ratings(pairs, evidence.study)
    if not len(label_N4):
        raise InputError(
            f"scheme agreement: no labels of people for these {pairs.num_pairs} pairs under these "
            "rules; draw a sample with `encore annotate export`, and take in the answers with "
            "`encore annotate import`"
        )
    label_N, rating_N, rule_N, pair_N = label_N4.T
    kappas = [
        kappa_interval(label_N[rule_N == rule], rating_N[rule_N == rule]).value
        for rule in range(len(pairs.rule_ids))
    ]
    mass_R = np.array([max(kappa or 0.0, 0.0) for kappa in kappas])
    scale = float(mass_R.sum())
    # If no kappa is above 0, all rules get the same weight.
    weight_R = mass_R / scale if scale else np.full(len(mass_R), 1 / len(mass_R))
    return weight_R, {
        "scale": scale,
        "num_labels": len(label_N),
        "num_pairs": len(np.unique(pair_N)),
    }


def _labels_with_ratings(pairs: PairRatings, study: Study | None) -> _Floats:
    """Return people's label, the judge's rating as a label, rule index and pair index, [N, 4]."""
    ids = zip(pairs.source_P, pairs.pair_id_P, strict=True)
    pair_indices = {key: index for index, key in enumerate(ids)}
    rule_indices = {rule_id: index for index, rule_id in enumerate(pairs.rule_ids)}
    rating_2PR, rows = pairs.rating_2PR, []
    for sample, labels in people_labels(study) if study is not None else ():
        levels = [*map(float, sample.scale)]
        for (source, response_id, rule_id), label in labels.items():
            pair_id, _, response = response_id.rpartition(":")
            pair, rule = pair_indices.get((source, pair_id)), rule_indices.get(rule_id)
            if pair is not None and rule is not None:
                rating = rating_2PR[RESPONSES.index(response), pair, rule]
                rows.append((label, nearest_level(rating, levels), rule, pair))
    label_N4: _Floats = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return np.asarray(label_N4[~np.isnan(label_N4[:, 1])])


SCHEME = WeightingScheme(name="agreement", uses_labels=True, compute=_compute)
