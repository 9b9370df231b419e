"""Which pretrained model a reward model starts from, and how text becomes its input."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: What a response's tokens become: the last one, their mean, an encoder's first.
Pooling = Literal["last", "mean", "class-token"]


class BackboneConfig(BaseModel):
    """A backbone and its input format: part of a training run's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="Folder with safetensors weights, or a hub id.")
    revision: str | None = Field(
        default=None, description="Hub revision; the commit it resolves to is recorded."
    )
    init: Literal["pretrained", "random"] = Field(
        default="pretrained",
        description="random: only config.json and the tokenizer are read; weights are seeded.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Number format; auto: bfloat16 on CUDA, float32 on CPU."
    )
    pooling: Literal["auto"] | Pooling = Field(
        default="auto",
        description="What a response's tokens become; auto: last of a causal trunk, mean of an "
        "encoder.",
    )
    max_length: int = Field(
        default=1024,
        ge=16,
        description="Tokens of a conversation; the oldest beyond it are cut, and counted. Never "
        "more than the model has positions.",
    )
    chat_template: str | None = Field(
        default=None, description="Path of a Jinja file that replaces the tokenizer's template."
    )
    trust_remote_code: bool = Field(
        default=False, description="Run the Python code a hub model brings. Off unless asked for."
    )
