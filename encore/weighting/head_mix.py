"""Compose head 0 with rules: reward = z(head 0) + beta z(Σ w s), one linear composition.

z divides by the standard deviation over the responses of held-out pairs. No mean is subtracted: a
constant changes no ranking.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads, B betas, G groups (prompts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.model.held_out_scores import HeldOutScores
from encore.weighting.preference_head import PREFERENCE_HEAD, Beta, has_preference_head, rule_heads
from encore.weighting.weight_vector import head_weights

#: Without labels both parts weigh the same.
DEFAULT_BETA = 1.0
_AUTO_BETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
#: A smaller beta is kept unless its loss is larger by this many standard errors of the difference.
#: Of 3,600 simulated studies with rules of noise (50 or 150 pairs, three accuracies of head 0)
#: 0.4 % used the rules, and none lost more than its interval on 1,000 fresh pairs.
_NUM_ERRORS = 1.25
#: Effective number of prompts that must carry the difference of loss: (Σ |d|)² / Σ d².
_MIN_EFFECTIVE_PROMPTS = 15
#: Largest factor of standardised margins in the Bradley–Terry loss; more is certainty already.
_MAX_SCALE = 20.0

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMix:
    """Head 0 and weighted rules as one linear composition of all heads.

    Attributes:
        weights: Weight of each head, by head id, in head order.
        beta: Factor of the standardised rules.
        uses_labels: True if beta was chosen on the labels of held-out pairs.
        sd_preference: Standard deviation of head 0 over the held-out responses.
        sd_rules: Standard deviation of the rules' weighted sum over the same responses.
        num_pairs: Number of held-out pairs.
        num_prompts: Number of their prompts.
        held_out_loss: Mean Bradley–Terry loss of the composition on the held-out pairs, its scale
            fitted.
        preference_loss: The same loss of head 0 alone.
    """

    weights: Mapping[str, float]
    beta: float
    uses_labels: bool
    sd_preference: float
    sd_rules: float
    num_pairs: int
    num_prompts: int
    held_out_loss: float
    preference_loss: float

    @property
    def note(self) -> str | None:
        """Return a sentence on a beta that was chosen on labels; None if it was given."""
        if not self.uses_labels:
            return None
        pairs = f"{self.num_pairs:,} held-out pairs of {self.num_prompts:,} prompts"
        if self.beta == 0:
            return f"beta auto: on {pairs} the rules do not clearly help, so head 0 stands alone"
        return (
            f"beta auto: {self.beta:g} was chosen on {pairs} (loss {self.held_out_loss:.3f}, head "
            f"0 alone {self.preference_loss:.3f}), so the reward has seen their labels"
        )


def mix_heads(
    rule_weights: Mapping[str, float],
    held_out: HeldOutScores | None,
    *,
    head_ids: Sequence[str],
    beta: Beta | None = None,
) -> HeadMix:
    """Compose head 0 with weighted rules.

    Args:
        rule_weights: Weight of each rule, by rule id.
        held_out: Scores of the pairs that the model's training held out.
        head_ids: Ids of the model's heads, head 0 first.
        beta: Factor of the rules; ``auto`` chooses it on the held-out labels. None: 1.

    Raises:
        InputError: The model has no head 0 or no held-out scores of its heads, the weights are not
            those of its rules, or one of the two parts scores all responses the same.
    """
    if not has_preference_head(head_ids):
        raise InputError(
            f"beta {beta}: the model has no head 0 ({PREFERENCE_HEAD!r}) that rules could be "
            "composed with; train one with --preference-head, or leave beta out"
        )
    weight_R = head_weights(rule_weights, head_ids=rule_heads(head_ids))
    score_P2R = _held_out_scores(held_out, num_heads=len(head_ids))
    assert held_out is not None
    beta = DEFAULT_BETA if beta is None else beta
    # The rules are divided by their own deviation, so the size of their weights says nothing.
    # Divided by a power of two, huge ones stay finite and ordinary ones keep their last bit.
    largest = float(np.abs(weight_R).max())
    unit = float(np.ldexp(1.0, np.frexp(largest)[1] - 1))
    weight_R = weight_R / unit
    preference_P2, rules_P2 = score_P2R[:, :, 0], score_P2R[:, :, 1:] @ weight_R
    sd_preference, sd_rules = _sd(preference_P2), _sd(rules_P2)
    _refuse_without_scale(sd_preference, sd_rules, beta=beta)
    margin_P = (preference_P2[:, 0] - preference_P2[:, 1]) / sd_preference
    rule_margin_P = (rules_P2[:, 0] - rules_P2[:, 1]) / (sd_rules or 1.0)
    group_P = np.unique(held_out.group_P, return_inverse=True)[1]
    chosen_beta = beta if beta != "auto" else _cautious_beta(margin_P, rule_margin_P, group_P)
    rule_factor = chosen_beta / (sd_rules or 1.0)
    weights = {PREFERENCE_HEAD: 1 / sd_preference}
    weights |= dict(zip(rule_heads(head_ids), (rule_factor * weight_R).tolist(), strict=True))
    if not np.isfinite([sd_rules * unit, *weights.values()]).all():
        raise InputError(
            f"weights of the rules up to {largest:g} and beta {chosen_beta:g}: the weighted rules "
            "have no finite scale; expected smaller numbers, such as weights that sum to 1"
        )
    return HeadMix(
        weights=weights,
        beta=float(chosen_beta),
        uses_labels=beta == "auto",
        sd_preference=sd_preference,
        sd_rules=sd_rules * unit,
        num_pairs=len(margin_P),
        num_prompts=int(group_P.max()) + 1,
        held_out_loss=float(_losses(margin_P + chosen_beta * rule_margin_P).mean()),
        preference_loss=float(_losses(margin_P).mean()),
    )


def _refuse_without_scale(sd_preference: float, sd_rules: float, *, beta: Beta) -> None:
    """Raise if head 0, or the rules that beta multiplies, score all responses the same."""
    if not sd_preference:
        raise InputError(
            "head 0 gives all held-out responses the same score, so it has no scale; train the "
            "model again, or compose without head 0: give weights of all heads, that of "
            f"{PREFERENCE_HEAD!r} 0"
        )
    if not sd_rules and beta not in (0, "auto"):
        raise InputError(
            "the weighted rules give all held-out responses the same score, so they have no "
            "scale; give other weights, or --beta 0 for head 0 alone"
        )


def _held_out_scores(held_out: HeldOutScores | None, *, num_heads: int) -> _Floats:
    """Return the held-out scores in float64 if there are any and they are of the model's heads."""
    if held_out is None or not len(held_out.group_P):
        raise InputError(
            "the model has no scores of held-out pairs, which give head 0 and the rules one "
            "scale; give the training run's own folder, or train with --evaluation-share above 0; "
            "or give weights of all heads"
        )
    if held_out.score_P2R.shape[2] != num_heads:
        raise InputError(
            f"the held-out scores are of {held_out.score_P2R.shape[2]} heads, the model has "
            f"{num_heads}: their file belongs to another model; copy the model folder again"
        )
    return held_out.score_P2R.astype(np.float64)


