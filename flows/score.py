"""Flow: every head's score of every response of a study.

As a command, with or without a Prefect server: ``python -m flows.score STUDY --model MODEL``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from encore.cli import score as options
from encore.cli.output import StudyArgument
from encore.scores.run import Layout
from flows.command import run_command, run_flow
from tasks.errors import log_expected_errors_in_one_line
from tasks.score import DEFAULT_RETRIES, publish_head_accuracy, score_heads

_Positive = Annotated[int, Field(ge=1)]


@flow(name="score", persist_result=False)
def score(
    study: Path,
    model: str,
    out: Path | None = None,
    limit: _Positive | None = None,
    shard_size: _Positive = 1000,
    layout: Layout = "auto",
    tokens_per_microbatch: _Positive | None = None,
    max_length: Annotated[int, Field(ge=16)] | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    revision: str | None = None,
    scoring_retries: Annotated[int, Field(ge=0, le=10)] = DEFAULT_RETRIES,
    scoring_timeout_seconds: Annotated[float, Field(gt=0)] | None = None,
) -> State:
    """Score every response under every head; running it again scores only what is not done.

    Args:
        study: The study's directory, made by `encore ingest`; relative to the working directory.
        model: A training run or its model folder, an export, or a plain reward model's hub id.
        out: The scores' folder; default: STUDY/scores/<key of model, data and plan>.
        limit: Pilot: score this many pairs, drawn by content hash.
        shard_size: Pairs in each file.
        layout: How responses are put side by side; changes speed, and scores by rounding only.
        tokens_per_microbatch: Tokens of one forward pass: bounds the memory. Default: by device.
        max_length: Tokens of a conversation; default: as the model was trained.
        dtype: Number format of the model.
        revision: Of a hub id.
        scoring_retries: Further attempts when a network or a device fails.
        scoring_timeout_seconds: Give up on an attempt that takes longer; finished shards are kept.
    """
    log_expected_errors_in_one_line()
    scored = score_heads.with_options(
        retries=scoring_retries, timeout_seconds=scoring_timeout_seconds
    )(
        study,
        model=model,
        out=out,
        limit=limit,
        shard_size=shard_size,
        layout=layout,
        tokens_per_microbatch=tokens_per_microbatch,
        max_length=max_length,
        dtype=dtype,
        revision=revision,
    )
    publish_head_accuracy(scored)
    return Completed(message=scored.summary, data=scored)


def main(
    study: StudyArgument,
    model: options.Model,
    out_dir: options.OutDir = None,
    limit: options.Limit = None,
    shard_size: options.ShardSize = 1000,
    layout: options.Layout = "auto",
    tokens_per_microbatch: options.TokensPerMicrobatch = None,
    max_length: options.MaxLength = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    scoring_retries: Annotated[
        int, typer.Option(min=0, max=10, help="Attempts after a network or a device failed.")
    ] = DEFAULT_RETRIES,
) -> None:
    """Score a study's responses under Prefect: the same files as `encore score`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (how often each head ranks a pair as people did) are kept on that server. Run the same
    command again after a crash or Ctrl-C: only shards that are missing or damaged are scored.

    Example: python -m flows.score study --model study/training/KEY
    """
    run_flow(
        score,
        study=study,
        model=model,
        out=out_dir,
        limit=limit,
        shard_size=shard_size,
        layout=layout,
        tokens_per_microbatch=tokens_per_microbatch,
        max_length=max_length,
        dtype=dtype,
        revision=revision,
        scoring_retries=scoring_retries,
    )


if __name__ == "__main__":
    run_command(main)
