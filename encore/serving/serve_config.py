"""Options of `encore serve`."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from encore.core.config import StageConfig, option
from encore.core.options import UsageError
from encore.model.model_options import ModelOptions
from encore.weighting.weights_config import WeightChoice


class ServeLimits(StageConfig):
    """What the clients of a reward server may ask for."""

    max_batch_tokens: int = option(8_192, ge=1, help="Tokens that are computed together.")
    max_queue_tokens: int = option(524_288, ge=1, help="Tokens that may wait.")
    max_request_bytes: int = option(8 << 20, ge=1, help="Of a request's body.")
    max_queries: int = option(1024, ge=1, help="Texts in one request.")


class ServeConfig(ModelOptions):
    """A reward model behind a port."""

    model: str = option(
        positional=True,
        help="What `encore train` or `encore export` wrote, or a reward model's hub id.",
    )
    composition: WeightChoice = WeightChoice()
    host: str = option("127.0.0.1", help="Address to listen on; the default is this machine alone.")
    port: int = option(5000, ge=0, le=65_535, help="0: any free one.")
    limits: ServeLimits = ServeLimits()
    device: str | None = option(None, help="Device of the model. Default: a GPU if there is one.")

    @model_validator(mode="after")
    def _ratings_belong_to_scheme(self) -> Self:
        if self.composition.ratings is not None and self.composition.scheme is None:
            raise UsageError("--ratings belongs to --scheme, which is not given")
        return self
