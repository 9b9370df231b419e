"""Train a gate over the heads of a model on a study's preferences: the baseline "MoE gating"."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.core.files import write_json
from encore.core.model_files import folder_digest
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.data.study import Study, as_study
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.saved_model import load_model
from encore.training.baselines.gating_network import (
    GatingNetwork,
    best_constant_weights,
    fit_gate,
    save_gate,
)
from encore.training.evaluation import accuracy_half
from encore.training.pooled_states import embed, prompt_tokens
from encore.training.training_examples import TrainingExamples, group_draw, read_examples, split
from encore.training.training_options import GateTrainingConfig, TrainingConfig
from encore.weighting.preference_head import rule_heads

RESULT_FILE = "gate-result.json"
#: A head with more than this share of the mean weight is in effect the only head.
_COLLAPSED_SHARE = 0.99
#: By so much the loss of a gate may exceed that of the best constant weights without a warning.
_LOSS_TOLERANCE = 0.01
#: Share of the training prompts that decide when the training of the gate stops.
_STOP_SHARE = 0.1

_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GateResult(ShownRecord):
    """Result of `train_gate`: how a trained gate ranks held-out pairs, and what it learnt.

    Attributes:
        out: Folder of the gate.
        num_pairs: Number of training pairs.
        num_evaluation_pairs: Number of held-out pairs; their prompts are not in training pairs.
        num_set_aside: Number of pairs that the chat template refuses; they are left out.
        num_stop_pairs: Number of training pairs that only decide when the training stops.
        best_step: Step of the training after which the gate was taken; None if all steps count.
        accuracy_gated: Share of held-out pairs that the gated reward ranks as people did, with ties
            counted half; None if no pairs are held out.
        accuracy_constant: The same share for the best constant weights.
        accuracy_uniform: The same share for the plain mean of the heads.
        mean_weights: Mean weight of each head over the held-out prompts, or over all prompts if
            none are held out.
        training_loss: Loss of the training pairs without dropout.
        best_constant_loss: Loss of the training pairs with the best weights that do not depend on
            the prompt, at their best scale.
        held_out_loss: Loss of the held-out pairs; None if there are none.
        held_out_constant_loss: Loss of the held-out pairs with the weights and the scale that are
            best for the training pairs. A useful gate is below it.
        synthetic: Names of the synthetic parts of the data; empty if there are none.
        notes: Sentences about failures of the gate and about the data.
        seconds: Duration of the call.
    """

    out: Path
    num_pairs: int
    num_evaluation_pairs: int
    num_set_aside: int
    num_stop_pairs: int
    best_step: int | None
    accuracy_gated: float | None
    accuracy_constant: float | None
    accuracy_uniform: float | None
    mean_weights: dict[str, float]
    training_loss: float
    best_constant_loss: float
    held_out_loss: float | None
    held_out_constant_loss: float | None
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float


def train_gate(
    study: Study | str | Path, config: GateTrainingConfig, *, reporter: Reporter = SILENT
) -> GateResult:
    """Train a gate that reads the prompt and weighs the heads of a model, which does not change.

    A tenth of the training prompts decides after which step the gate is taken. The pairs that were
    held out from the model's training are held out here too. Pooled states are written beside the
    gate, so a killed call continues from them. On a CPU the same arguments give the same gate.

    Args:
        study: The opened study, or its directory. The gate learns from its preferences.
        config: Model, network and training of the gate.
        reporter: Receiver of progress events.

    Raises:
        InputError: There is no such model, or it has a single head.
    """
    study, began = as_study(study), time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer, metadata = load_model(config.model, device=device)
    rule_ids = _several_rules(model.head_ids, model=config.model)
    training = TrainingConfig.model_validate(metadata["config"])
    examples = read_examples(
        study,
        tokenizer=tokenizer,
        objective="bradley-terry",
        limit=config.limit,
        max_set_aside_share=config.max_set_aside_share,
    )
    # The split of the model's training, so that no pair is used for both training and evaluation.
    rows, held_out = split(examples, evaluation_share=training.evaluation_share, seed=training.seed)
    out = config.out or config.model.parent / "gate"
    prompt_PD, margin_PR = _prompt_states_and_margins(
        model, examples, out / "embeddings", tokenizer.pad_token_id, reporter
    )
    reporter.started("gate", total=config.gate.num_steps)
    is_stop_P = stop_pairs(examples.group_P[rows], seed=config.gate.seed)
    gate = fit_gate(
        prompt_PD[rows],
        margin_PR[rows],
        head_ids=rule_ids,
        config=config.gate,
        is_stop_P=is_stop_P,
        device=device,
        on_step=lambda loss: reporter.advanced(note=f"loss {loss:.3f}"),
    )
    measured = _measure(gate, prompt_PD, margin_PR, rows=rows, held_out=held_out)
    warnings = gate_warnings(
        measured["mean_weights"],
        gate_loss=measured["held_out_loss"],
        constant_loss=measured["held_out_constant_loss"],
    )
    result = GateResult(
        out=out,
        num_pairs=len(rows),
        num_evaluation_pairs=len(held_out),
        num_set_aside=examples.num_set_aside,
        num_stop_pairs=int(is_stop_P.sum()),
        best_step=gate.best_step,
        **measured,
        synthetic=study.synthetic,
        notes=(*warnings, *examples.notes),
        seconds=time.monotonic() - began,
    )
    save_gate(out, gate)
    # The file contains no path of this machine: the model is identified by its content.
    content = {"model": f"sha256:{folder_digest(config.model)}", "data_sha256": examples.digest}
    content |= asdict(result) | {"versions": package_versions()}
    del content["out"]
    write_json(out / RESULT_FILE, content)
    reporter.saved(out, kind="gate")
    return result


def _several_rules(head_ids: Sequence[str], *, model: Path) -> tuple[str, ...]:
    """Return the heads of rules among a model's heads; raise InputError if there is only one."""
    rule_ids = rule_heads(head_ids)
    if len(rule_ids) < 2:
        raise InputError(
            f"model {model}: its only head is {rule_ids[0]!r}; a gate weighs the heads of "
            "several rules: give a model trained with objective multi-head"
        )
    return rule_ids


