"""Options of the answer to "which rules can I trust?"; docs/analysis.md explains the defaults."""

from __future__ import annotations

from encore.core.config import StageConfig, option

#: Temperature of ENCORE's weights (the paper, section 4).
DEFAULT_TAU = 2.0
#: Correlation of two rules within pairs from which on they say the same.
DOUBLE_CORRELATION = 0.9
_GROUP = "Verdicts"


class AnswerOptions(StageConfig):
    """Thresholds of the verdicts on rules, and the temperature of the weights beside them."""

    max_tie_rate: float = option(0.9, gt=0, le=1, group=_GROUP)
    """Share of tied pairs from which on a rule says little."""
    double_correlation: float = option(DOUBLE_CORRELATION, gt=0, le=1, group=_GROUP)
    """Correlation of two rules within pairs from which on the less certain is a double."""
    tau: float = option(
        DEFAULT_TAU, gt=0, allow_inf_nan=False, group=_GROUP, source="ENCORE, section 4"
    )
    """Temperature of ENCORE's weights beside the verdicts."""
