"""Options with which a stage opens a reward model and computes its scores."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from encore.core.config import StageConfig, option

_computing = partial(option, group="Reading and computing")

#: Number format of weights; auto is bfloat16 on CUDA and float32 on a CPU.
NumberFormat = Literal["auto", "float32", "bfloat16"]
#: Default of `set_aside_option`.
MAX_SET_ASIDE_SHARE = 0.1
Layout = Literal["auto", "packed", "prefix-shared", "sorted", "single"]


def set_aside_option(group: str | None = None) -> Any:
    """Return the option that limits the share of pairs that a chat template may refuse."""
    text = (
        "Largest share of the pairs that the model's chat template may refuse, for example for a "
        "system turn. They are set aside and counted. A larger share is an error before any work."
    )
    return option(MAX_SET_ASIDE_SHARE, help=text, group=group, ge=0, le=1, metavar="SHARE")


class ModelOptions(StageConfig):
    """Options with which a reward model is opened; see `encore.model.open_model`."""

    max_length: int | None = _computing(None, ge=16)
    """Longest conversation in tokens. The oldest tokens beyond it are cut, and counted. Default:
    the limit of the model's training."""
    dtype: NumberFormat = _computing("auto")
    """Number format of the weights; auto: bfloat16 on CUDA, float32 on CPU."""
    revision: str | None = _computing(None)
    """Revision of a model given as a hub id."""


class ComputingOptions(StageConfig):
    """Way in which a reward model computes scores. It changes none but by rounding."""

    layout: Layout = _computing("auto")
    """How responses are laid out in a batch. It changes the speed, and scores only by rounding.
    auto: no padding, and a pair's common prompt is computed once where the model allows it."""
    tokens_per_microbatch: int | None = _computing(None, ge=1)
    """Tokens of one forward pass. It limits the memory. Default: by device."""
    max_set_aside_share: float = set_aside_option(group="Reading and computing")
