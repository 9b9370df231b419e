"""Which architectures a reward model may stand on, and how each one is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from encore.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkKind:
    """How an architecture sees and counts its tokens.

    Attributes:
        is_causal: A token sees only earlier ones.
        counts_from_pad: Positions begin at the padding id + 1 (RoBERTa).
        has_pooler: Built with a layer for another purpose unless told not to.
    """

    is_causal: bool
    counts_from_pad: bool = False
    has_pooler: bool = False


_DECODER = TrunkKind(is_causal=True)
_ROBERTA = TrunkKind(is_causal=False, counts_from_pad=True, has_pooler=True)

#: By ``model_type``. A kind stands here when packed and single scores were shown to agree
#: (tests/model/test_trunks.py): one that ignores positions or mixes tokens outside attention would
#: leak one sequence into the next without an error.
TRUNKS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3"), _DECODER),
    "bert": TrunkKind(is_causal=False, has_pooler=True),
    **dict.fromkeys(("roberta", "xlm-roberta"), _ROBERTA),
}

#: What transformers assumes where config.json is silent: a window, or that there is none.
_WINDOWS = {"mistral": 4096}
_WINDOW_OFF = ("qwen2", "qwen3")

#: Of an architecture that nothing is known about.
OTHER = TrunkKind(is_causal=False)


def trunk_kind(config: dict[str, Any], *, name: str) -> TrunkKind:
    """How the model of a config.json is read.

    Args:
        config: Its content.
        name: The model's name, for messages.

    Raises:
        InputError: an architecture that was not shown to be exact, or one used the other way round.
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
    """Tokens of the longest sequence that is computed exactly; None where nothing bounds it.

    That is as many as the model of a config.json has positions for, and no more than its attention
    sees at once: a window that slides is not computed here.
    """
    own = config.get("max_position_embeddings")
    positions = own - position_offset(config, kind) if isinstance(own, int) else None
    bounds = [bound for bound in (positions, _window(config)) if bound is not None]
    return min(bounds, default=None)


def _window(config: dict[str, Any]) -> int | None:
    """Tokens a layer's attention sees; None where all of them."""
    model_type = config.get("model_type")
    if not config.get("use_sliding_window", model_type not in _WINDOW_OFF):
        return None
    window = config.get("sliding_window", _WINDOWS.get(str(model_type)))
    return window if isinstance(window, int) else None


def position_offset(config: dict[str, Any], kind: TrunkKind) -> int:
    """The position of a sequence's first token."""
    return int(config.get("pad_token_id", 1)) + 1 if kind.counts_from_pad else 0
