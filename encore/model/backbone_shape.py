"""How large a backbone is, from its config.json alone: parameters and operations per token.

A reward model loads neither the vocabulary-sized output layer (``lm_head``) nor an encoder's
pooler, so no count here has them. Biases of queries and keys and their norms are left out: they
are less than 0.1 % of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.core.model_files import ModelRole
from encore.model.trunks import max_positions, trunk_kind

_BACKBONE = ModelRole(name="backbone", error=InputError)
#: What config.json calls a dimension, and what `BackboneShape` does; also the order of `_NAMED`.
_DIMENSIONS = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneShape:
    """The dimensions of a transformer without its output layer.

    Attributes:
        name: Of the model.
        is_causal: Whether a token sees only earlier ones.
        num_layers: Layers.
        hidden_size: Width of a token's state.
        intermediate_size: Width of the feed-forward block.
        num_heads: Query heads.
        num_kv_heads: Key heads; as many are the values'.
        head_size: Width of one head.
        vocab_size: Rows of the vocabulary's table.
        num_table_rows: Of all embedding tables: also positions and token types.
        is_output_tied: Whether the output layer is the embedding table.
        max_length: Longest sequence the model knows, in tokens.
    """

    name: str
    is_causal: bool
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    num_table_rows: int
    is_output_tied: bool
    max_length: int

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each matrix of a layer; a decoder's feed-forward block is gated."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        ways_up = ((hidden, inner),) * (2 if self.is_causal else 1)
        return ((hidden, query), (query, hidden), *((hidden, key),) * 2, *ways_up, (inner, hidden))

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: what operations follow from."""
        return self.num_layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def num_layer_parameters(self) -> int:
        """Of one layer: matrices and norms, and the biases of an encoder."""
        vectors = 2 * self.hidden_size
        if not self.is_causal:  # two norms with biases, biases of four projections and of two more
            vectors = 9 * self.hidden_size + self.intermediate_size
        return self.num_matrix_parameters // self.num_layers + vectors

    @property
    def num_embedding_parameters(self) -> int:
        """The tables that are looked up; a step makes a dense gradient of them all the same."""
        return self.num_table_rows * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All of them, with the norm after the last layer (of an encoder: after the tables)."""
        norm = self.hidden_size * (1 if self.is_causal else 2)
        return self.num_embedding_parameters + self.num_layers * self.num_layer_parameters + norm

    @property
    def num_output_parameters(self) -> int:
        """What the output layer would add if it were loaded; 0 where it is the embedding table."""
        is_none = self.is_output_tied or not self.is_causal
        return 0 if is_none else self.vocab_size * self.hidden_size


def flops_per_token(shape: BackboneShape, *, sequence_length: float = 0.0) -> float:
    """Floating point operations to train on one token: two per weight forward, four backward.

    Recomputation for gradient checkpointing is not counted (PaLM, appendix B). Attention adds, in
    each layer, a score and a weighted sum over the tokens that are attended to: half the sequence
    for a causal model.

    Args:
        shape: The backbone.
        sequence_length: Length in tokens as a token sees it; 0 leaves
            attention over the sequence out, 0.6 % of the whole at 300 tokens of Llama 3.1 8B.
    """
    attended = sequence_length / 2 if shape.is_causal else sequence_length
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_size * attended
    return 6 * (shape.num_matrix_parameters + attention)


def useful_flops(shape: BackboneShape, length_N: Sequence[int], *, num_computed: int) -> float:
    """Operations of a step over sequences of these lengths, as MFU counts them.

    Where prompts are shared fewer token positions are computed than the sequences have, and only
    these count as work; padding is none. An average token is in a sequence of Σ l² / Σ l tokens.
    """
    num_tokens = sum(length_N)
    mean_length = sum(length * length for length in length_N) / num_tokens
    return min(num_tokens, num_computed) * flops_per_token(shape, sequence_length=mean_length)


def shape_from_config(config: Mapping[str, Any], *, name: str) -> BackboneShape:
    """The shape that a model's config.json describes.

    Args:
        config: Its content, or a transformers config's ``to_dict()``.
        name: What to call the model in messages.

    Raises:
        InputError: An architecture that is not known, quantized weights, a missing dimension.
    """
    kind = trunk_kind(dict(config), name=name)
    found: dict[str, Any] = {
        "num_key_value_heads": config.get("num_attention_heads"),
        **{key: value for key, value in config.items() if value is not None},
    }
    if found.get("quantization_config"):
        raise InputError(
            f"backbone {name!r}: its config.json has quantization_config, and quantized weights "
            "are not trained here; name the unquantized model"
        )
    for key in _DIMENSIONS:
        if type(found.get(key)) is not int or found[key] < 1:
            raise InputError(
                f"backbone {name!r}: {key} is {found.get(key)!r} in config.json, expected a whole "
                "number above 0; save the model again with save_pretrained"
            )
    own: dict[str, int] = {name: found[key] for key, name in _DIMENSIONS.items()}
    learnt = 0 if kind.is_causal else own["max_length"] + found.get("type_vocab_size", 2)
    own["max_length"] = max_positions({**found, **config}, kind) or own["max_length"]
    return BackboneShape(
        **own,
        name=name,
        is_causal=kind.is_causal,
        head_size=found.get("head_dim") or own["hidden_size"] // own["num_heads"],
        num_table_rows=own["vocab_size"] + learnt,
        is_output_tied=bool(found.get("tie_word_embeddings")),
    )


_NAMED = {
    # The paper's backbones, Skywork-Reward-Llama-3.1-8B and FsfairX-LLaMA3-RM.
    "llama-3.1-8b": ("llama", 32, 4096, 14336, 32, 8, 128_256, 131_072),
    "llama-3-8b": ("llama", 32, 4096, 14336, 32, 8, 128_256, 8192),
    "llama-3-70b": ("llama", 80, 8192, 28672, 64, 8, 128_256, 8192),
    "mistral-7b": ("mistral", 32, 4096, 14336, 32, 8, 32_768, 32_768),
    "qwen3-8b": ("qwen3", 36, 4096, 12288, 32, 8, 151_936, 40_960),
    # sentence-transformers' all-MiniLM-L6-v2.
    "minilm": ("bert", 6, 384, 1536, 12, 12, 30_522, 512),
}


def find_shape(model: str, *, revision: str | None = None) -> BackboneShape:
    """The shape of a backbone; of its files at most config.json is read.

    Args:
        model: A folder with config.json, a short name such as llama-3.1-8b, or a hub id.
        revision: Commit, branch or tag of a hub id.

    Raises:
        InputError: Nothing of that name, a damaged config.json, an unknown kind of model.
    """
    folder, name = Path(model).expanduser(), model.lower()
    if folder.is_dir():
        return shape_from_config(_BACKBONE.read_config(folder), name=folder.resolve().name)
    if name in _NAMED:
        named = dict(zip(("model_type", *_DIMENSIONS), _NAMED[name], strict=True))
        return shape_from_config({**named, "sliding_window": None}, name=name)
    if "/" not in model:
        raise InputError(
            f"backbone {model!r}: no such folder; expected one, a hub id such as "
            f"meta-llama/Llama-3.1-8B-Instruct, or one of {', '.join(_NAMED)}"
        )
    return shape_from_config(_BACKBONE.find(model, revision=revision).config, name=model)
