"""Options of `encore weights`, and of commands that compose a model's heads with weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Self

from pydantic import model_validator

from encore.core.command_parser import UsageError
from encore.core.config import StageConfig, option
from encore.data.study_options import RatingsConfig
from encore.weighting.preference_head import Beta
from encore.weighting.scheme_options import SchemeOptions, k_option, seed_option, tau_option
from encore.weighting.schemes import SCHEMES, load_scheme
from encore.weighting.trainer_configs import TrainerName

WEIGHTS_GROUP = "Weights (one way or none; `serve` needs one for several heads)"


class WeightsConfig(RatingsConfig, SchemeOptions):
    """Options of `encore weights`."""

    scheme: str = option("encore", choices=SCHEMES, help=f"One of: {', '.join(SCHEMES)}.")
    compare: bool = option(False)
    """Compare all schemes with each other and with random weights."""
    sweep: bool = option(False)
    """Show scheme encore at several temperatures."""
    label_curve: bool = option(False)
    """Show the accuracy of scheme shrunk by number of labels, beside encore and uniform."""
    trainer: TrainerName | None = option(None, name="for")
    """Print the piece of this trainer's configuration with rules, weights and their order."""
    model: Path | None = option(None, metavar="FOLDER")
    """With --for: a training run or model folder with head 0, which is then among the weights."""
    beta: Beta | None = option(None, metavar="NUMBER|auto")
    """With --model: reward = z(head 0) + beta × z(weighted rules), as for `encore serve`.
    Default: 1. auto: chosen on the labels of the held-out pairs."""

    @model_validator(mode="after")
    def _head_0_belongs_to_a_trainer(self) -> Self:
        if (self.model and not self.trainer) or (self.beta is not None and not self.model):
            raise UsageError("--model belongs to --for, and --beta to --model")
        return self


_choice = partial(option, None, group=WEIGHTS_GROUP)


class WeightChoice(StageConfig):
    """Weights that compose a model's heads: at most one of weights, rule and scheme."""

    weights: Path | None = _choice(metavar="FILE")
    """A JSON file: the output of `encore weights --json`, or {"rule": weight, …} from any other
    composer."""
    rule: str | None = _choice(metavar="RULE_ID")
    """This rule alone."""
    scheme: str | None = _choice(
        help=f"A scheme's weights for --ratings; one of {', '.join(SCHEMES)}."
    )
    ratings: Path | None = _choice(metavar="PATH")
    """The ratings that --scheme weighs: a study, a Parquet file or a folder of them."""
    tau: float | None = tau_option(None, group=WEIGHTS_GROUP)
    seed: int | None = seed_option(None, group=WEIGHTS_GROUP)
    k: int | None = k_option(None, group=WEIGHTS_GROUP)
    run: str | None = _choice()
    """The rating run, if there are several: a unique prefix of its key."""
    judge: str | None = _choice(name="judge-name")
    """The judge whose ratings are read, if there are several."""
    scale: str | None = _choice(metavar="LOW,HIGH")
    """Ends of the scale of a table's ratings, if it is not 0 to 1, e.g. 1,5."""
    rule_columns: str | None = _choice(metavar="NAME,NAME,...")
    """Columns of a wide table that are rules."""
    beta: Beta | None = _choice(metavar="NUMBER|auto")
    """Of a model with head 0: reward = z(head 0) + beta × z(weighted rules). Default: 1, without
    labels. auto: chosen on the labels of the held-out pairs, 0 where rules do not help."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        ways = [f"--{name}" for name in ("weights", "rule", "scheme") if getattr(self, name)]
        scheme_options = [
            {"judge": "--judge-name"}.get(name, f"--{name.replace('_', '-')}")
            for name in ("tau", "seed", "k", "run", "judge", "scale", "rule_columns")
            if getattr(self, name) is not None
        ]
        if len(ways) > 1:
            raise UsageError(f"{' and '.join(ways)} contradict each other; choose one")
        if self.scheme is not None and self.ratings is None:
            raise UsageError(f"--scheme {self.scheme} weighs ratings; name them with --ratings")
        if self.scheme is None and scheme_options:
            raise UsageError(f"{scheme_options[0]} belongs to --scheme, which is not given")
        if self.beta is not None and self.weights is None and self.scheme is None:
            raise UsageError("--beta belongs to weights of rules: --weights or --scheme")
        return self

    def unused_options(self) -> dict[str, object]:
        """Return the options that were given although the chosen scheme does not read them."""
        options = self.model_dump(include={"tau", "seed", "k"}, exclude_none=True)
        used = load_scheme(self.scheme).options if self.scheme else options
        return {name: value for name, value in options.items() if name not in used}
