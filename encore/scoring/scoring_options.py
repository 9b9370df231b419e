"""Options of `encore score`: which reward model scores which pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from encore.core.config import option
from encore.model.model_options import ComputingConfig


class ScoringConfig(ComputingConfig):
    """Question of a scoring: every response of a study under every head of a reward model."""

    REPLACED_IN_KEYS: ClassVar = frozenset(
        {
            "model",
            "limit",
            "shard_size",
            "out",
            "layout",
            "tokens_per_microbatch",
            "max_set_aside_share",
        }
    )

    model: str = option(metavar="FOLDER_OR_ID")
    """A training run or its model folder, an export, or any plain …ForSequenceClassification with a
    linear head, as a folder or a hub id."""
    out: Path | None = option(None, metavar="DIR")
    """The scores' folder. Default: STUDY/scores/KEY, a key of model, data and plan."""
    limit: Annotated[int, Field(ge=1)] | None = option(None)
    """Pilot: score this many pairs, drawn by content hash."""
    shard_size: int = option(1000, ge=1, le=100_000)
    """Pairs in each file."""
