"""Options of `encore export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from encore.core.command_parser import UsageError
from encore.core.config import option
from encore.model.model_options import ModelOptions
from encore.weighting.weights_options import WeightChoice


class ExportConfig(ModelOptions):
    """Options of `encore export`: one model, written as one plain folder."""

    model: str = option(positional=True)
    """A run or model folder of `encore train`, an export with all heads, or a hub id."""
    out: Path = option(metavar="DIR")
    """The folder to write; one export."""
    composition: WeightChoice = WeightChoice()
    dtype: Literal["float32", "bfloat16"] = option("float32")
    """Number format of the weights on disk; bfloat16 halves them and can flip near-ties."""
    licence: str | None = option(None, name="license", metavar="ID")
    """Licence that the model card states, by its name on the hub, e.g. mit."""
    push: str | None = option(None, metavar="REPO")
    """Upload the written export to this repository of the Hugging Face hub (owner/name). The token
    is that of `hf auth login` or HF_TOKEN. A new repository is private."""

    @model_validator(mode="after")
    def _options_belong_together(self) -> Self:
        chosen = self.composition
        if chosen.ratings is not None and chosen.scheme is None and self.dtype != "bfloat16":
            raise UsageError(
                "--ratings belongs to --scheme, or (a study) to --dtype bfloat16, which counts on "
                "its pairs the rankings that it flips"
            )
        return self