def _measure(
    gate: GatingNetwork,
    prompt_PD: _Floats,
    margin_PR: _Floats,
    *,
    rows: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> dict[str, Any]:
    """Return the accuracies, losses and mean weights of a gate, as fields of `GateResult`."""
    weight_PR = gate.weights(prompt_PD)
    mean_R = weight_PR[held_out if len(held_out) else rows].mean(axis=0, dtype=np.float64)
    constant_R, best_constant_loss = best_constant_weights(margin_PR[rows])
    constant_P = margin_PR @ constant_R
    held_out_loss = held_out_constant_loss = None
    if len(held_out):
        held_out_loss = gate.mean_loss(prompt_PD[held_out], margin_PR[held_out])
        held_out_constant_loss = float(np.logaddexp(0, -constant_P[held_out]).mean())
    return {
        "accuracy_gated": accuracy_half((weight_PR * margin_PR)[held_out].sum(axis=1)),
        "accuracy_constant": accuracy_half(constant_P[held_out]),
        "accuracy_uniform": accuracy_half(margin_PR[held_out].mean(axis=1)),
        "mean_weights": dict(zip(gate.head_ids, mean_R.tolist(), strict=True)),
        "training_loss": gate.mean_loss(prompt_PD[rows], margin_PR[rows]),
        "best_constant_loss": best_constant_loss,
        "held_out_loss": held_out_loss,
        "held_out_constant_loss": held_out_constant_loss,
    }


def _prompt_states_and_margins(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    cache: Path,
    pad_token_id: int,
    reporter: Reporter,
) -> tuple[_Floats, _Floats]:
    """Return the states at the beginning of the assistant's turn, [P, D], and margins, [P, R].

    A margin is the score of the chosen response minus that of the rejected one, by the head of a
    rule. A head 0 is left out: its scores are not on the scale of ratings.
    """
    texts = zip(examples.chosen, examples.rejected, examples.prompt_tokens_P, strict=True)
    state_P3D = embed(
        model,
        [(chosen, rejected, prompt_tokens(chosen, num)) for chosen, rejected, num in texts],
        cache=cache,
        pad_token_id=pad_token_id,
        reporter=reporter,
    )
    num_rules = len(rule_heads(model.head_ids))
    head_DR = model.heads.weight.detach().cpu().numpy()[-num_rules:].T
    return state_P3D[:, 2], (state_P3D[:, 0] - state_P3D[:, 1]) @ head_DR


def stop_pairs(group_P: NDArray[np.int64], *, seed: int) -> NDArray[np.bool_]:
    """Return which pairs decide when the training of a gate stops, [P].

    They are those of the tenth of the prompt groups with the lowest draws, and none of a single
    group.
    """
    group_G, index_P = np.unique(group_P, return_inverse=True)
    draw_G = np.array([group_draw(int(group), seed=seed) for group in group_G])
    num_groups = math.ceil(_STOP_SHARE * len(group_G)) if len(group_G) > 1 else 0
    is_stop_G = np.zeros(len(group_G), dtype=bool)
    is_stop_G[np.argsort(draw_G)[:num_groups]] = True
    return is_stop_G[index_P]


def gate_warnings(
    mean_weights: Mapping[str, float], *, gate_loss: float | None, constant_loss: float | None
) -> tuple[str, ...]:
    """Return a sentence for each failure of a gate: a single head, or worse than constant weights.

    Args:
        mean_weights: Mean weight of each head, by head id.
        gate_loss: Loss of the gate on held-out pairs; None if there are none.
        constant_loss: Loss of the best constant weights on the same pairs.
    """
    warnings = [
        f"head {head_id!r} has {weight:.2%} of the gate's mean weight: this gate is a single head"
        for head_id, weight in mean_weights.items()
        if weight > _COLLAPSED_SHARE
    ]
    if gate_loss is None or constant_loss is None:
        return (*warnings, "no pairs are held out, so nothing says whether the gate overfits")
    if gate_loss > constant_loss + _LOSS_TOLERANCE:
        warnings.append(
            "the gate is worse than weights that do not depend on the prompt: loss "
            f"{gate_loss:.4f} instead of {constant_loss:.4f} on held-out pairs; use constant "
            "weights, or more pairs"
        )
    return tuple(warnings)
