"""What a recipe says: every choice between preference pairs and the table, and nothing else.

A recipe is data. `encore.recipes.shipped` has the named ones; `flows.recipes` runs one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from encore.config import RatingConfig
from encore.data.sources.pku import Prefer
from encore.model.config import BackboneConfig
from encore.training.config import TrainingConfig
from encore.weighting import SCHEMES
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU

_Positive = Annotated[int, Field(ge=1)]
#: Temperatures of the table's ENCORE rows, as `encore benchmark` has them; the paper's is 2.
TAUS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Weighing(_Part):
    """The scheme of the exported model, as in `encore weights`."""

    scheme: str = Field(default="encore", description="One of `encore weights --help`.")
    tau: float = Field(default=DEFAULT_TAU, gt=0, description="Temperature of scheme encore.")
    k: int = Field(default=DEFAULT_K, ge=1, description="Rules that top-k and random-k select.")
    seed: int = Field(default=0, ge=0, description="Of schemes that draw by chance.")

    @model_validator(mode="after")
    def _names_no_rule(self) -> Self:
        if self.scheme == "single":
            raise ValueError(
                "weighing scheme 'single' needs a rule, and a recipe names none; export it with "
                "`encore export MODEL --rule RULE_ID`"
            )
        return self


class RowModel(_Part):
    """A reward model with one head: a row of the table.

    A row named after a method of the paper (``bradley-terry-model``,
    ``bradley-terry-model-initialised``) stands beside the paper's figure.
    """

    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9 -]*$", description="Of its row.")
    backbone: BackboneConfig = Field(
        description="What it starts from; without training a model and its revision, no more."
    )
    training: TrainingConfig | None = Field(
        default=None, description="How it is trained on preferences; None: as it was downloaded."
    )

    @model_validator(mode="after")
    def _has_one_head(self) -> Self:
        if self.training is not None and self.training.objective != "bradley-terry":
            raise ValueError(
                f"row {self.name!r}: trained with objective {self.training.objective}, expected "
                "bradley-terry: a row of its own has one head"
            )
        return self

    @model_validator(mode="after")
    def _is_opened_as_it_says(self) -> Self:
        if self.training is not None:
            return self
        usual = BackboneConfig(model=self.backbone.model, revision=self.backbone.revision)
        idle = [
            f"{name} {value!r}" for name, value in self.backbone if value != getattr(usual, name)
        ]
        if idle:
            raise ValueError(
                f"row {self.name!r}: its backbone says {', '.join(idle)}, and a reward model "
                "without training is opened as it was downloaded; leave that out (model and "
                "revision are read), or give the row a training"
            )
        return self

    @property
    def stage(self) -> str:
        """Of its training."""
        return f"train-{self.name.replace(' ', '-')}"


class TablePlan(_Part):
    """The benchmark and its rows, as in `encore benchmark`."""

    benchmark: str = Field(
        default="rewardbench-safety", description="A shipped benchmark or a TOML path."
    )
    data: Path | None = Field(default=None, description="Its rows as local files; None: the hub.")
    paper: Literal["main", "fsfairx", "none"] = Field(
        default="main", description="Which backbone's figures of the paper stand beside ours."
    )
    schemes: tuple[str, ...] = Field(default=tuple(SCHEMES), description="Rows of these schemes.")
    taus: tuple[float, ...] = Field(default=TAUS, description="Temperatures of scheme encore.")
    num_random: int = Field(default=1000, ge=1, description="Weight vectors of the rows of chance.")


class Recipe(_Part):
    """A run from pairs to the table.

    Attributes:
        name: On the command line; also names its folder in the study.
        about: What it is for, a sentence.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=48)
    about: str = Field(min_length=1)
    sources: tuple[str, ...] = Field(min_length=1, description="As for `encore ingest`.")
    prefer: Prefer | None = Field(default=None, description="Label of raw PKU-SafeRLHF.")
    rating: RatingConfig = Field(description="Judge, rules and plan.")
    weighing: Weighing = Field(default=Weighing(), description="Of the exported model.")
    backbone: BackboneConfig = Field(description="What the multi-head model starts from.")
    training: TrainingConfig = Field(description="How it is trained.")
    rows: tuple[RowModel, ...] = Field(default=(), description="Reward models beside it.")
    gate_steps: _Positive | None = Field(
        default=None, description="Steps of the MoE gate; None: no gate."
    )
    score_limit: _Positive | None = Field(
        default=None, description="Pairs of the study that every head scores; None: all."
    )
    table: TablePlan = Field(default=TablePlan(), description="Benchmark and rows.")
    export_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Number format of the exported model."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.training.objective != "multi-head":
            raise ValueError(
                f"recipe {self.name}: training objective {self.training.objective}, expected "
                "multi-head: its heads are what is weighed"
            )
        twice = [name for name, num in Counter(row.name for row in self.rows).items() if num > 1]
        if twice:
            raise ValueError(f"recipe {self.name}: row {twice[0]!r} is there more than once")
        return self

    @property
    def limit(self) -> int | None:
        """Pairs that are rated and learnt from; None: all."""
        return self.rating.limit
