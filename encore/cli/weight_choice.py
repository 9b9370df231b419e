"""Options that say by which weights a model's heads are composed, for `export` and `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from encore.cli.scheme_options import warn_of_unused
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, SchemeOptions

if TYPE_CHECKING:
    from encore.export.records import Composition

#: Where `--help` shows these options.
PANEL = "Weights (one way or none; `serve` needs one for several heads)"


def _option(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PANEL, **more)


Weights = Annotated[
    Path | None,
    _option(
        metavar="FILE",
        help="A JSON file: what `encore weights --json` printed, or "
        '{"rule": weight, …} from any other composer.',
    ),
]
Rule = Annotated[str | None, _option(metavar="RULE_ID", help="One rule alone.")]
Scheme = Annotated[
    str | None, _option(help=f"A scheme's weights for --ratings; one of {', '.join(SCHEMES)}.")
]
Ratings = Annotated[
    Path | None,
    _option(
        "--ratings",
        "--study",
        metavar="PATH",
        help="What --scheme weighs: a study, a Parquet file or a folder of them.",
    ),
]
Tau = Annotated[
    float | None, _option(help=f"Temperature of scheme encore. Default: {DEFAULT_TAU:g}.")
]
Seed = Annotated[int | None, _option(help="Of schemes random and random-k. Default: 0.")]
K = Annotated[
    int | None, _option("--k", help=f"Rules that top-k and random-k select. Default: {DEFAULT_K}.")
]
Run = Annotated[
    str | None, _option(help="Which rating run, where there are several: a prefix of its key.")
]
Judge = Annotated[str | None, _option(help="Which judge's ratings, where there are several.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChoice:
    """What was given: at most one of weights, rule, scheme and heads (which folds nothing)."""

    heads: bool = False
    weights: Path | None = None
    rule: str | None = None
    scheme: str | None = None
    ratings: Path | None = None
    tau: float | None = None
    seed: int | None = None
    k: int | None = None
    run: str | None = None
    judge: str | None = None

    def check(self) -> None:
        """Refuse options that contradict each other or belong to nothing; warn of the unused.

        Raises:
            typer.BadParameter: naming them.
            InputError: No such scheme.
        """
        ways = ("heads", "weights", "rule", "scheme")
        chosen = [f"--{name}" for name in ways if getattr(self, name) not in (None, False)]
        if len(chosen) > 1:
            raise typer.BadParameter(f"{' and '.join(chosen)} contradict each other; choose one")
        if self.scheme is not None and self.ratings is None:
            raise typer.BadParameter(
                f"--scheme {self.scheme} weighs ratings; name them with --ratings"
            )
        of_scheme = ("tau", "seed", "k", "run", "judge")
        given = [name for name in of_scheme if getattr(self, name) is not None]
        if self.scheme is None and given:
            raise typer.BadParameter(f"--{given[0]} belongs to --scheme, which is not given")
        if self.scheme is not None:
            loaded = load_scheme(self.scheme)
            options = {"tau": self.tau, "seed": self.seed, "k": self.k}
            warn_of_unused(options, used=loaded.options, who=f"scheme {loaded.name}")

    def composition(self, head_ids: Sequence[str]) -> Composition | None:
        """The weights of a model's heads; None where nothing was chosen.

        Raises:
            InputError: Weights for other rules than the heads, or that cannot be read.
        """
        from encore.export.weights_input import one_rule, read_weights, scheme_weights

        if self.weights is not None:
            return read_weights(self.weights, head_ids=head_ids)
        if self.rule is not None:
            return one_rule(self.rule, head_ids=head_ids)
        if self.scheme is None or self.ratings is None:
            return None
        options = SchemeOptions(
            tau=DEFAULT_TAU if self.tau is None else self.tau,
            seed=self.seed or 0,
            k=DEFAULT_K if self.k is None else self.k,
        )
        return scheme_weights(
            self.ratings,
            head_ids=head_ids,
            scheme=self.scheme,
            options=options,
            run=self.run,
            judge=self.judge,
        )
