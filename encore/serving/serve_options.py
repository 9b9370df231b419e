"""Options of `encore serve`."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from encore.core.command_parser import UsageError
from encore.core.config import StageConfig, option
from encore.model.model_options import ModelOptions
from encore.weighting.weights_options import WeightChoice


def allow_host_option() -> tuple[str, ...]:
    """Return the option of further names by which clients may call a server."""
    names: tuple[str, ...] = option(
        (),
        name="allow-host",
        metavar="NAME",
        help="A further host name by which clients call this server, such as that of a service or "
        "a proxy; repeatable. localhost, addresses, --host and, with a --host that other machines "
        "reach, this machine's name are always answered.",
    )
    return names


class ServeLimits(StageConfig):
    """Limits on the requests of a reward server's clients."""

    max_batch_tokens: int = option(8_192, ge=1)
    """Largest number of tokens in one batch."""
    max_queue_tokens: int = option(524_288, ge=1)
    """Largest number of tokens in the queue; further requests wait until it has room."""
    max_wait_seconds: float = option(150.0, gt=0)
    """Seconds that a request may wait for its first batch before it is refused with 503."""
    max_request_bytes: int = option(8 << 20, ge=1)
    """Largest size of a request's body, in bytes."""
    max_queries: int = option(1024, ge=1)
    """Largest number of texts in one request."""


class RuleUse(StageConfig):
    """Rules that a reward server leaves out of rewards."""

    drop_rules: float = option(0.0, ge=0, lt=1)
    """Part of the rules that is left out of the reward at random, anew for each prompt and the same
    for all its samples; the other weights are scaled up. Their scores are still logged."""
    drop_seed: int = option(0)
    """Seed of --drop-rules."""
    watch: tuple[str, ...] = option((), metavar="RULE_ID")
    """Rules that are never in the reward and always in the logs."""


class ServeConfig(ModelOptions):
    """Options of `encore serve`: the model, its weights, the address and the limits."""

    model: str = option(positional=True)
    """Folder that `encore train` or `encore export` wrote, or a reward model's hub id."""
    composition: WeightChoice = WeightChoice()
    policy_tokenizer: str | None = option(None)
    """Tokenizer of the policy, a folder or a hub id: texts that its chat template rendered are read
    back into messages and rendered with the model's own. Default: the texts are of the model's
    template, and those of another family are refused."""
    use: RuleUse = RuleUse()
    threshold: float | None = option(None)
    """Lowest reward that `POST /guard` calls safe; a request may name another."""
    host: str = option("127.0.0.1")
    """Address to listen on; the default is this machine alone."""
    port: int = option(5000, ge=0, le=65_535)
    """Port to listen on; 0: any free one."""
    allowed_hosts: tuple[str, ...] = allow_host_option()
    limits: ServeLimits = ServeLimits()
    device: str | None = option(None)
    """Device of the model. Default: a GPU if there is one."""

    @model_validator(mode="after")
    def _ratings_belong_to_scheme(self) -> Self:
        if self.composition.ratings is not None and self.composition.scheme is None:
            raise UsageError("--ratings belongs to --scheme, which is not given")
        return self
