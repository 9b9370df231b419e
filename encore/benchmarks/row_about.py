"""What a row of a benchmark's table is, beside its figures: kept with its results of every pair.

A row that is read from another table's file has to say there what it said in its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

RowKind = Literal["scheme", "model", "judge", "paper-only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpread:
    """The headline over draws: what chance between draws does, not between pairs.

    Attributes:
        num_draws: How many.
        mean: Of the draws.
        low: Their quantile at 2.5 %.
        high: Their quantile at 97.5 %.
    """

    num_draws: int
    mean: float
    low: float
    high: float


class RowAbout(BaseModel):
    """What a row is, as a file of results keeps it.

    Attributes:
        kind: What made it.
        params: The scheme's parameters.
        draws: Of a mean over draws: its pairs are neither right nor wrong.
        uses_labels: Whether weights were learnt from people's preferences on the training pairs.
        synthetic: What of it is synthetic, in words.
        notes: What a reader of its figures should know, a sentence each.
        judge: Of a judge's row: which.
        scheme: Of its weights; None where it has none, or nobody said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: RowKind
    params: Mapping[str, int | float | str] = Field(default_factory=dict)
    draws: DrawSpread | None = None
    uses_labels: bool = False
    synthetic: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    judge: str | None = None
    scheme: str | None = None
