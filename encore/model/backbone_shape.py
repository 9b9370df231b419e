"""The size of a backbone, computed from its config.json alone: parameters and operations.

A reward model loads neither the output layer over the vocabulary (``lm_head``) nor an encoder's
pooler, so the counts exclude both. They also exclude biases and norms of queries and keys, which
are less than 0.1 % of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encore.core.errors import InputError
from encore.core.model_files import ModelFinder, local_path
from encore.model.architectures import max_positions, trunk_kind

_BACKBONE = ModelFinder(name="backbone", error=InputError)
#: Field of `BackboneShape` by key of config.json; also the order of the numbers in `_NAMED`.
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
        name: Name of the model, for messages.
        is_causal: True if a token sees only earlier tokens.
        num_layers: Number of transformer layers.
        hidden_size: Width of a token's state.
        intermediate_size: Width of the feed-forward block.
        num_heads: Number of query heads.
        num_kv_heads: Number of key heads, which is also that of value heads.
        head_size: Width of one attention head.
        vocab_size: Rows of the vocabulary's embedding table.
        num_table_rows: Rows of all embedding tables: vocabulary, positions and token types.
        is_output_tied: True if the output layer shares the embedding table's weights.
        max_length: Longest sequence that the model can read, in tokens.
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
        """Return (inputs, outputs) of each matrix of one layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        # A decoder's feed-forward block is gated: it has two matrices from hidden to inner.
        to_inner = ((hidden, inner),) * (2 if self.is_causal else 1)
        return ((hidden, query), (query, hidden), *((hidden, key),) * 2, *to_inner, (inner, hidden))

    @property
    def num_matrix_parameters(self) -> int:
        """Return the number of weights that every token is multiplied with, in all layers."""
        return self.num_layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def num_layer_parameters(self) -> int:
        """Return the parameters of one layer: matrices and norms, and the biases of an encoder."""
        vectors = 2 * self.hidden_size
        if not self.is_causal:
            # Two norms with biases (4), the biases of attention's four projections (4), and those
            # of the feed-forward block's two matrices (1 and the intermediate size).
            vectors = 9 * self.hidden_size + self.intermediate_size
        return self.num_matrix_parameters // self.num_layers + vectors

    @property
    def num_embedding_parameters(self) -> int:
        """Return the parameters of the embedding tables. Their gradient in a step is dense."""
        return self.num_table_rows * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Return all parameters, with the norm after the last layer (encoder: after the tables)."""
        norm = self.hidden_size * (1 if self.is_causal else 2)
        return self.num_embedding_parameters + self.num_layers * self.num_layer_parameters + norm

    @property
    def num_output_parameters(self) -> int:
        """Return the parameters of an output layer, if it were loaded; 0 if tied or missing."""
        if self.is_output_tied or not self.is_causal:
            return 0
        return self.vocab_size * self.hidden_size


def flops_per_token(shape: BackboneShape, *, sequence_length: float = 0.0) -> float:
    """Return the floating point operations to train on one token.

    A weight needs two forward and four backward. Recomputation for gradient checkpointing is not
    counted (PaLM, appendix B). Attention adds, in each layer, a score and a weighted sum over the
    tokens that a token attends to: half the sequence in a causal model.

    Args:
        shape: Dimensions of the backbone.
        sequence_length: Mean length of a token's sequence, in tokens. With 0, attention is not
            counted: 0.6 % of the total at 300 tokens of Llama 3.1 8B.
    """
    attended = sequence_length / 2 if shape.is_causal else sequence_length
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_size * attended
    return 6 * (shape.num_matrix_parameters + attention)


def useful_flops(shape: BackboneShape, length_N: Sequence[int], *, num_computed: int) -> float:
    """Return the operations of a step over sequences of these lengths, as MFU counts them.

    If prompts are shared, fewer token positions are computed than the sequences have: only the
    computed ones count. Padding does not count. An average token is in a sequence of Σ l² / Σ l
    tokens.
    """
    num_tokens = sum(length_N)
    mean_length = sum(length * length for length in length_N) / num_tokens
    return min(num_tokens, num_computed) * flops_per_token(shape, sequence_length=mean_length)


def shape_from_config(config: Mapping[str, Any], *, name: str) -> BackboneShape:
    """Return the shape that a model's config.json describes.

    Args:
        config: Content of config.json, or a transformers config's ``to_dict()``.
        name: Name of the model, for messages.

    Raises:
        InputError: The architecture is unknown, weights are quantized, or a dimension is missing.
    """
    kind = trunk_kind(dict(config), name=name)
    settings: dict[str, Any] = {
        "num_key_value_heads": config.get("num_attention_heads"),
        **{key: value for key, value in config.items() if value is not None},
    }
    if settings.get("quantization_config"):
        raise InputError(
            f"backbone {name!r}: its config.json has quantization_config, and quantized weights "
            "are not trained here; name the unquantized model"
        )
    for key in _DIMENSIONS:
        if type(settings.get(key)) is not int or settings[key] < 1:
            raise InputError(
                f"backbone {name!r}: {key} is {settings.get(key)!r} in config.json, expected a "
                "whole number above 0; save the model again with save_pretrained"
            )
    dimensions: dict[str, int] = {field: settings[key] for key, field in _DIMENSIONS.items()}
    # An encoder has learnt tables of positions and token types.
    num_further_rows = 0
    if not kind.is_causal:
        num_further_rows = dimensions["max_length"] + settings.get("type_vocab_size", 2)
    longest = max_positions({**settings, **config}, kind)
    dimensions["max_length"] = longest or dimensions["max_length"]
    return BackboneShape(
        **dimensions,
        name=name,
        is_causal=kind.is_causal,
        head_size=settings.get("head_dim") or dimensions["hidden_size"] // dimensions["num_heads"],
        num_table_rows=dimensions["vocab_size"] + num_further_rows,
        is_output_tied=bool(settings.get("tie_word_embeddings")),
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
    """Return the shape of a backbone. At most its config.json is read.

    Args:
        model: A folder with config.json, a short name such as llama-3.1-8b, or a hub id.
        revision: Commit, branch or tag of a hub id.

    Raises:
        InputError: There is no such model, or its config.json is damaged or of an unknown kind.
    """
    folder, name = local_path(model), model.lower()
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
