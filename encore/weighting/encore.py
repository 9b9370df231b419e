"""ENCORE: the higher the entropy of a rule's ratings, the lower its weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.statistics import RuleStats
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector


def entropy_weights(entropy_R: NDArray[np.float64], *, tau: float = 2.0) -> NDArray[np.float64]:
    """Softmax of negative rating entropy over rules (the paper's "entropy-penalized weights").

    Args:
        entropy_R: Rating entropy of each rule in nats, shape [R].
        tau: Temperature; large approaches uniform, small the lowest-entropy rule.
    """
    # Shifted before the division, so that neither it nor exp can overflow for a tiny tau.
    with np.errstate(over="ignore"):
        mass_R = np.exp(-(entropy_R - entropy_R.min()) / tau)
    return np.asarray(mass_R / mass_R.sum(), dtype=np.float64)


def _weigh(rules: Sequence[RuleStats], options: SchemeOptions) -> WeightVector:
    for rule in rules:
        if rule.entropy_nats is None:
            raise InputError(
                f"rule {rule.rule_id}: none of its {rule.num_unparsed} ratings is a number, so it "
                "has no entropy and no weight; leave the rule out of the ratings or rate it again"
            )
    entropy_R = np.array([rule.entropy_nats for rule in rules], dtype=np.float64)
    return WeightVector(
        scheme=SCHEME.name,
        rule_ids=tuple(rule.rule_id for rule in rules),
        weights=tuple(entropy_weights(entropy_R, tau=options.tau).tolist()),
        params={"tau": options.tau, "log_base": "e"},
    )


SCHEME = WeightingScheme(
    name="encore",
    summary="softmax of negative entropy (nats) at temperature tau",
    uses_labels=False,
    options=("tau",),
    weigh=_weigh,
)
