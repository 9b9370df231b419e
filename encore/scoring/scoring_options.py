"""Options of `encore score`: which reward model scores which pairs, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from encore.core.config import option
from encore.model.model_options import ComputingOptions, ModelOptions
from encore.runs.run_options import RunOptions


class ScoringConfig(ModelOptions):
    """Question of a scoring: every response of a study under every head of a reward model."""

    REPLACED_IN_KEYS = frozenset({"model", "limit", "shard_size"})

    model: str = option(metavar="FOLDER_OR_ID")
    """A training run or its model folder, an export, or any plain …ForSequenceClassification with a
    linear head, as a folder or a hub id."""
    limit: Annotated[int, Field(ge=1)] | None = option(None)
    """Pilot: score this many pairs, drawn by content hash."""
    shard_size: int = option(1000, ge=1, le=100_000)
    """Pairs in each file."""


class ScoringRunOptions(ComputingOptions, RunOptions):
    """Work of one call on a scoring: its folder, its shards, and how the model computes."""

    out: Path | None = option(None, metavar="DIR")
    """The scores' folder. Default: STUDY/scores/KEY, a key of model, data and plan."""
