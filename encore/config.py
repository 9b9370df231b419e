"""What runs: frozen parameters that, together with the data, make a run's identity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

EngineValue = bool | int | float | str
#: A reply to a rating prompt is a number: more tokens than this are none.
MAX_RATING_REPLY_TOKENS = 512


class JudgeConfig(BaseModel):
    """Which model judges, and how it is loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="Folder with safetensors weights, or a hub id.")
    backend: Literal["vllm", "transformers"] = Field(
        default="vllm", description="The engine that runs the model."
    )
    revision: str | None = Field(
        default=None, description="Hub revision; the commit it resolves to is recorded."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format; auto is what the model's own config says."
    )
    max_model_len: Annotated[int, Field(ge=64)] | None = Field(
        default=None,
        description="Context length in tokens; default: the model's own, at most 8192.",
    )
    engine_args: dict[str, EngineValue] = Field(
        default_factory=dict, description="Further engine arguments, e.g. tensor_parallel_size."
    )


class RatingConfig(BaseModel):
    """One rating run: every response of a study's pairs under every rule of a set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: JudgeConfig
    rules: str = Field(default="encore-10", description="A shipped rule set or a TOML path.")
    shard_size: int = Field(
        default=1000, ge=1, le=100_000, description="Pairs per shard (per file, per task)."
    )
    limit: int | None = Field(
        default=None, ge=1, description="Pilot: rate only this many pairs, drawn by content hash."
    )
    overlong: Literal["set-aside", "truncate-left"] = Field(
        default="set-aside",
        description="A prompt beyond the judge's context: keep a null row, or cut the "
        "conversation's oldest text. Counted either way.",
    )
    max_reply_tokens: int = Field(
        default=16,
        ge=2,
        le=MAX_RATING_REPLY_TOKENS,
        description="A longer reply is cut off and therefore null.",
    )
