"""Train the gate of a trained model on a study's preferences: the paper's baseline "MoE gating"."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.data.study import open_study
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.model.folder import LoadedModel, load_model
from encore.model_files import folder_digest
from encore.training.about import synthetic_marks
from encore.training.config import TrainingConfig
from encore.training.embeddings import OnProgress, embed_examples, embed_prompts
from encore.training.evaluation import accuracy_half
from encore.training.examples import TrainingExamples, read_examples
from encore.training.gate import GateConfig, GateRecord, TrainedGate, save_gate, train_gate
from encore.training.machine import available_device
from encore.training.splits import Split, split
from encore.versions import package_versions

# Suffixes: P pairs, R heads, D hidden.

RESULT_FILE = "gate-result.json"
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A trained gate and how it ranks pairs whose prompts it has not seen.

    Attributes:
        out: Its folder.
        num_pairs: Pairs learnt from.
        num_evaluation_pairs: Pairs held out; whole prompt groups.
        accuracy_gated: Share of held-out pairs that the gated reward ranks as people did, ties
            half; None where none are held out.
        accuracy_uniform: The same of the plain mean of the heads, for comparison.
        mean_weights: Mean weight of each head over the held-out prompts (all, where none are).
        final_loss: Of the last step.
        synthetic: What of the data is synthetic, in words.
        seconds: Of this call.
    """

    out: Path
    num_pairs: int
    num_evaluation_pairs: int
    accuracy_gated: float | None
    accuracy_uniform: float | None
    mean_weights: dict[str, float]
    final_loss: float
    synthetic: tuple[str, ...]
    seconds: float


def train_gate_of(
    study: Path,
    *,
    model: Path,
    config: GateConfig,
    limit: int | None = None,
    out: Path | None = None,
    on_embedded: OnProgress | None = None,
    on_step: Callable[[GateRecord], None] | None = None,
) -> GateResult:
    """Train a gate over the heads of a model folder; trunk and heads stay as they are.

    The prompts that were held out from the model's training are held out from the gate's.

    States of responses and prompts are kept beside the gate as they come: a killed call goes on
    from them, and the gate itself takes seconds. The same arguments give the same gate on a CPU.

    Args:
        study: Whose preferences are learnt; no rating is read.
        model: A folder that `encore train` wrote, with at least two heads.
        config: The gate's shape and training.
        limit: Only so many pairs, drawn by content hash.
        out: The gate's folder; None: ``gate`` beside the model's folder.
        on_embedded: Told about embedded pairs: first responses, then prompts.
        on_step: Told about every step.

    Raises:
        InputError: No study, no such model, a model with a single head.
        EncoreError: A loss that is not finite.
    """
    began = time.monotonic()
    study = open_study(study).path
    loaded = load_model(model, device=available_device())
    head_ids = loaded.model.head_ids
    if len(head_ids) < 2:
        raise InputError(
            f"model {model}: its only head is {head_ids[0]!r}; a gate weighs several heads: give a "
            "model trained with objective multi-head"
        )
    examples = read_examples(
        study, tokenizer=loaded.tokenizer, objective="bradley-terry", limit=limit
    )
    parts = _same_split(loaded, examples, model)
    out = out or model.parent / "gate"
    prompt_PD, chosen_PR, rejected_PR = _read_off(loaded, examples, out, on_embedded)
    rows = parts.train_rows
    gate = train_gate(
        prompt_PD[rows],
        chosen_PR[rows],
        rejected_PR[rows],
        head_ids=head_ids,
        config=config,
        device=available_device(),
        on_step=on_step,
    )
    result = GateResult(
        out=out,
        **_evaluated(gate, parts, prompt_PD, chosen_PR, rejected_PR),
        final_loss=gate.log[-1].loss,
        synthetic=synthetic_marks(
            study, backbone_identity={}, rating_run=None, has_ratings_of_study=False
        ),
        seconds=time.monotonic() - began,
    )
    save_gate(out, gate)
    _write_result(result, model, examples)
    return result


def _same_split(loaded: LoadedModel, examples: TrainingExamples, model: Path) -> Split:
    """The model's own: what it learnt from must not be held out here, nor the other way round."""
    recorded = loaded.metadata.get("config")
    if not isinstance(recorded, dict):
        raise InputError(
            f"model {model}: it does not say which prompts were held out from its training; "
            "expected a folder that `encore train` wrote"
        )
    config = TrainingConfig.model_validate(recorded)
    return split(examples, evaluation_share=config.evaluation_share, seed=config.seed)


def _read_off(
    loaded: LoadedModel, examples: TrainingExamples, out: Path, on_embedded: OnProgress | None
) -> tuple[_Floats, _Floats, _Floats]:
    """States where the assistant's turn begins, and the head scores of both responses."""
    model, pad_token_id = loaded.model, loaded.tokenizer.pad_token_id
    cache = out / "embeddings"
    responses = embed_examples(
        model, examples, cache=cache, pad_token_id=pad_token_id, on_progress=on_embedded
    )
    prompt_PD = embed_prompts(
        model, examples, cache=cache, pad_token_id=pad_token_id, on_progress=on_embedded
    )
    head_DR = model.heads.weight.detach().cpu().numpy().T
    return prompt_PD, responses.chosen_PD @ head_DR, responses.rejected_PD @ head_DR


def _evaluated(
    gate: TrainedGate,
    parts: Split,
    prompt_PD: _Floats,
    chosen_PR: _Floats,
    rejected_PR: _Floats,
) -> dict[str, Any]:
    held_out = parts.evaluation_rows
    rows = held_out if len(held_out) else parts.train_rows
    weight_PR = gate.weights(prompt_PD[rows])
    accuracies: dict[str, float | None] = {"accuracy_gated": None, "accuracy_uniform": None}
    if len(held_out):
        accuracies = {
            "accuracy_gated": accuracy_half(
                (weight_PR * chosen_PR[rows]).sum(axis=1),
                (weight_PR * rejected_PR[rows]).sum(axis=1),
            ),
            "accuracy_uniform": accuracy_half(
                chosen_PR[rows].mean(axis=1), rejected_PR[rows].mean(axis=1)
            ),
        }
    mean_R = weight_PR.mean(axis=0, dtype=np.float64)
    return {
        "num_pairs": len(parts.train_rows),
        "num_evaluation_pairs": len(held_out),
        **accuracies,
        "mean_weights": dict(zip(gate.head_ids, mean_R.tolist(), strict=True)),
    }


def _write_result(result: GateResult, model: Path, examples: TrainingExamples) -> None:
    """What the gate was made from, beside it; no machine's path."""
    content = {
        **{name: value for name, value in asdict(result).items() if name != "out"},
        "model": f"sha256:{folder_digest(model)}",
        "data_sha256": examples.digest,
        "notes": list(examples.notes),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "versions": package_versions(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(result.out / RESULT_FILE, text.encode())