def _sd(score_P2: _Floats) -> float:
    """Return the standard deviation of all scores (ddof 0); 0 if it is rounding alone."""
    sd = float(score_P2.std())
    return sd if sd > 1e-6 * float(np.abs(score_P2).max()) else 0.0


def _cautious_beta(margin_P: _Floats, rule_margin_P: _Floats, group_P: NDArray[np.intp]) -> float:
    """Return the smallest beta whose loss is not clearly larger than the smallest loss.

    A loss is clearly larger if the paired difference exceeds `_NUM_ERRORS` of its standard errors.
    Differences are added up by prompt, so that pairs of one prompt count as one observation.
    """
    loss_BP = np.array([_losses(margin_P + beta * rule_margin_P) for beta in _AUTO_BETAS])
    best = int(loss_BP.mean(axis=1).argmin())
    for index in range(best):
        delta_G = np.bincount(group_P, weights=loss_BP[index] - loss_BP[best])
        num_effective = np.abs(delta_G).sum() ** 2 / (delta_G**2).sum()
        if index == 0 and num_effective < _MIN_EFFECTIVE_PROMPTS:
            return 0.0
        error = np.sqrt(len(delta_G)) * delta_G.std(ddof=1)  # of the sum
        if delta_G.sum() <= _NUM_ERRORS * error:
            return _AUTO_BETAS[index]
    return _AUTO_BETAS[best]


def _losses(margin_P: _Floats) -> _Floats:
    """Return the Bradley–Terry loss of each pair at the best common factor of the margins."""
    from scipy.optimize import minimize_scalar

    scale = minimize_scalar(
        lambda factor: np.logaddexp(0, -factor * margin_P).mean(),
        bounds=(0, _MAX_SCALE),
        method="bounded",
        options={"xatol": 1e-3},
    ).x
    return np.logaddexp(0, -scale * margin_P)
