"""Agreement: weights from people's labels of responses (`encore annotate`), by Cohen's kappa.

A rule's weight is its kappa between the judge and people's median label, clipped at 0 and divided
by the sum over rules. It is not a softmax: kappa has a zero with a meaning, that the judge agrees
with people no better than chance does. Such a rule gets no weight, whatever the others reach, and
there is no temperature to choose.
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
from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme

# Suffixes: P pairs, R rules, N labelled responses.

_Floats = NDArray[np.float64]


def _find(evidence: Evidence, _options: SchemeOptions) -> Weighed:
    # Only labels of the pairs at hand: what the weights are tested on is held out there.
    pairs = evidence.read_pairs()
    found_N4 = _labelled(pairs, evidence.study)
    if not len(found_N4):
        raise InputError(
            f"scheme agreement: no labels of people for these {pairs.num_pairs} pairs under these "
            "rules; draw a sample with `encore annotate export`, and take in the answers with "
            "`encore annotate import`"
        )
    label_N, rating_N, rule_N, pair_N = found_N4.T
    kappas = [
        kappa_interval(label_N[rule_N == rule], rating_N[rule_N == rule]).value
        for rule in range(len(pairs.rule_ids))
    ]
    mass_R = np.array([max(kappa or 0.0, 0.0) for kappa in kappas])
    scale = float(mass_R.sum())
    # Where no kappa is above 0, all rules weigh the same.
    weight_R = mass_R / scale if scale else np.full(len(mass_R), 1 / len(mass_R))
    return weight_R, {
        "scale": scale,
        "num_labels": len(label_N),
        "num_pairs": len(np.unique(pair_N)),
    }


def _labelled(pairs: PairRatings, study: Study | None) -> _Floats:
    """People's label, the judge's rating on the same scale, rule and pair of each; shape [N, 4]."""
    ids = zip(pairs.source_P, pairs.pair_id_P, strict=True)
    pair_of = {key: row for row, key in enumerate(ids)}
    rule_of = {rule_id: place for place, rule_id in enumerate(pairs.rule_ids)}
    rating_2PR, found = pairs.rating_2PR, []
    for sample, labels in people_labels(study) if study is not None else ():
        levels = [*map(float, sample.scale)]
        for (source, response_id, rule_id), label in labels.items():
            pair_id, _, response = response_id.rpartition(":")
            pair, rule = pair_of.get((source, pair_id)), rule_of.get(rule_id)
            if pair is not None and rule is not None:
                rating = rating_2PR[RESPONSES.index(response), pair, rule]
                found.append((label, nearest_level(rating, levels), rule, pair))
    found_N4: _Floats = np.array(found, dtype=np.float64).reshape(-1, 4)
    return np.asarray(found_N4[~np.isnan(found_N4[:, 1])])


SCHEME = WeightingScheme(name="agreement", uses_labels=True, find=_find)
