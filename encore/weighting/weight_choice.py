"""Which weights compose a model's heads: the options that `encore export` and `serve` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from encore.config import StageConfig, option
from encore.options import UsageError
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU

WEIGHTS_GROUP = "Weights (one way or none; `serve` needs one for several heads)"
_OF_SCHEME = ("tau", "seed", "k", "run", "judge")


def _option(default: Any = None, **more: Any) -> Any:
    return option(default, group=WEIGHTS_GROUP, **more)


class WeightChoice(StageConfig):
    """At most one of weights, rule and scheme."""

    weights: Path | None = _option(
        metavar="FILE",
        help="A JSON file: what `encore weights --json` printed, or "
        '{"rule": weight, …} from any other composer.',
    )
    rule: str | None = _option(metavar="RULE_ID", help="One rule alone.")
    scheme: str | None = _option(
        help=f"A scheme's weights for --ratings; one of {', '.join(SCHEMES)}."
    )
    ratings: Path | None = _option(
        alias="study",
        metavar="PATH",
        help="What --scheme weighs: a study, a Parquet file or a folder of them.",
    )
    tau: float | None = _option(
        help=f"Temperature of scheme encore. Default: {DEFAULT_TAU:g}.",
        source="ENCORE, section 4",
    )
    seed: int | None = _option(help="Of schemes random and random-k. Default: 0.")
    k: int | None = _option(help=f"Rules that top-k and random-k select. Default: {DEFAULT_K}.")
    run: str | None = _option(
        help="Which rating run, where there are several: a prefix of its key."
    )
    judge: str | None = _option(help="Which judge's ratings, where there are several.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        chosen = [f"--{name}" for name in ("weights", "rule", "scheme") if getattr(self, name)]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} contradict each other; choose one")
        if self.scheme is not None and self.ratings is None:
            raise UsageError(f"--scheme {self.scheme} weighs ratings; name them with --ratings")
        given = [name for name in _OF_SCHEME if getattr(self, name) is not None]
        if self.scheme is None and given:
            raise UsageError(f"--{given[0]} belongs to --scheme, which is not given")
        return self

    def unused(self) -> dict[str, object]:
        """Options that were given and that the chosen scheme does not read."""
        if self.scheme is None:
            return {}
        given = {"tau": self.tau, "seed": self.seed, "k": self.k}
        used = load_scheme(self.scheme).options
        return {
            name: value for name, value in given.items() if value is not None and name not in used
        }
