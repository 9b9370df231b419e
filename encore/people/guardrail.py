"""Measure a reward as a guardrail on labelled responses, and choose its threshold (`encore guard`).

The threshold is chosen on one half of the prompts and measured on the other. Responses to one
prompt resemble each other, so intervals come from resamples of whole prompts.

Suffixes: N responses, M those of the half that measures, L distinct rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, clustered_interval, draw_clustered_counts, middle_95
from encore.analysis.detection import auroc, average_precision, best_threshold, count_by_reward, f1
from encore.analysis.share_intervals import mean_credit_interval
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.exports.weights_input import one_reward
from encore.model.open_model import open_reward_model
from encore.model.template_refusals import TemplateRefusals
from encore.people.labelled_responses import read_safety_labels
from encore.people.labelled_scores import score_labelled
from encore.people.people_options import GuardConfig
from encore.weighting.weight_vector import head_weights

_NUM_DRAWS = 1000

_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]
_Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailFigures:
    """Figures of a reward as a detector of unsafe responses, with 95 % intervals.

    Attributes:
        num_responses: Number of labelled responses.
        num_unsafe: Number of those that people call unsafe.
        num_prompts: Number of distinct prompts.
        auroc: Area under the ROC curve, of all responses.
        average_precision: Average precision, of all responses.
        threshold: Lowest reward that is safe: the highest F1 on the half that chooses. Its interval
            is over resamples of that half's prompts.
        num_choosing: Number of responses in that half.
        num_measured: Number of responses in the other half; the following figures are of these.
        f1: F1 of unsafe responses.
        f1_of_flagging_all: The same for a guardrail that flags every response: what a reward that
            says nothing reaches.
        over_refusal: Share of safe responses that are flagged.
        under_refusal: Share of unsafe responses that pass.
    """

    num_responses: int
    num_unsafe: int
    num_prompts: int
    auroc: Estimate
    average_precision: Estimate
    threshold: Estimate
    num_choosing: int
    num_measured: int
    f1: Estimate
    f1_of_flagging_all: float
    over_refusal: Estimate
    under_refusal: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailResult:
    """Result of `measure_guardrail`: the JSON of ``encore guard --json``.

    Attributes:
        model: Name of the model.
        digest: Digest of everything that scores depend on.
        scores: Folder of the scores of every head.
        weights: Weight of each head in the reward.
        figures: The figures.
        notes: Sentences on responses without label and on cut ones.
        synthetic: Labels of the synthetic parts of the model.
    """

    model: str
    digest: str
    scores: Path
    weights: Mapping[str, float]
    figures: GuardrailFigures
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]


def measure_guardrail(config: GuardConfig, *, reporter: Reporter = SILENT) -> GuardrailResult:
    """Score labelled responses, and measure their reward as a detector of unsafe ones.

    Raises:
        InputError: Labels cannot be read or are of one kind, there is no such model, its weights
            are missing or wrong, or its chat template refuses more than
            ``config.max_set_aside_share`` of the responses.
        StudyIncompleteError: Responses could not be scored; finished shards of them are kept.
    """
    responses = read_safety_labels(config.labelled)
    labelled = [response for response in responses if response.is_safe is not None]
    is_unsafe_N = np.array([not response.is_safe for response in labelled], dtype=np.bool_)
    is_measured_N = np.array([response.half == 1 for response in labelled], dtype=np.bool_)
    check_labels(is_unsafe_N, is_measured_N)  # before the model is loaded
    model_options = config.model_dump(include={"device", "dtype", "max_length", "revision"})
    opened = open_reward_model(config.model, **model_options)
    refusals = TemplateRefusals(
        reason_P=tuple(opened.tokenizer.refusal(part.prompt, part.response) for part in labelled),
        noun="responses",
    )
    refusals.check(config.max_set_aside_share, model=opened.name)
    is_taken_N = np.array([reason is None for reason in refusals.reason_P])
    labelled = [*compress(labelled, is_taken_N)]
    is_unsafe_N, is_measured_N = is_unsafe_N[is_taken_N], is_measured_N[is_taken_N]
    prompts = [response.prompt for response in labelled]
    number = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
    prompt_N = np.array([number[prompt] for prompt in prompts])
    weights = one_reward(config.composition, model=opened).weights
    scores = score_labelled(opened, labelled, out=config.out, reporter=reporter)
    weight_R = head_weights(weights, head_ids=opened.model.head_ids)
    reward_N = scores.score_NR.astype(np.float64) @ weight_R
    notes = [*refusals.notes]
    if num_unlabelled := len(responses) - len(labelled):
        notes.append(f"{num_unlabelled} responses have no label or no text and are left out")
    if scores.num_cut:
        notes.append(
            f"{scores.num_cut} of {len(labelled)} conversations are longer than "
            f"{opened.tokenizer.max_length} tokens and lost their oldest tokens"
        )
    return GuardrailResult(
        model=opened.name,
        digest=opened.digest,
        scores=scores.folder,
        weights=weights,
        figures=guardrail_figures(reward_N, is_unsafe_N, is_measured_N, prompt_N=prompt_N),
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
    reward_N: _Floats, is_unsafe_N: _Flags, is_measured_N: _Flags, *, prompt_N: _Indices
) -> GuardrailFigures:
    """Compute the figures of rewards; see `GuardrailFigures`.

    Args:
        reward_N: Reward of each response.
        is_unsafe_N: True for responses that people call unsafe.
        is_measured_N: True for the half that measures the threshold, False for that which chooses.
        prompt_N: Number of the prompt of each response.

    Raises:
        InputError: A half has no safe or no unsafe response, or all rewards are equal.
    """
    check_labels(is_unsafe_N, is_measured_N)
    if np.ptp(reward_N[~is_measured_N]) == 0:
        raise InputError(
            f"all rewards are {reward_N[0]:.6g}: no threshold separates them; check the model and "
            "the weights"
        )
    threshold = _threshold(
        reward_N[~is_measured_N], is_unsafe_N[~is_measured_N], prompt_N[~is_measured_N]
    )
    assert threshold.value is not None
    is_unsafe_M = is_unsafe_N[is_measured_N]
    is_flagged_M = reward_N[is_measured_N] < threshold.value
    prompt_M, num_unsafe = prompt_N[is_measured_N], int(is_unsafe_M.sum())
    outcome_M = np.where(is_unsafe_M, 0, 1) + np.where(is_flagged_M, 0, 2)
    # Hits, false alarms, misses, rightly passed.
    count_4 = np.bincount(outcome_M, minlength=4).astype(np.float64)
    return GuardrailFigures(
        num_responses=len(reward_N),
        num_unsafe=int(is_unsafe_N.sum()),
        num_prompts=len(np.unique(prompt_N)),
        auroc=_estimate(auroc, reward_N, is_unsafe_N, prompt_N),
        average_precision=_estimate(average_precision, reward_N, is_unsafe_N, prompt_N),
        threshold=threshold,
        num_choosing=int((~is_measured_N).sum()),
        num_measured=len(is_unsafe_M),
        f1=clustered_interval(float(f1(count_4)), f1, outcome_M, prompt_M, num_kinds=4),
        f1_of_flagging_all=2 * num_unsafe / (num_unsafe + len(is_unsafe_M)),
        over_refusal=_share(is_flagged_M[~is_unsafe_M], prompt_M[~is_unsafe_M]),
        under_refusal=_share(~is_flagged_M[is_unsafe_M], prompt_M[is_unsafe_M]),
    )


def _estimate(
    figure: Callable[[_Floats, _Floats], _Floats],
    reward_N: _Floats,
    is_unsafe_N: _Flags,
    prompt_N: _Indices,
) -> Estimate:
    level_L, unsafe_L, safe_L = count_by_reward(reward_N, is_unsafe_N)
    return clustered_interval(
        float(figure(unsafe_L, safe_L)),
        lambda count_DC: figure(count_DC[:, : len(level_L)], count_DC[:, len(level_L) :]),
        _unsafe_then_safe(level_L, reward_N, is_unsafe_N),
        prompt_N,
        num_kinds=2 * len(level_L),
    )


def _unsafe_then_safe(level_L: _Floats, reward_N: _Floats, is_unsafe_N: _Flags) -> _Indices:
    """Return the kind of each response: the number of its reward, plus L if it is safe."""
    kind_N: _Indices = np.searchsorted(level_L, reward_N) + np.where(is_unsafe_N, 0, len(level_L))
    return kind_N


def _threshold(reward_N: _Floats, is_unsafe_N: _Flags, prompt_N: _Indices) -> Estimate:
    level_L, unsafe_L, safe_L = count_by_reward(reward_N, is_unsafe_N)
    kind_N = _unsafe_then_safe(level_L, reward_N, is_unsafe_N)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(_NUM_DRAWS):
        [count_C] = draw_clustered_counts(
            kind_N, prompt_N, num_kinds=2 * len(level_L), rng=rng, num_draws=1
        )
        drawn_unsafe_L, drawn_safe_L = count_C.astype(np.float64).reshape(2, -1)
        is_drawn_L = drawn_unsafe_L + drawn_safe_L > 0
        if drawn_unsafe_L.any():
            levels = (level_L, drawn_unsafe_L, drawn_safe_L)
            drawn.append(best_threshold(*(value_L[is_drawn_L] for value_L in levels)))
    low, high = middle_95(np.array(drawn))
    return Estimate(value=best_threshold(level_L, unsafe_L, safe_L), low=low, high=high)


def _share(is_hit_N: _Flags, prompt_N: _Indices) -> Estimate:
    """Return the share of hits with Wilson's interval over as many independent responses."""
    group_N = np.unique(prompt_N, return_inverse=True)[1]
    return mean_credit_interval(is_hit_N.astype(np.float64), group_N)
