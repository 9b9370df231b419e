"""The options of scoring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from encore.config import StageConfig, option

Layout = Literal["auto", "packed", "prefix-shared", "sorted", "single"]


class ScoringConfig(StageConfig):
    """One scoring: every response of a study's pairs under every head of a reward model."""

    model: str = option(
        metavar="FOLDER_OR_ID",
        help="A training run or its model folder, an export, or any plain "
        "…ForSequenceClassification with a linear head, as a folder or a hub id.",
    )
    out: Path | None = option(
        None,
        metavar="DIR",
        identity=False,
        help="The scores' folder. Default: STUDY/scores/KEY, a key of model, data and plan.",
    )
    limit: Annotated[int, Field(ge=1)] | None = option(
        None, help="Pilot: score this many pairs, drawn by content hash."
    )
    shard_size: int = option(1000, ge=1, le=100_000, help="Pairs in each file.")
    layout: Layout = option(
        "auto",
        identity=False,
        help="How responses are put side by side; changes speed, and scores by rounding only. "
        "auto: nothing is padded, and a pair's common prompt is computed once where the model "
        "allows it.",
    )
    tokens_per_microbatch: Annotated[int, Field(ge=1)] | None = option(
        None,
        identity=False,
        help="Tokens of one forward pass: bounds the memory. Default: by device.",
    )
    max_length: Annotated[int, Field(ge=16)] | None = option(
        None,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Default: as the "
        "model was trained.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto", help="Number format; auto: bfloat16 on CUDA, float32 on CPU."
    )
    revision: str | None = option(None, help="Of a hub id.")


class ScoreConfig(ScoringConfig):
    """`encore score`: a scoring of a study."""

    study: Path = option(
        positional=True, identity=False, help="The study directory (made by `encore ingest`)."
    )
