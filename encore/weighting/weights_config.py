"""Options of weighting schemes, of `encore weights`, and of commands that compose with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from encore.core.config import StageConfig, option
from encore.core.errors import InputError, first_problem
from encore.core.options import UsageError
from encore.data.study_config import RatingsConfig
from encore.weighting.schemes import SCHEMES, load_scheme

DEFAULT_TAU = 2.0
DEFAULT_K = 5
WEIGHTS_GROUP = "Weights (one way or none; `serve` needs one for several heads)"


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
            problem = first_problem(error)
            flag = f"--{problem.path}".replace(".", "-").replace("_", "-")
            raise InputError(f"{flag} {problem.value}: {problem.message}") from error


class WeightsConfig(RatingsConfig, SchemeOptions):
    """What `encore weights` weighs."""

    scheme: str = option("encore", choices=SCHEMES, help=f"One of: {', '.join(SCHEMES)}.")
    compare: bool = option(False, help="All schemes side by side, with what chance reaches.")
    sweep: bool = option(False, help="Scheme encore at one temperature after another.")


def _choice(**about: Any) -> Any:
    return option(None, group=WEIGHTS_GROUP, **about)


class WeightChoice(StageConfig):
    """Which weights compose a model's heads: at most one of weights, rule and scheme."""

    weights: Path | None = _choice(
        metavar="FILE",
        help="A JSON file: what `encore weights --json` printed, or "
        '{"rule": weight, …} from any other composer.',
    )
    rule: str | None = _choice(metavar="RULE_ID", help="One rule alone.")
    scheme: str | None = _choice(
        help=f"A scheme's weights for --ratings; one of {', '.join(SCHEMES)}."
    )
    ratings: Path | None = _choice(
        alias="study",
        metavar="PATH",
        help="What --scheme weighs: a study, a Parquet file or a folder of them.",
    )
    tau: float | None = _choice(
        help=f"Temperature of scheme encore. Default: {DEFAULT_TAU:g}.", source="ENCORE, section 4"
    )
    seed: int | None = _choice(help="Of schemes random and random-k. Default: 0.")
    k: int | None = _choice(help=f"Rules that top-k and random-k select. Default: {DEFAULT_K}.")
    run: str | None = _choice(
        help="Which rating run, where there are several: a prefix of its key."
    )
    judge: str | None = _choice(help="Which judge's ratings, where there are several.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        chosen = [f"--{name}" for name in ("weights", "rule", "scheme") if getattr(self, name)]
        of_scheme = ("tau", "seed", "k", "run", "judge")
        given = [name for name in of_scheme if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} contradict each other; choose one")
        if self.scheme is not None and self.ratings is None:
            raise UsageError(f"--scheme {self.scheme} weighs ratings; name them with --ratings")
        if self.scheme is None and given:
            raise UsageError(f"--{given[0]} belongs to --scheme, which is not given")
        return self

    def unused(self) -> dict[str, object]:
        """Options that were given and that the chosen scheme does not read."""
        given = self.model_dump(include={"tau", "seed", "k"}, exclude_none=True)
        used = load_scheme(self.scheme).options if self.scheme else given
        return {name: value for name, value in given.items() if name not in used}
