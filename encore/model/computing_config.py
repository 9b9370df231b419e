"""Options of a reward model that computes: layout, memory, length, number format."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from encore.core.config import StageConfig, option

_computing = partial(option, group="Reading and computing")

Layout = Literal["auto", "packed", "prefix-shared", "sorted", "single"]


class ComputingConfig(StageConfig):
    """How a reward model is opened, and how it computes."""

    layout: Layout = _computing(
        "auto",
        identity=False,
        help="How responses are put side by side; changes speed, and scores by rounding only. "
        "auto: nothing is padded, and a pair's common prompt is computed once where the model "
        "allows it.",
    )
    tokens_per_microbatch: Annotated[int, Field(ge=1)] | None = _computing(
        None,
        identity=False,
        help="Tokens of one forward pass: bounds the memory. Default: by device.",
    )
    max_length: Annotated[int, Field(ge=16)] | None = _computing(
        None,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Default: as the "
        "model was trained.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = _computing(
        "auto", help="Number format; auto: bfloat16 on CUDA, float32 on CPU."
    )
    revision: str | None = _computing(None, help="Of the hub id given as --model.")
