"""From a config.json to a `ModelShape`: one row for each kind of backbone that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from encore.errors import InputError
from encore.training.plan.shapes import ModelShape, NormKind

_REQUIRED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "vocab_size"),
)
#: Settings that change what is counted here in ways this table does not know.
_REFUSED = (
    ("quantization_config", "quantized weights are not trained here; name the unquantized model"),
    ("num_local_experts", "mixtures of experts are not known here; name a dense model"),
    ("num_experts", "mixtures of experts are not known here; name a dense model"),
    ("add_cross_attention", "cross-attention is not known here; name a plain encoder"),
)
_REFUSED_IN_ENCODERS = (
    *_REFUSED,
    ("is_decoder", "an encoder used as a decoder is not known here; name a plain encoder"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a model type fixes. A bias of None follows the config's own switch."""

    is_causal: bool = True
    norm: NormKind = "rms"
    num_norms_per_layer: int = 2
    query_key_norms: Literal["none", "per-head", "whole"] = "none"
    has_qkv_bias: bool | None = None
    has_output_bias: bool | None = None
    has_mlp_bias: bool | None = False
    is_gated: bool = True
    #: Positions begin after the padding token's id (RoBERTa).
    counts_from_pad: bool = False
    #: What transformers assumes where config.json is silent.
    defaults: Mapping[str, Any] = field(default_factory=dict)


_ENCODER = _Kind(
    is_causal=False,
    norm="layer",
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    is_gated=False,
    defaults={
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "tie_word_embeddings": True,
    },
)
_GEMMA_DEFAULTS = {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True}
_KINDS: dict[str, _Kind] = {
    "llama": _Kind(has_mlp_bias=None, defaults={"max_position_embeddings": 2048}),
    "mistral": _Kind(
        has_qkv_bias=False,
        has_output_bias=False,
        defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    "qwen2": _Kind(
        has_qkv_bias=True,
        has_output_bias=False,
        defaults={"num_key_value_heads": 32, "max_position_embeddings": 32_768},
    ),
    "qwen3": _Kind(
        query_key_norms="per-head",
        defaults={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32_768,
        },
    ),
    "gemma": _Kind(norm="rms-float32", defaults={"num_key_value_heads": 16, **_GEMMA_DEFAULTS}),
    "gemma2": _Kind(
        norm="rms-float32",
        num_norms_per_layer=4,
        defaults={
            "num_key_value_heads": 4,
            "attn_logit_softcapping": 50.0,
            **_GEMMA_DEFAULTS,
        },
    ),
    "olmo2": _Kind(
        norm="rms-float32", query_key_norms="whole", defaults={"max_position_embeddings": 2048}
    ),
    "phi3": _Kind(
        has_qkv_bias=False, has_output_bias=False, defaults={"max_position_embeddings": 4096}
    ),
    "bert": _ENCODER,
    "roberta": replace(_ENCODER, counts_from_pad=True),
    "xlm-roberta": replace(_ENCODER, counts_from_pad=True),
}


def shape_from_config(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape that a model's config.json describes.

    Args:
        config: The content of config.json, or a transformers config's ``to_dict()``.
        name: What to call the model in messages.

    Raises:
        InputError: A kind or a feature that is not known here, or a dimension that is missing.
    """
    kind = _kind_of(config, name=name)
    settings = {
        **kind.defaults,
        **{key: value for key, value in config.items() if value is not None},
    }
    _check(settings, refused=_REFUSED if kind.is_causal else _REFUSED_IN_ENCODERS, name=name)
    num_heads = settings["num_attention_heads"]
    bias, mlp_bias = bool(settings.get("attention_bias")), bool(settings.get("mlp_bias"))
    num_positions = settings["max_position_embeddings"]
    unused = settings.get("pad_token_id", 1) + 1 if kind.counts_from_pad else 0
    return ModelShape(
        name=name,
        kind=config["model_type"],
        is_causal=kind.is_causal,
        num_layers=settings["num_hidden_layers"],
        hidden_size=settings["hidden_size"],
        intermediate_size=settings["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=settings.get("num_key_value_heads", num_heads),
        head_dim=settings.get("head_dim") or settings["hidden_size"] // num_heads,
        vocab_size=settings["vocab_size"],
        num_position_rows=0 if kind.is_causal else num_positions + settings["type_vocab_size"],
        norm=kind.norm,
        num_norms_per_layer=kind.num_norms_per_layer,
        query_key_norms=kind.query_key_norms,
        has_qkv_bias=bias if kind.has_qkv_bias is None else kind.has_qkv_bias,
        has_output_bias=bias if kind.has_output_bias is None else kind.has_output_bias,
        has_mlp_bias=mlp_bias if kind.has_mlp_bias is None else kind.has_mlp_bias,
        is_gated=kind.is_gated,
        is_output_tied=bool(settings.get("tie_word_embeddings")),
        # Named None in the config switches the cap off; silent, it is the kind's.
        has_softcap=bool(
            config.get("attn_logit_softcapping", settings.get("attn_logit_softcapping"))
        ),
        dropout=0.0 if kind.is_causal else float(settings["hidden_dropout_prob"]),
        max_length=num_positions - unused,
    )


def _kind_of(config: Mapping[str, Any], *, name: str) -> _Kind:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _KINDS:
        raise InputError(
            f"backbone {name!r}: its config.json says model_type {model_type!r}; memory and time "
            f"are known for {', '.join(_KINDS)}"
        )
    return _KINDS[model_type]


def _check(settings: Mapping[str, Any], *, refused: Sequence[tuple[str, str]], name: str) -> None:
    for key, reason in refused:
        if settings.get(key):
            raise InputError(f"backbone {name!r}: its config.json has {key}: {reason}")
    for key in (*_REQUIRED, "max_position_embeddings"):
        value = settings.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(
                f"backbone {name!r}: {key} is {value!r} in config.json, expected a whole number "
                "above 0; save the model again with save_pretrained"
            )
