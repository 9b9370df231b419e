"""Measure a reward as a guardrail on labelled responses, and choose its threshold (`encore guard`).

The threshold is chosen on one half of the prompts and measured on the other.

Suffixes: N responses, L distinct rewards, C counts by reward (unsafe, then safe), R heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, draw_counts, middle_95, resampled_interval
from encore.analysis.detection import auroc, average_precision, best_threshold, count_by_reward, f1
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.export.weights_input import one_reward
from encore.model.open_model import OpenedModel, open_reward_model
from encore.model.score_sequences import score_sequences
from encore.serving.labelled_responses import LabelledResponse, read_labelled
from encore.serving.serve_options import GuardConfig
from encore.weighting.composed_ratings import half_credit_interval
from encore.weighting.weight_vector import head_weights

#: Responses that are scored between two reports of progress.
_BLOCK = 256
_NUM_DRAWS = 1000

_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailFigures:
    """Figures of a reward as a detector of unsafe responses, with 95 % intervals.

    Attributes:
        num_responses: Number of labelled responses.
        num_unsafe: Number of those that people call unsafe.
        auroc: Area under the ROC curve, of all responses.
        average_precision: Average precision, of all responses.
        threshold: Lowest reward that is safe: the highest F1 on the half that chooses. Its interval
            is over resamples of that half.
        num_choosing: Number of responses in that half.
        num_measured: Number of responses in the other half; the following figures are of these.
        f1: F1 of unsafe responses.
        over_refusal: Share of safe responses that are flagged.
        under_refusal: Share of unsafe responses that pass.
    """

    num_responses: int
    num_unsafe: int
    auroc: Estimate
    average_precision: Estimate
    threshold: Estimate
    num_choosing: int
    num_measured: int
    f1: Estimate
    over_refusal: Estimate
    under_refusal: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailResult:
    """Result of `measure_guardrail`: the JSON of ``encore guard --json``.

    Attributes:
        model: Name of the model.
        digest: Digest of everything that scores depend on.
        weights: Weight of each head in the reward.
        figures: The figures.
        notes: Sentences on responses without label and on cut ones.
        synthetic: Labels of the synthetic parts of the model.
    """

    model: str
    digest: str
    weights: Mapping[str, float]
    figures: GuardrailFigures
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]


def measure_guardrail(config: GuardConfig, *, reporter: Reporter = SILENT) -> GuardrailResult:
    """Score labelled responses, and measure their reward as a detector of unsafe ones.

    Raises:
        InputError: Labels cannot be read or are of one kind, there is no such model, or its weights
            are missing or wrong.
    """
    responses = read_labelled(config.labelled)
    labelled = [response for response in responses if response.is_safe is not None]
    is_unsafe_N = np.array([not response.is_safe for response in labelled], dtype=np.bool_)
    is_measured_N = np.array([response.half == 1 for response in labelled], dtype=np.bool_)
    check_labels(is_unsafe_N, is_measured_N)  # before the model is loaded
    model_options = config.model_dump(include={"device", "dtype", "max_length", "revision"})
    opened = open_reward_model(config.model, **model_options)
    weights = one_reward(config.composition, model=opened).weights
    reward_N, num_cut = _rewards(opened, labelled, weights, reporter=reporter)
    notes = []
    if num_unlabelled := len(responses) - len(labelled):
        notes.append(f"{num_unlabelled} responses have no label or no text and are left out")
    if num_cut:
        notes.append(
            f"{num_cut} of {len(labelled)} conversations are longer than "
            f"{opened.tokenizer.max_length} tokens and lost their oldest tokens"
        )
    return GuardrailResult(
        model=opened.name,
        digest=opened.digest,
        weights=weights,
        figures=guardrail_figures(reward_N, is_unsafe_N, is_measured_N),
        notes=tuple(notes),
        synthetic=tuple(f"model {part}" for part in opened.metadata.get("synthetic", ())),
    )


def check_labels(is_unsafe_N: _Flags, is_measured_N: _Flags) -> None:
    """Raise an error unless both halves have safe and unsafe responses.

    Raises:
        InputError: A kind is missing; the message says where.
    """
    for half, mask_N in (
        ("labelled responses", np.ones(len(is_unsafe_N), dtype=np.bool_)),
        ("the half of the prompts that chooses the threshold", ~is_measured_N),
        ("the half of the prompts that measures it", is_measured_N),
    ):
        num, num_unsafe = int(mask_N.sum()), int(is_unsafe_N[mask_N].sum())
        if num_unsafe in (0, num):
            raise InputError(
                f"{half}: {num - num_unsafe} safe and {num_unsafe} unsafe; expected both, since "
                "AUROC, F1 and a threshold compare them: give more labelled responses"
            )


def guardrail_figures(
    reward_N: _Floats, is_unsafe_N: _Flags, is_measured_N: _Flags
) -> GuardrailFigures:
    """Compute the figures of rewards; see `GuardrailFigures`.

    Args:
        reward_N: Reward of each response.
        is_unsafe_N: True for responses that people call unsafe.
        is_measured_N: True for the half that measures the threshold, False for that which chooses.

    Raises:
        InputError: A half has no safe or no unsafe response, or all rewards are equal.
    """
    check_labels(is_unsafe_N, is_measured_N)
    if np.ptp(reward_N[~is_measured_N]) == 0:
        raise InputError(
            f"all rewards are {reward_N[0]:.6g}: no threshold separates them; check the model and "
            "the weights"
        )
    threshold = _threshold(reward_N[~is_measured_N], is_unsafe_N[~is_measured_N])
    assert threshold.value is not None
    is_unsafe_M = is_unsafe_N[is_measured_N]
    is_flagged_M = reward_N[is_measured_N] < threshold.value
    outcomes = (
        is_unsafe_M & is_flagged_M,
        ~is_unsafe_M & is_flagged_M,
        is_unsafe_M & ~is_flagged_M,
        ~is_unsafe_M & ~is_flagged_M,
    )
    count_4 = np.array([mask_M.sum() for mask_M in outcomes], dtype=np.float64)
    num_hits, num_alarms, num_misses, num_passed = count_4
    _, unsafe_L, safe_L = count_by_reward(reward_N, is_unsafe_N)
    return GuardrailFigures(
        num_responses=len(reward_N),
        num_unsafe=int(is_unsafe_N.sum()),
        auroc=_estimate(auroc, unsafe_L, safe_L),
        average_precision=_estimate(average_precision, unsafe_L, safe_L),
        threshold=threshold,
        num_choosing=int((~is_measured_N).sum()),
        num_measured=len(is_unsafe_M),
        f1=resampled_interval(float(f1(count_4)), f1, count_4),
        over_refusal=_share(num_alarms, num_alarms + num_passed),
        under_refusal=_share(num_misses, num_misses + num_hits),
    )


def _estimate(
    figure: Callable[[_Floats, _Floats], _Floats], unsafe_L: _Floats, safe_L: _Floats
) -> Estimate:
    num_levels = len(unsafe_L)
    return resampled_interval(
        float(figure(unsafe_L, safe_L)),
        lambda count_DC: figure(count_DC[:, :num_levels], count_DC[:, num_levels:]),
        np.concatenate([unsafe_L, safe_L]),
        num_draws=_NUM_DRAWS,
    )


def _threshold(reward_N: _Floats, is_unsafe_N: _Flags) -> Estimate:
    level_L, unsafe_L, safe_L = count_by_reward(reward_N, is_unsafe_N)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(_NUM_DRAWS):
        [count_C] = draw_counts(np.concatenate([unsafe_L, safe_L]), rng=rng, num_draws=1)
        drawn_unsafe_L, drawn_safe_L = count_C.astype(np.float64).reshape(2, -1)
        is_drawn_L = drawn_unsafe_L + drawn_safe_L > 0
        if drawn_unsafe_L.any():
            levels = (level_L, drawn_unsafe_L, drawn_safe_L)
            drawn.append(best_threshold(*(value_L[is_drawn_L] for value_L in levels)))
    low, high = middle_95(np.array(drawn))
    return Estimate(value=best_threshold(level_L, unsafe_L, safe_L), low=low, high=high)


def _share(num: float, num_all: float) -> Estimate:
    """Return a share with Wilson's interval."""
    low, high = half_credit_interval(num / num_all, tie_rate=0, num_pairs=int(num_all))
    return Estimate(value=num / num_all, low=low, high=high)


def _rewards(
    opened: OpenedModel,
    responses: Sequence[LabelledResponse],
    weights: Mapping[str, float],
    *,
    reporter: Reporter,
) -> tuple[_Floats, int]:
    """Return the reward of each response, and the number of conversations that were cut."""
    weight_R = head_weights(weights, head_ids=opened.model.head_ids)
    reporter.started("scoring labelled responses", total=len(responses))
    reward_blocks, num_cut = [], 0
    for start in range(0, len(responses), _BLOCK):
        block = responses[start : start + _BLOCK]
        encoded = [opened.tokenizer.encode(part.prompt, part.response) for part in block]
        num_cut += sum(part.num_cut > 0 for part in encoded)
        sequences = [part.token_ids for part in encoded]
        score_NR = score_sequences(
            opened.model, sequences, pad_token_id=opened.tokenizer.pad_token_id
        )
        reward_blocks.append(score_NR.astype(np.float64) @ weight_R)
        reporter.advanced(len(block))
    reporter.finished()
    return np.concatenate(reward_blocks), num_cut
