"""The options that say what a rating run is, for every command that starts one."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from encore.config import MAX_RATING_REPLY_TOKENS, EngineValue, JudgeConfig, RatingConfig
from encore.errors import InputError

Judge = Annotated[
    str,
    typer.Option(
        help="Folder with a model (config, tokenizer with chat template, *.safetensors) or a hub "
        "id such as meta-llama/Meta-Llama-3-70B-Instruct."
    ),
]
Rules = Annotated[
    str, typer.Option(help="encore-10, encore-20, or the path of your own rule set (TOML).")
]
ShardSize = Annotated[
    int,
    typer.Option(
        min=1, max=100_000, help="Pairs per shard: per file, per task, what one crash can cost."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Pilot: rate only this many pairs, a fair sample by content hash."),
]
Backend = Annotated[
    Literal["vllm", "transformers"], typer.Option(help="The engine that runs the judge.")
]
Revision = Annotated[
    str | None, typer.Option(help="Hub revision of the judge (branch, tag or commit).")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Number format of the judge; auto: what its config says."),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(min=64, help="Context in tokens; default: the judge's own, at most 8192."),
]
Overlong = Annotated[
    Literal["set-aside", "truncate-left"],
    typer.Option(
        help="A prompt beyond the context: a null row with its reason, or the conversation's "
        "oldest text is cut. Both are counted."
    ),
]
MaxReplyTokens = Annotated[
    int,
    typer.Option(
        min=2,
        max=MAX_RATING_REPLY_TOKENS,
        help="A longer reply is cut off and therefore null.",
    ),
]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Passed to vLLM, e.g. tensor_parallel_size=4 or quantization=fp8; repeatable.",
    ),
]
Shards = Annotated[
    list[int] | None, typer.Option(min=0, help="Only this shard; repeat for several.")
]
ShardTimeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Give up on a shard whose generation takes longer (seconds)."),
]
ShardRetries = Annotated[
    int, typer.Option(min=0, max=10, help="Further attempts for a shard that fails.")
]

Layout = Annotated[
    Literal["auto", "packed", "prefix-shared", "sorted", "single"],
    typer.Option(
        help="How responses are put side by side; changes speed, and scores by rounding only. "
        "auto: nothing is padded, and a pair's common prompt is computed once where the model "
        "allows it."
    ),
]
TokensPerMicrobatch = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one forward pass: bounds the memory. Default: by device."),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=16,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Default: as the "
        "model was trained.",
    ),
]
ModelDtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(help="Number format; auto: bfloat16 on CUDA, float32 on CPU."),
]


def rating_config(
    *,
    judge: str,
    rules: str,
    shard_size: int,
    limit: int | None,
    backend: Literal["vllm", "transformers"],
    revision: str | None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"],
    max_model_len: int | None,
    overlong: Literal["set-aside", "truncate-left"],
    max_reply_tokens: int,
    engine_arg: list[str] | None,
) -> RatingConfig:
    """The config that the options describe: the same options, the same run key."""
    engine_args = dict(_engine_arg(text) for text in engine_arg or ())
    try:
        return RatingConfig(
            judge=JudgeConfig(
                model=judge,
                backend=backend,
                revision=revision,
                dtype=dtype,
                max_model_len=max_model_len,
                engine_args=engine_args,
            ),
            rules=rules,
            shard_size=shard_size,
            limit=limit,
            overlong=overlong,
            max_reply_tokens=max_reply_tokens,
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        option = "judge" if problem["loc"] == ("model",) else str(problem["loc"][-1])
        raise InputError(
            f"--{option.replace('_', '-')} {problem['input']!r}: {problem['msg']}"
        ) from error


def _engine_arg(text: str) -> tuple[str, EngineValue]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--engine-arg {text!r}: expected NAME=VALUE, e.g. tensor_parallel_size=4")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, parsed if isinstance(parsed, bool | int | float) else value
