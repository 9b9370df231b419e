"""Say how far ENCORE's weights would move if a judge rated a rule where it does not apply.

The paper's judge must give a number to every response. Where a rule is about something that does
not occur, it can only repeat one rating. Which one, nobody knows without asking; it is taken to be
the rule's most frequent rating. Of all constant ratings this one lowers the entropy most, so it
raises the rule's weight most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.analysis.answer_options import DEFAULT_TAU
from encore.analysis.entropy import entropy_weights
from encore.analysis.statistics import RuleStats


def weights_if_rated(
    rules: Sequence[RuleStats], num_not_applicable: Sequence[int], *, tau: float = DEFAULT_TAU
) -> NDArray[np.float64]:
    """Return ENCORE's weights if each rule gave its most frequent rating where it does not apply.

    Args:
        rules: Statistics of the rules.
        num_not_applicable: Number of responses to which each rule does not apply.
        tau: Temperature of the weights.

    Returns:
        Weights, shape [R]; all NaN if a rule has no rating.
    """
    entropy_R = [
        _entropy_with_more(rule, num_more)
        for rule, num_more in zip(rules, num_not_applicable, strict=True)
    ]
    return entropy_weights(np.array(entropy_R), tau=tau)


def _entropy_with_more(rule: RuleStats, num_more: int) -> float:
    """Return the entropy in nats of a rule's ratings with more of its most frequent rating.

    N ratings with n of each level have N ln N - sum of n ln n = N times their entropy.
    """
    if rule.entropy_nats is None or rule.top_level_share is None:
        return math.nan
    num_ratings = rule.num_ratings
    num_top = round(rule.top_level_share * num_ratings)
    sum_n_log_n = num_ratings * (math.log(num_ratings) - rule.entropy_nats)
    sum_n_log_n += (num_top + num_more) * math.log(num_top + num_more) - num_top * math.log(num_top)
    total = num_ratings + num_more
    return max(math.log(total) - sum_n_log_n / total, 0.0)
