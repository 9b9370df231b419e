"""Random models of every supported kind, small enough to compare their gradients in a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaModel,
)

from encore.core.transformers_loading import quiet_transformers
from encore.model.architectures import TRUNKS, position_offset
from encore.model.attention import register_segment_attention
from encore.model.backbone_options import LayoutName
from encore.model.backbone_shape import BackboneShape
from encore.model.conversation import ConversationTokenizer
from encore.model.held_out_scores import HeldOutScores
from encore.model.layouts import lay_out
from encore.model.open_model import OpenedModel
from encore.model.reward_model import MultiHeadRewardModel
from tests.worlds.tokenizers import llama_3

VOCABULARY = 97
PAD = 1
HEAD_IDS = ("rule-0", "rule-1", "rule-2")
LAYOUTS: tuple[LayoutName, ...] = ("packed", "prefix-shared", "sorted", "single")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
}
_DECODER_SIZES: dict[str, Any] = {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3}
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_EXTRA: dict[str, dict[str, Any]] = {"gemma": {"head_dim": 8}, "qwen3": {"head_dim": 8}}


def tiny_config(model_type: str, *, dropout: float = 0.0, **changes: Any) -> Any:
    """Return a small config of the kind; decoders have two query heads for each key head."""
    if TRUNKS[model_type].is_causal:
        sizes = _SIZES | _DECODER_SIZES
    else:
        sizes = _SIZES | dict.fromkeys(_DROPOUTS, dropout)
    return AutoConfig.for_model(model_type, **(sizes | _EXTRA.get(model_type, {}) | changes))


def tiny_model(
    model_type: str, *, head_ids: Sequence[str] = HEAD_IDS, seed: int = 0, **changes: Any
) -> MultiHeadRewardModel:
    """Return a reward model in training mode with random weights and heads."""
    kind = TRUNKS[model_type]
    config = tiny_config(model_type, **changes)
    pooler = {"add_pooling_layer": False} if kind.has_pooler else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trunk = AutoModel.from_config(
            config, attn_implementation=register_segment_attention(), **pooler
        )
        for weight in trunk.parameters():
            if weight.ndim == 2:  # with transformers' 0.02, attention would be nearly uniform
                torch.nn.init.normal_(weight, std=0.15)
        model = MultiHeadRewardModel(
            trunk,
            head_ids=head_ids,
            is_causal=kind.is_causal,
            position_offset=position_offset(config.to_dict(), kind),
        )
        torch.nn.init.normal_(model.heads.weight, std=0.1)
    return model.train()


def llama_trunk(shape: BackboneShape) -> Any:
    """Return a bfloat16 Llama of this shape on the GPU."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_length,
        attn_implementation=register_segment_attention(),
    )
    with torch.device("cuda"):
        return LlamaModel._from_config(config, dtype=torch.bfloat16)


def make_classifier(folder: Path, config: Any, tokenizer: Any, *, std: float = 0.2) -> Path:
    """Write a …ForSequenceClassification with random weights and its tokenizer.

    By default the weights are so large that every token changes the score.
    """
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForSequenceClassification.from_config(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.5)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


RULES = ("be-kind", "be-brief", "be-true")
WEIGHTS = {"be-true": 0.2, "be-kind": 0.5, "be-brief": 0.3}  # not in head order
MEANS = (0.25, 0.5, 0.75)
MAX_LENGTH = 500


def opened_model(
    model_type: str = "llama",
    *,
    tokenizer: Any = None,
    metadata: Mapping[str, Any] | None = None,
    held_out: HeldOutScores | None = None,
    **config: Any,
) -> OpenedModel:
    """Return a random model of the heads `RULES` that is ready to score.

    With held-out scores it also has head 0, whose mean is 0.

    Args:
        model_type: Kind of the trunk.
        tokenizer: Byte-level tokenizer. By default Llama 3's, which pads with the end of a turn.
        metadata: Metadata of the model.
        held_out: Scores of held-out pairs under head 0 and the rules.
        config: Changed settings of the trunk.
    """
    # Every token of the byte-level tokenizers has one of the 300 embeddings.
    sizes = {"vocab_size": 300, "max_position_embeddings": 512}
    head_ids, means = (RULES, MEANS)
    if held_out is not None:
        head_ids, means = (("preference", *RULES), (0.0, *MEANS))
    model = tiny_model(model_type, head_ids=head_ids, **(sizes | config))
    model.mean_R.copy_(torch.tensor(means, dtype=torch.float64))
    return OpenedModel(
        model=model.eval(),
        tokenizer=ConversationTokenizer(tokenizer or llama_3(), max_length=MAX_LENGTH),
        metadata=metadata or {},
        name="tiny",
        digest="0" * 64,
        held_out=held_out,
    )


def token_ids(length: int, *, seed: int) -> NDArray[np.int32]:
    """Return random token ids without special tokens."""
    return np.random.default_rng(seed).integers(10, VOCABULARY, length).astype(np.int32)


def pair_with_shared_beginning(
    shared: int, first: int, second: int, *, seed: int
) -> list[NDArray[np.int32]]:
    """Return two sequences with exactly ``shared`` tokens in common at the beginning."""
    beginning, *ends = (
        token_ids(length, seed=seed + index) for index, length in enumerate((shared, first, second))
    )
    ends[1][0] = 10 + (ends[0][0] - 9) % (VOCABULARY - 10)  # the first own tokens differ
    return [np.concatenate([beginning, end]) for end in ends]


def scores_and_gradients(
    model: MultiHeadRewardModel,
    sequences: Sequence[NDArray[np.int32]],
    *,
    layout: LayoutName = "packed",
    groups: Sequence[Sequence[int]] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scores of all sequences, and the gradients of a fixed weighted sum of them."""
    batches = [[ids] for ids in sequences] if layout == "single" else [sequences]
    settings = {"layout": layout, "pad_token_id": PAD, "is_causal": model.is_causal}
    model.zero_grad()
    score_NR = torch.cat([model(lay_out(batch, groups=groups, **settings)) for batch in batches])
    weight_NR = torch.randn(score_NR.shape, generator=torch.Generator().manual_seed(1))
    (score_NR * weight_NR).sum().backward()
    return score_NR.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def edit_json(path: Path, **changes: Any) -> None:
    """Change some values of a JSON object on disk."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of a safetensors file."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
