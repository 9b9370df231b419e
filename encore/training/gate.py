"""Train the gate of a trained model on a study's preferences: the paper's baseline "MoE gating"."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.config import StageConfig, option
from encore.errors import InputError
from encore.files import atomic_write_bytes
from encore.model_files import folder_digest
from encore.reporting import SILENT, Reporter
from encore.versions import package_versions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from encore.data.study import Study
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.config import TrainingConfig
    from encore.training.examples import Split, TrainingExamples
    from encore.training.gating_network import TrainedGate

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
        final_loss: Of the last step, with dropout.
        training_loss: Mean over the pairs learnt from, without dropout.
        best_constant_loss: The same of the best weights that do not read the prompt, at their best
            scale: what a gate should not exceed.
        scale: Of the margins in the loss.
        notes: What a reader should know of the gate and its data, a sentence each.
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
    training_loss: float
    best_constant_loss: float
    scale: float
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]
    seconds: float

    @property
    def losses(self) -> str:
        """The gate's training loss beside that of the best constant weights, as a sentence."""
        return (
            f"gate: training loss {self.training_loss:.4f}; of the best constant weights "
            f"{self.best_constant_loss:.4f}"
        )


def train_gate(study: Study, config: TrainGateConfig, *, reporter: Reporter = SILENT) -> GateResult:
    """Train a gate over the heads of a model folder; trunk and heads stay as they are.

    What was held out from the model's training is held out here. States are kept beside the gate as
    they come: a killed call goes on from them. The same arguments give the same gate on a CPU.

    Raises:
        InputError: No such model, or a model with a single head.
    """
    import torch

    from encore.model.saved_model import load_model
    from encore.synthetic import synthetic_in_training
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
    figures = _figures(gate, parts, *states)
    synthetic = synthetic_in_training(
        study, backbone_identity={}, rating_run=None, has_ratings_of_study=False
    )
    result = GateResult(
        out=out,
        **figures,
        notes=(*gate_warnings(**figures), *examples.notes),
        synthetic=synthetic,
        seconds=time.monotonic() - began,
    )
    save_gate(out, gate)
    _write(result, model=config.model, data_sha256=examples.digest)
    reporter.saved(out, kind="gate")
    return result


def _write(result: GateResult, *, model: Path, data_sha256: str) -> None:
    """The result beside its gate, with what it was made from; no machine's path."""
    origin = {"model": f"sha256:{folder_digest(model)}", "data_sha256": data_sha256}
    content = asdict(result) | origin | {"versions": package_versions()}
    del content["out"]
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(result.out / RESULT_FILE, text.encode())


def _training_of(
    model: Path, head_ids: Sequence[str], metadata: Mapping[str, Any]
) -> TrainingConfig:
    """How the model was trained.

    Raises:
        InputError: A model with a single head, or one that does not say.
    """
    from encore.training.config import TrainingConfig

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

    found: dict[str, _Floats] = {}
    prompts = prompt_table(examples.chosen, examples.prompt_tokens_P.tolist())
    for title, tables in (
        ("responses", {"chosen": examples.chosen, "rejected": examples.rejected}),
        ("prompts", {"prompt": prompts}),
    ):
        reporter.started(f"embedding {title}", total=examples.num_pairs)
        cache = out / "embeddings"
        found |= embed(model, tables, cache=cache, pad_token_id=pad_token_id, reporter=reporter)
    head_DR = model.heads.weight.detach().cpu().numpy().T
    return found["prompt"], found["chosen"] @ head_DR, found["rejected"] @ head_DR


def _figures(
    gate: TrainedGate, parts: Split, prompt_PD: _Floats, chosen_PR: _Floats, rejected_PR: _Floats
) -> dict[str, Any]:
    """The losses on the pairs learnt from, weights and accuracies on those held out."""
    import numpy as np

    from encore.training.evaluation import accuracy_half
    from encore.training.gating_network import best_constant_weights

    rows, held_out = parts.train_rows, parts.evaluation_rows
    margin_PR = chosen_PR[rows] - rejected_PR[rows]
    seen = held_out if len(held_out) else rows
    weight_PR = gate.weights(prompt_PD[seen])
    gated, uniform = (
        accuracy_half(
            (by_PR * chosen_PR[seen]).sum(axis=1), (by_PR * rejected_PR[seen]).sum(axis=1)
        )
        for by_PR in (weight_PR, np.full_like(weight_PR, 1 / len(gate.head_ids)))
    )
    mean_R = weight_PR.mean(axis=0, dtype=np.float64)
    _, best_constant_loss = best_constant_weights(margin_PR)
    return {
        "num_pairs": len(rows),
        "num_evaluation_pairs": len(held_out),
        "accuracy_gated": gated if len(held_out) else None,
        "accuracy_uniform": uniform if len(held_out) else None,
        "mean_weights": dict(zip(gate.head_ids, mean_R.tolist(), strict=True)),
        "final_loss": gate.losses[-1],
        "training_loss": gate.loss(prompt_PD[rows], margin_PR),
        "best_constant_loss": best_constant_loss,
        "scale": gate.scale,
    }


def gate_warnings(
    *,
    mean_weights: Mapping[str, float],
    training_loss: float,
    best_constant_loss: float,
    **_others: object,
) -> tuple[str, ...]:
    """How a gate failed, a sentence each: it is one-hot, or worse than constant weights."""
    notes = [
        f"head {head_id!r} has {weight:.2%} of the gate's mean weight: this gate is a single head"
        for head_id, weight in mean_weights.items()
        if weight > _COLLAPSED_SHARE
    ]
    if training_loss > best_constant_loss + _LOSS_TOLERANCE:
        notes.append(
            f"the gate's training loss {training_loss:.4f} exceeds that of the best constant "
            f"weights, {best_constant_loss:.4f}: train it for more steps"
        )
    return tuple(notes)
