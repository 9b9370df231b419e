"""Options of weighting schemes, of `encore weights`, and of commands that compose with weights."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from encore.config import RatingsConfig, StageConfig, option
from encore.errors import InputError
from encore.weighting import SCHEMES

DEFAULT_TAU = 2.0
DEFAULT_K = 5


class SchemeOptions(StageConfig):
    """Parameters of all schemes; each takes those that it declares.

    Raises:
        InputError: A parameter out of its range.
    """

    tau: float = option(
        DEFAULT_TAU,
        gt=0,
        allow_inf_nan=False,
        help="Temperature of scheme encore: large approaches uniform weights, small the rule of "
        "lowest entropy (paper: 2).",
    )
    seed: int = option(
        0, ge=0, help="Of schemes random and random-k, and of the folds that hold out pairs."
    )
    k: int = option(
        DEFAULT_K, ge=1, help="How many rules top-k and random-k select (paper's appendix: 5)."
    )
    rule: str | None = option(None, metavar="RULE_ID", help="The rule of scheme single.")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            flag = "--" + "-".join(map(str, problem["loc"])).replace("_", "-")
            raise InputError(f"{flag} {problem['input']}: {problem['msg']}") from error


class WeightsConfig(RatingsConfig, SchemeOptions):
    """What `encore weights` weighs."""

    scheme: str = option("encore", help=f"One of: {', '.join(SCHEMES)}.")
    compare: bool = option(False, help="All schemes side by side, with what chance reaches.")
    sweep: bool = option(False, help="Scheme encore at one temperature after another.")
