"""Train the gate of a trained model on a study's preferences: the paper's baseline "MoE gating"."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.config import StageConfig, option
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.model_files import folder_digest
from encore.reporting import SILENT, Reporter
from encore.training.config import TrainingConfig
from encore.versions import package_versions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from encore.data.study import Study
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.examples import Split, TrainingExamples
    from encore.training.gating_network import GatingNetwork

    _Floats = NDArray[np.float32]

RESULT_FILE = "gate-result.json"
#: A head with more of the mean weight than this is all that the gate reads.
_COLLAPSED_SHARE = 0.99
_LOSS_TOLERANCE = 1e-3


class GateConfig(StageConfig):
    """How a gate is built and trained; defaults as in ArmoRM (Wang et al., 2024)."""

    hidden_size: int = option(1024, hidden=True, ge=1, help="Units of a hidden layer.")
    num_hidden_layers: int = option(3, hidden=True, ge=1, help="Hidden layers.")
    dropout: float = option(0.2, hidden=True, ge=0, lt=1, help="After each hidden layer.")
    temperature: float = option(10.0, hidden=True, gt=0, help="Of the softmax over heads.")
    learning_rate: float = option(1e-3, hidden=True, gt=0, help="AdamW's, falling as a cosine.")
    weight_decay: float = option(0.0, hidden=True, ge=0, help="AdamW's.")
    num_steps: int = option(2000, name="steps", ge=1, help="Optimizer steps.")
    batch_pairs: int = option(1024, hidden=True, ge=1, help="Pairs a step, drawn anew each time.")
    seed: int = option(0, ge=0, help="Of initial weights, batches and dropout.")


class TrainGateConfig(StageConfig):
    """`encore gate`: a gate over the heads of one model."""

    study: Path = option(positional=True, identity=False, help="The study directory.")
    model: Path = option(
        metavar="MODEL", help="What `encore train` wrote, e.g. study/training/KEY/model."
    )
    gate: GateConfig = GateConfig()
    limit: int | None = option(None, ge=1, help="Pilot: this many pairs, by content hash.")
    out: Path | None = option(
        None, metavar="DIR", identity=False, help="The gate's folder; default: beside MODEL."
    )


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
        training_loss: Mean over the pairs learnt from, without dropout.
        best_constant_loss: The same of the best weights that do not read the prompt, at their best
            scale: what a gate should not exceed.
        synthetic: What of the data is synthetic, in words.
        notes: What a reader should know of the gate and its data, a sentence each.
        seconds: Of this call.
    """

    out: Path
    num_pairs: int
    num_evaluation_pairs: int
    accuracy_gated: float | None
    accuracy_uniform: float | None
    mean_weights: dict[str, float]
    training_loss: float
    best_constant_loss: float
    synthetic: tuple[str, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


def train_gate(study: Study, config: TrainGateConfig, *, reporter: Reporter = SILENT) -> GateResult:
    """Train a gate over the heads of a model folder; trunk and heads stay as they are.

    What was held out from the model's training is held out here. States are kept beside the gate as
    they come: a killed call goes on from them. The same arguments give the same gate on a CPU.

    Raises:
        InputError: No such model, a model with a single head, or one that does not say how it was
            trained.
    """
    import torch

    from encore.model.saved_model import load_model
    from encore.training.examples import read_examples, split
    from encore.training.gating_network import fit_gate, save_gate

    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer, metadata = load_model(config.model, device=device)
    training = _training_of(config.model, model.head_ids, metadata)
    examples = read_examples(
        study, tokenizer=tokenizer, objective="bradley-terry", limit=config.limit
    )
    # The model's own: what it learnt from must not be held out here, nor the other way round.
    parts = split(examples, evaluation_share=training.evaluation_share, seed=training.seed)
    out = config.out or config.model.parent / "gate"
    states = _states_and_scores(model, examples, tokenizer.pad_token_id, out, reporter)
    reporter.started("gate", total=config.gate.num_steps)
    gate = fit_gate(
        *(array[parts.train_rows] for array in states),
        head_ids=model.head_ids,
        config=config.gate,
        device=device,
        on_step=lambda loss: reporter.advanced(note=f"loss {loss:.3f}"),
    )
    result = _measured(gate, parts, *states, out=out, study=study)
    notes = (*gate_warnings(result), *examples.notes)
    result = replace(result, notes=notes, seconds=time.monotonic() - began)
    save_gate(out, gate)
    # No machine's path: the model is named by its content.
    origin = {"model": f"sha256:{folder_digest(config.model)}", "data_sha256": examples.digest}
    content = asdict(result) | origin | {"versions": package_versions()}
    del content["out"]
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(out / RESULT_FILE, text.encode())
    reporter.saved(out, kind="gate")
    return result


def _training_of(
    model: Path, head_ids: Sequence[str], metadata: Mapping[str, Any]
) -> TrainingConfig:
    """How the model was trained."""
    if len(head_ids) < 2:
        raise InputError(
            f"model {model}: its only head is {head_ids[0]!r}; a gate weighs several heads: give a "
            "model trained with objective multi-head"
        )
    recorded = metadata.get("config")
    if not isinstance(recorded, dict):
        raise InputError(
            f"model {model}: it does not say which prompts were held out from its training; "
            "expected a folder that `encore train` wrote"
        )
    return TrainingConfig.model_validate(recorded)


def _states_and_scores(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    pad_token_id: int,
    out: Path,
    reporter: Reporter,
) -> tuple[_Floats, _Floats, _Floats]:
    """States where the assistant's turn begins, and the head scores of both responses."""
    from encore.training.embeddings import embed, prompt_table

    prompts = prompt_table(examples.chosen, examples.prompt_tokens_P.tolist())
    tables = {"chosen": examples.chosen, "rejected": examples.rejected, "prompt": prompts}
    reporter.started("embedding", total=examples.num_pairs)
    cache = out / "embeddings"
    found = embed(model, tables, cache=cache, pad_token_id=pad_token_id, reporter=reporter)
    head_DR = model.heads.weight.detach().cpu().numpy().T
    return found["prompt"], found["chosen"] @ head_DR, found["rejected"] @ head_DR


def _measured(
    gate: GatingNetwork,
    parts: Split,
    prompt_PD: _Floats,
    chosen_PR: _Floats,
    rejected_PR: _Floats,
    *,
    out: Path,
    study: Study,
) -> GateResult:
    """The losses on the pairs learnt from, weights and accuracies on those held out."""
    import numpy as np

    from encore.synthetic import synthetic_in_training
    from encore.training.evaluation import accuracy_half
    from encore.training.gating_network import best_constant_weights

    rows, held_out = parts.train_rows, parts.evaluation_rows
    margin_PR = chosen_PR - rejected_PR
    weight_PR = gate.weights(prompt_PD)
    mean_R = weight_PR[held_out if len(held_out) else rows].mean(axis=0, dtype=np.float64)
    gated, uniform = (
        accuracy_half(
            *((by * side_PR)[held_out].sum(axis=1) for side_PR in (chosen_PR, rejected_PR))
        )
        for by in (weight_PR, 1 / len(mean_R))
    )
    return GateResult(
        out=out,
        num_pairs=len(rows),
        num_evaluation_pairs=len(held_out),
        accuracy_gated=gated,
        accuracy_uniform=uniform,
        mean_weights=dict(zip(gate.head_ids, mean_R.tolist(), strict=True)),
        training_loss=gate.mean_loss(prompt_PD[rows], margin_PR[rows]),
        best_constant_loss=best_constant_weights(margin_PR[rows])[1],
        synthetic=synthetic_in_training(
            study, backbone_identity={}, rating_run=None, has_ratings_of_study=False
        ),
    )


def gate_warnings(result: GateResult) -> tuple[str, ...]:
    """How a gate failed, a sentence each: it is one-hot, or worse than constant weights."""
    notes = [
        f"head {head_id!r} has {weight:.2%} of the gate's mean weight: this gate is a single head"
        for head_id, weight in result.mean_weights.items()
        if weight > _COLLAPSED_SHARE
    ]
    if result.training_loss > result.best_constant_loss + _LOSS_TOLERANCE:
        notes.append(
            f"the gate's training loss {result.training_loss:.4f} exceeds that of the best "
            f"constant weights, {result.best_constant_loss:.4f}: train it for more steps"
        )
    return tuple(notes)
