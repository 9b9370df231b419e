"""The options of `encore benchmark`, `encore judge` and `encore compare`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from encore.core.config import StageConfig, option
from encore.core.errors import InputError
from encore.data.study_config import StudyConfig
from encore.judges.judge_config import JudgeConfig
from encore.model.model_options import ComputingConfig
from encore.rating.rating_config import MAX_RATING_REPLY_TOKENS, RatingConfig
from encore.weighting.schemes import SCHEMES, SCHEMES_OF_RATINGS, load_scheme
from encore.weighting.weights_config import DEFAULT_K, k_option, rule_option, tau_option

#: The paper's default is 2; the others say how much depends on it.
DEFAULT_TAUS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

PaperTables = Literal["main", "fsfairx", "none"]
JudgeBy = Literal["pair", "rating"]

#: The form offers the names; a name that is none is refused by the stage.
_Scheme = Annotated[str, Field(json_schema_extra={"enum": [*SCHEMES]})]

_pairs = partial(option, group="Benchmark")
_models = partial(option, group="Models")
_rows = partial(option, group="Rows")
_weights = partial(option, None, group="Weights of rules")


class PairsConfig(StageConfig):
    """Which pairs: a benchmark and its data."""

    benchmark: str = _pairs(
        "rewardbench-safety",
        metavar="NAME_OR_TOML",
        examples=["rewardbench-safety", "rewardbench-2-safety", "generic", "my-benchmark.toml"],
        help="rewardbench-safety, rewardbench-2-safety, generic, or your own definition.",
    )
    data: Path | None = _pairs(
        None,
        metavar="PATH",
        help="Its rows as local JSON lines, JSON or Parquet in its columns. Default: the hub.",
    )
    allow_partial: bool = _pairs(
        False, help="Accept subsets that are missing or have another count, and say so everywhere."
    )


class RowsConfig(StageConfig):
    """Which rows of weighting schemes.

    Draw i has seed ``1,000,000 seed + i``: what `encore weights --seed` gives.
    """

    schemes: tuple[_Scheme, ...] = _rows(
        SCHEMES_OF_RATINGS,
        name="scheme",
        help="Only rows of these schemes, beside uniform; repeatable. Default: all that need "
        "nothing but ratings.",
    )
    taus: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = _rows(
        DEFAULT_TAUS,
        name="tau",
        help="Temperatures of scheme encore; repeatable. Default: 0.1 to 10, the paper's 2 too.",
    )
    k: int = k_option(DEFAULT_K, group="Rows")
    seed: int = _rows(0, ge=0, help="Of the bootstrap and of draws.")
    num_random: int = _rows(1000, ge=1, help="Weight vectors drawn for the rows of chance.")

    def check_schemes(self) -> None:
        """Refuse a scheme that does not exist.

        Raises:
            InputError: Its name, and the known ones.
        """
        for name in self.schemes:
            load_scheme(name)


class BenchmarkConfig(ComputingConfig):
    """`encore benchmark`: which models and files of results make the rows of which table."""

    model: str | None = _models(
        None,
        metavar="FOLDER_OR_ID",
        help="The multi-head model whose heads are weighed: of `encore train` or `encore export`.",
    )
    reward_models: tuple[str, ...] = _models(
        (),
        name="reward-model",
        metavar="NAME=FOLDER_OR_ID",
        help="A row of its own for a reward model with one head; repeatable. Give the untouched "
        "initial model too. The names bradley-terry-model and bradley-terry-model-initialised put "
        "it beside the paper's.",
    )
    gate: Path | None = _models(
        None, metavar="DIR", help="A gate of `encore gate` over MODEL's heads: the paper's row MoE."
    )
    results: tuple[str, ...] = _models(
        (),
        metavar="[NAME=]FILE",
        help="Results of every pair that `encore judge` or another call wrote: rows of their "
        "own; repeatable. A name such as judge-llama3-8b puts a judge beside the paper's.",
    )
    pairs: PairsConfig = PairsConfig()
    rows: RowsConfig = RowsConfig()
    ratings: Path | None = _rows(
        None, help="The training ratings that weights are made from. Default: the study's."
    )
    run: str | None = _rows(
        None, metavar="RUN_KEY", help="Which rating run, if several (a prefix of its key)."
    )
    judge: str | None = _rows(None, help="Which judge's ratings, when there are several.")
    paper: PaperTables = _rows("main", help="Which backbone's figures of the paper stand beside.")
    out: Path | None = option(
        None,
        identity=False,
        metavar="DIR",
        help="Where the table and the results of every pair go. Default: STUDY/benchmarks/KEY.",
    )
    truncation: Literal["encore", "rewardbench"] = option(
        "encore",
        group="Reading and computing",
        since=True,
        help="How a text that is too long is cut: encore keeps the token that every text begins "
        "with; rewardbench cuts plainly from the left, as its tool does.",
    )
    device: str | None = option(
        None, hidden=True, identity=False, help="Where models go; default: a GPU if there is one."
    )
    row_revisions: dict[str, str] = option(
        dict, hidden=True, help="Of the hub ids given as --reward-model, by the name of the row."
    )

    @property
    def named_models(self) -> Mapping[str, str]:
        """The reward models by the name of their row.

        Raises:
            InputError: No name or no model, or a name twice.
        """
        found: dict[str, str] = {}
        for given in self.reward_models:
            name, _, model = given.partition("=")
            if not (name and model) or name in found:
                raise InputError(f"--reward-model {given!r}: expected NAME=FOLDER_OR_ID, once")
            found[name] = model
        return found

    @property
    def named_results(self) -> tuple[tuple[str | None, Path], ...]:
        """The files of results and what to call their rows; None: as the file does."""
        split = [(given, *given.partition("=")) for given in self.results]
        return tuple(
            (name, Path(path)) if equals and not Path(given).exists() else (None, Path(given))
            for given, name, equals, path in split
        )


class BenchmarkStudyConfig(BenchmarkConfig, StudyConfig):
    """`encore benchmark` with its study."""


class JudgeBenchmarkConfig(StageConfig):
    """`encore judge`: which judge judges which pairs, and how."""

    judge: JudgeConfig
    out: Path = option(
        identity=False, metavar="DIR", help="Where judgings lie, each under its own key."
    )
    pairs: PairsConfig = PairsConfig()
    by: JudgeBy = option(
        "pair",
        help="pair: which answer is better, RewardBench's protocol. rating: both answers are rated "
        "under every rule, and the weighted ratings are the reward.",
    )
    protocol: Literal["explained", "verdict-only"] | None = option(
        None,
        help="Whether the judge explains its verdict (RewardBench, the default) or only gives it.",
    )
    rules: str | None = option(
        None, help="By rating: encore-10 (the default), encore-20, or your own rule set (TOML)."
    )
    weights_from: Path | None = _weights(
        metavar="RATINGS", help="By rating: the training study that rules are weighed by."
    )
    weights_run: str | None = _weights(metavar="RUN_KEY", help="Which of its runs, if several.")
    scheme: str | None = _weights(help=f"One of: {', '.join(SCHEMES)}. Default: encore.")
    tau: float | None = tau_option(None, group="Weights of rules")
    k: int | None = k_option(None, group="Weights of rules")
    rule: str | None = rule_option(group="Weights of rules")
    seed: int = option(
        0, ge=0, help="Of the one order a pair in RewardBench's own figure, and of random schemes."
    )
    shard_size: int = option(
        100, ge=1, le=100_000, help="Pairs per shard: per file, what one crash can cost."
    )
    max_reply_tokens: int | None = option(
        None,
        ge=2,
        le=8192,
        help="A longer reply is cut off and gives no verdict. Default: 2048 explained, else "
        f"16. By rating at most {MAX_RATING_REPLY_TOKENS}.",
    )

    @property
    def rating(self) -> RatingConfig:
        """How a judge rates the pairs, as training data are rated."""
        names = {"rules", "shard_size", "max_reply_tokens"}
        return RatingConfig(judge=self.judge, **self.model_dump(include=names, exclude_none=True))


class CompareConfig(StageConfig):
    """`encore compare`: which rows of which studies' tables are put side by side."""

    studies: tuple[Path, ...] = option(
        positional=True, min_length=1, metavar="STUDY...", help="Studies with benchmark tables."
    )
    by: str | None = option(
        None,
        metavar="FIGURE",
        help="Sort by this, the best first: the headline (the default, e.g. safety) or a subset.",
    )
    benchmark: str | None = option(None, metavar="NAME", help="Only tables of this benchmark.")
    reference: str | None = option(
        None,
        metavar="ROW",
        help="The row that every other is compared with: its name, or its id in --json. "
        "Default: the first table's, uniform weights.",
    )
    seed: int = option(0, ge=0, help="Of the bootstrap.")
