"""The paper's "MoE" row: the rewards of a benchmark's pairs when a gate weighs the heads.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads, D hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError
from encore.model.opening import OpenedModel
from encore.model_files import folder_digest
from encore.scores.head_scores import HeadScores
from encore.training.embeddings import embed_prompts
from encore.training.examples import TrainingExamples
from encore.training.gate import RESULT_FILE
from encore.training.gating_network import GATE_FILE, WEIGHTS_FILE, TrainedGate, load_gate
from encore.training.groups import group_of
from encore.training.tokens import TokenTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedGate:
    """A gate that belongs to a model, as far as its folder says.

    Attributes:
        trained: The gate.
        digest: SHA-256 over its files; a gate that is trained again to the same has the same.
        synthetic: What of its training is synthetic, in words.
        notes: What a reader should know of it, a sentence each.
    """

    trained: TrainedGate
    digest: str
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]


class _Recorded(BaseModel):
    """What `encore gate` wrote beside the gate; what else stands there is for others."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    synthetic: tuple[str, ...]


def open_gate(gate: Path, *, opened: OpenedModel, model: str | Path) -> OpenedGate:
    """A gate over the heads of a model; nothing is computed yet.

    Args:
        gate: A folder that `encore gate` wrote for this model.
        opened: The model whose heads are weighed.
        model: Where it was opened from.

    Raises:
        InputError: No gate there, or one of other heads, of a trunk of another width, or of
            another model with heads of the same names.
    """
    trained = load_gate(gate, head_ids=opened.model.head_ids)
    num_inputs = trained.num_inputs
    if num_inputs != opened.model.hidden_size:
        raise InputError(
            f"gate {gate}: it reads states of {num_inputs} numbers, those of model {opened.name} "
            f"have {opened.model.hidden_size}; train a gate for this model with `encore gate`"
        )
    recorded, digests = _recorded(gate), _digests(model)
    if recorded is None or not digests:
        unknown = f"gate {gate.name}: nothing says that it was trained for model {opened.name}"
        marks = () if recorded is None else recorded.synthetic
        return OpenedGate(
            trained=trained, digest=_gate_digest(gate), synthetic=marks, notes=(unknown,)
        )
    if recorded.model not in digests:
        raise InputError(
            f"gate {gate}: it was trained for another model ({recorded.model[:19]}…) than "
            f"{opened.name}, whose heads have the same names; train one for this model with "
            "`encore gate`"
        )
    return OpenedGate(
        trained=trained, digest=_gate_digest(gate), synthetic=recorded.synthetic, notes=()
    )


def gated_rewards(
    scores: HeadScores,
    pairs: BenchmarkPairs,
    *,
    opened: OpenedModel,
    gate: TrainedGate,
    cache: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """The gate's weighted sum of centred head scores, reward_P2, chosen first.

    The gate reads the state where the assistant's turn begins, so every prompt goes through the
    trunk once more; what is computed is kept in ``cache``.

    Args:
        scores: Of these pairs, in their order.
        pairs: Of the benchmark.
        opened: The model whose heads are weighed.
        gate: Of this model (`open_gate`).
        cache: Where prompts' states are kept; None: nowhere.
        on_progress: Told about finished prompts, and of how many.
    """
    prompt_PD = embed_prompts(
        opened.model,
        _examples(pairs, opened),
        cache=cache,
        pad_token_id=opened.tokenizer.pad_token_id,
        on_progress=on_progress,
    )
    weight_PR = gate.weights(prompt_PD).astype(np.float64)
    reward_P2 = np.einsum("pr,pcr->pc", weight_PR, scores.score_P2R.astype(np.float64))
    return np.asarray(reward_P2, dtype=np.float64)


def _recorded(gate: Path) -> _Recorded | None:
    """What the gate's folder says of its training; None for a gate that came without it."""
    path = gate / RESULT_FILE
    try:
        return _Recorded.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path}: it does not say for which model the gate was trained "
            f"({type(error).__name__}); train it again with `encore gate`"
        ) from error


def _gate_digest(gate: Path) -> str:
    """Not of its report, which says how long the training took."""
    parts = (hashlib.sha256((gate / name).read_bytes()) for name in (GATE_FILE, WEIGHTS_FILE))
    return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


def _digests(model: str | Path) -> set[str]:
    """Of the model's folder, or of the one in a training run's; none for a model of the hub."""
    folder = Path(model).expanduser()
    found = (one for one in (folder, folder / "model") if one.is_dir())
    return {f"sha256:{folder_digest(one)}" for one in found}


def _examples(pairs: BenchmarkPairs, opened: OpenedModel) -> TrainingExamples:
    """The pairs' tokens in the form that embedding takes; there is nothing to learn from them."""
    encoded = opened.tokenizer.encode_pairs(pairs.pairs)
    no_target_PR = np.empty((len(encoded), 0), dtype=np.float32)
    return TrainingExamples(
        head_ids=opened.model.head_ids,
        source_P=np.array([pair.source for pair in pairs.pairs], dtype=np.object_),
        pair_id_P=np.array([pair.pair_id for pair in pairs.pairs], dtype=np.object_),
        group_P=np.array([group_of(pair) for pair in pairs.pairs], dtype=np.int64),
        chosen=TokenTable.of(pair.chosen.token_ids for pair in encoded),
        rejected=TokenTable.of(pair.rejected.token_ids for pair in encoded),
        prompt_tokens_P=np.array([pair.chosen.num_prompt for pair in encoded], dtype=np.int32),
        target_chosen_PR=no_target_PR,
        target_rejected_PR=no_target_PR,
        mean_R=np.zeros(len(opened.model.head_ids)),
        digest=pairs.digest,
    )
