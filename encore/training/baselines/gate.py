"""Train the gate of a trained model on a study's preferences: the paper's baseline "MoE gating"."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.core.files import write_json
from encore.core.model_files import folder_digest
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.data.study import Study
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
from encore.training.training_config import TrainGateConfig, TrainingConfig
from encore.training.training_examples import TrainingExamples, read_examples, split

RESULT_FILE = "gate-result.json"
#: A head with more of the mean weight than this is all that the gate reads.
_COLLAPSED_SHARE = 0.99
_LOSS_TOLERANCE = 1e-3

_Floats = NDArray[np.float32]
_Rows = NDArray[np.int64]


def train_gate(
    study: Study, config: TrainGateConfig, *, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Train a gate over the heads of a model folder; trunk and heads stay as they are.

    What was held out from the model's training is held out here. States are kept beside the gate as
    they come: a killed call goes on from them. The same arguments give the same gate on a CPU.

    Returns:
        Plain values: ``out``, the gate's folder; what `_figures` gives; ``synthetic``, what of the
        data is synthetic, in words; ``notes``, what a reader should know; ``seconds``.

    Raises:
        InputError: No such model, or one with a single head.
    """
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer, metadata = load_model(config.model, device=device)
    if len(model.head_ids) < 2:
        raise InputError(
            f"model {config.model}: its only head is {model.head_ids[0]!r}; a gate weighs several "
            "heads: give a model trained with objective multi-head"
        )
    training = TrainingConfig.model_validate(metadata["config"])
    examples = read_examples(
        study, tokenizer=tokenizer, objective="bradley-terry", limit=config.limit
    )
    # The model's own: what it learnt from must not be held out here, nor the other way round.
    rows, held_out = split(examples, evaluation_share=training.evaluation_share, seed=training.seed)
    out = config.out or config.model.parent / "gate"
    prompt_PD, margin_PR = _states_and_margins(
        model, examples, tokenizer.pad_token_id, out, reporter
    )
    reporter.started("gate", total=config.gate.num_steps)
    gate = fit_gate(
        prompt_PD[rows],
        margin_PR[rows],
        head_ids=model.head_ids,
        config=config.gate,
        device=device,
        on_step=lambda loss: reporter.advanced(note=f"loss {loss:.3f}"),
    )
    result = _figures(gate, prompt_PD, margin_PR, rows=rows, held_out=held_out)
    result["synthetic"] = study.synthetic
    result["notes"] = (*gate_warnings(result), *examples.notes)
    result["seconds"] = time.monotonic() - began
    save_gate(out, gate)
    # No machine's path: the model is named by its content.
    content = {"model": f"sha256:{folder_digest(config.model)}", "data_sha256": examples.digest}
    write_json(out / RESULT_FILE, {**result, **content, "versions": package_versions()})
    reporter.saved(out, kind="gate")
    return {"out": str(out), **result}


def _states_and_margins(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    pad_token_id: int,
    out: Path,
    reporter: Reporter,
) -> tuple[_Floats, _Floats]:
    """States where the assistant's turn begins [P, D], and the heads' margins [P, R]."""
    texts = zip(examples.chosen, examples.rejected, examples.prompt_tokens_P, strict=True)
    state_P3D = embed(
        model,
        [(chosen, rejected, prompt_tokens(chosen, num)) for chosen, rejected, num in texts],
        cache=out / "embeddings",
        pad_token_id=pad_token_id,
        reporter=reporter,
    )
    head_DR = model.heads.weight.detach().cpu().numpy().T
    return state_P3D[:, 2], (state_P3D[:, 0] - state_P3D[:, 1]) @ head_DR


def _figures(
    gate: GatingNetwork, prompt_PD: _Floats, margin_PR: _Floats, *, rows: _Rows, held_out: _Rows
) -> dict[str, Any]:
    """How a gate ranks pairs whose prompts it has not seen, and what it learnt.

    ``num_pairs`` are learnt from, ``num_evaluation_pairs`` held out, in whole prompt groups;
    ``accuracy_gated`` is the share of held-out pairs that the gated reward ranks as people did,
    ties half, None where none are held out; ``accuracy_uniform`` the same of the plain mean of the
    heads; ``mean_weights`` over the held-out prompts (all, where none are); ``training_loss`` over
    the pairs learnt from, without dropout; ``best_constant_loss`` the same of the best weights that
    do not read the prompt, at their best scale: what a gate should not exceed.
    """
    weight_PR = gate.weights(prompt_PD)
    mean_R = weight_PR[held_out if len(held_out) else rows].mean(axis=0, dtype=np.float64)
    return {
        "num_pairs": len(rows),
        "num_evaluation_pairs": len(held_out),
        "accuracy_gated": accuracy_half((weight_PR * margin_PR)[held_out].sum(axis=1)),
        "accuracy_uniform": accuracy_half(margin_PR[held_out].mean(axis=1)),
        "mean_weights": dict(zip(gate.head_ids, mean_R.tolist(), strict=True)),
        "training_loss": gate.mean_loss(prompt_PD[rows], margin_PR[rows]),
        "best_constant_loss": best_constant_weights(margin_PR[rows])[1],
    }


def gate_warnings(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """How a gate failed, a sentence each: it is one-hot, or worse than constant weights."""
    notes = [
        f"head {head_id!r} has {weight:.2%} of the gate's mean weight: this gate is a single head"
        for head_id, weight in figures["mean_weights"].items()
        if weight > _COLLAPSED_SHARE
    ]
    loss, best = figures["training_loss"], figures["best_constant_loss"]
    if loss > best + _LOSS_TOLERANCE:
        notes.append(
            f"the gate's training loss {loss:.4f} exceeds that of the best constant weights, "
            f"{best:.4f}: train it for more steps"
        )
    return tuple(notes)
