"""Table of the architectures that can be the trunk of a reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from encore.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkKind:
    """Properties of an architecture that the layout of its input depends on.

    Attributes:
        is_causal: True if a token sees only earlier tokens.
        counts_from_pad: True if positions begin at the padding id + 1 (RoBERTa).
        has_pooler: True if transformers adds a pooling layer by default.
    """

    is_causal: bool
    counts_from_pad: bool = False
    has_pooler: bool = False


_DECODER = TrunkKind(is_causal=True)
_ROBERTA = TrunkKind(is_causal=False, counts_from_pad=True, has_pooler=True)

#: Kind of each ``model_type``. The table has only architectures whose packed and single scores
#: agree (tests/model/test_architectures.py). An architecture that ignores positions or mixes tokens
#: outside of attention would silently leak one sequence into the next.
TRUNKS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3"), _DECODER),
    "bert": TrunkKind(is_causal=False, has_pooler=True),
    **dict.fromkeys(("roberta", "xlm-roberta"), _ROBERTA),
}

#: Attention windows in tokens that transformers assumes if config.json does not state them.
_DEFAULT_WINDOWS = {"mistral": 4096}
#: Architectures that use a window only if config.json says so.
_WINDOW_OFF_BY_DEFAULT = ("qwen2", "qwen3")

#: Kind of an architecture that is not in the table.
UNKNOWN_KIND = TrunkKind(is_causal=False)


def trunk_kind(config: dict[str, Any], *, name: str) -> TrunkKind:
    """Return the kind of a model's architecture.

    Args:
        config: Content of the model's config.json.
        name: Name of the model, for messages.

    Raises:
        InputError: The architecture is not in the table, or config.json makes a decoder an encoder
            or an encoder a decoder.
    """
    model_type = config.get("model_type")
    kind = TRUNKS.get(str(model_type))
    if kind is None:
        raise InputError(
            f"backbone {name!r}: architecture {model_type!r} is not one ENCORE can train on; "
            f"expected one of {', '.join(sorted(TRUNKS))}"
        )
    is_causal = config.get("is_causal", kind.is_causal)
    if is_causal != kind.is_causal or (config.get("is_decoder", False) and not kind.is_causal):
        raise InputError(
            f"backbone {name!r}: config.json turns {model_type!r} round (is_causal {is_causal!r}, "
            f"is_decoder {config.get('is_decoder')!r}); expected is_causal {kind.is_causal}"
        )
    return kind


def max_positions(config: dict[str, Any], kind: TrunkKind) -> int | None:
    """Return the longest sequence in tokens that is computed exactly; None if there is no limit.

    The limit is the number of positions of the model, or its attention window if that is smaller: a
    sliding window is not implemented here.
    """
    num_positions = config.get("max_position_embeddings")
    limits = []
    if isinstance(num_positions, int):
        limits.append(num_positions - position_offset(config, kind))
    if (window := _attention_window(config)) is not None:
        limits.append(window)
    return min(limits, default=None)


def _attention_window(config: dict[str, Any]) -> int | None:
    """Return the number of tokens that attention sees; None if it sees all."""
    model_type = config.get("model_type")
    if not config.get("use_sliding_window", model_type not in _WINDOW_OFF_BY_DEFAULT):
        return None
    window = config.get("sliding_window", _DEFAULT_WINDOWS.get(str(model_type)))
    return window if isinstance(window, int) else None


def position_offset(config: dict[str, Any], kind: TrunkKind) -> int:
    """Return the position of a sequence's first token."""
    return int(config.get("pad_token_id", 1)) + 1 if kind.counts_from_pad else 0
