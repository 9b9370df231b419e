"""The options of `encore benchmark`, `encore judge` and `encore compare`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from encore.benchmarks.definition import BENCHMARK_NAMES
from encore.core.config import StageConfig, option
from encore.core.errors import InputError
from encore.data.study_options import StudyFolder
from encore.judges.judge_options import JudgeConfig
from encore.model.model_options import ComputingOptions, ModelOptions
from encore.rating.rating_options import MAX_RATING_REPLY_TOKENS, RatingConfig
from encore.weighting.preference_head import Beta
from encore.weighting.scheme_options import DEFAULT_K, k_option, rule_option, tau_option
from encore.weighting.schemes import SCHEMES, SCHEMES_OF_RATINGS, load_scheme

#: The paper uses 2. The other temperatures show how much the score depends on it.
DEFAULT_TAUS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

PaperTables = Literal["main", "fsfairx", "none"]
JudgeBy = Literal["pair", "rating"]

#: Constant weights fitted to the study's labels on the heads: a row of benchmarks alone, because
#: it needs the heads' scores of the study (`encore score`).
FITTED_HEADS = "fitted-heads"
#: Prefect's form offers these names. The stage refuses any other name.
_Scheme = Annotated[str, Field(json_schema_extra={"enum": [*SCHEMES, FITTED_HEADS]})]

_pairs = partial(option, group="Benchmark")
_models = partial(option, group="Models")
_rows = partial(option, group="Rows")
_BY_RATING = {"by": ("rating",)}
_weights = partial(option, None, group="Weights of rules", only_for=_BY_RATING)


class PairsConfig(StageConfig):
    """Pairs to score: a benchmark and its data."""

    benchmark: str = _pairs(
        "rewardbench-safety",
        metavar="NAME_OR_TOML",
        examples=[*BENCHMARK_NAMES, "my-benchmark.toml"],
    )
    """rewardbench-safety, rewardbench (all 23 subsets), rewardbench-2 (six subsets),
    rewardbench-2-safety, rm-bench (style bias), generic, or your own definition (TOML)."""
    data: Path | None = _pairs(None, metavar="PATH")
    """The benchmark's rows as local JSON lines, JSON or Parquet. Default: from the hub."""
    allow_partial: bool = _pairs(False)
    """Accept missing subsets and other counts; every result is marked as partial."""


class RowsConfig(StageConfig):
    """Weighting schemes that get a row.

    Draw i of a random scheme has the seed ``1,000,000 seed + i``, as for `encore weights --seed`.
    """

    schemes: tuple[_Scheme, ...] = _rows(SCHEMES_OF_RATINGS, name="scheme")
    """A scheme that gets rows, beside uniform; repeatable. fitted-heads: constant weights fitted to
    the study's labels on the heads, after `encore score`. Default: eight schemes that need only
    ratings."""
    taus: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = _rows(
        DEFAULT_TAUS, name="tau"
    )
    """Temperature of scheme encore; repeatable. Default: six from 0.1 to 10, with the paper's 2."""
    k: int = k_option(DEFAULT_K, group="Rows")
    labels: Annotated[int, Field(ge=1)] | None = _rows(None, metavar="N")
    """Number of the study's pairs whose labels scheme shrunk learns from, the first ones by content
    hash. Default: all pairs that every rule rated."""
    seed: int = _rows(0, ge=0)
    """Seed of random schemes, and of the test of differences where prompts have several pairs."""
    num_random: int = _rows(1000, ge=1)
    """Weight vectors drawn per random scheme."""
    beta: Beta | None = _rows(None, metavar="NUMBER|auto")
    """Of a model with head 0: the factor of the rules in rows head 0 + uniform and head 0 + encore.
    Default: 1. auto: chosen on the labels of the held-out pairs. Row head 0 + best always is."""

    def check_schemes(self) -> None:
        """Raise an error if a scheme does not exist.

        Raises:
            InputError: A scheme is unknown; the message lists the schemes.
        """
        for name in self.schemes:
            if name != FITTED_HEADS:
                load_scheme(name)


class BenchmarkScoringConfig(ModelOptions):
    """Options with which a model scores the pairs of a benchmark."""

    truncation: Literal["encore", "rewardbench"] = option("encore", group="Reading and computing")
    """Cut of a text that is too long: encore keeps the token that every text begins with;
    rewardbench removes the first tokens, as the rewardbench tool does."""


class BenchmarkConfig(BenchmarkScoringConfig):
    """Configuration of `encore benchmark`: models, files of results, and rows of the table."""

    REPLACED_IN_KEYS = frozenset(
        {
            *("model", "reward_models", "row_revisions", "gate", "results", "published", "pairs"),
            *("ratings", "run", "judge"),
        }
    )

    model: str | None = _models(None, metavar="FOLDER_OR_ID")
    """Multi-head model whose heads are weighed, made by `encore train` or `encore export`."""
    reward_models: tuple[str, ...] = _models((), name="reward-model", metavar="NAME=FOLDER_OR_ID")
    """Reward model with one head that gets a row; repeatable. Also give the initial model, before
    training. The names bradley-terry-model and bradley-terry-model-initialised put the row beside
    the paper's."""
    gate: Path | None = _models(None, metavar="DIR")
    """Gate of `encore gate` over MODEL's heads: the paper's row MoE."""
    results: tuple[str, ...] = _models((), metavar="[NAME=]FILE")
    """Results per pair, written by `encore judge` or an earlier `encore benchmark`; their rows join
    the table; repeatable. A name such as judge-llama3-8b puts a judge beside the paper's."""
    pairs: PairsConfig = option(PairsConfig())
    rows: RowsConfig = RowsConfig()
    ratings: StudyFolder | None = _rows(None)
    """Training ratings that the weights are computed from. Default: the study's."""
    run: str | None = _rows(None, metavar="RUN_KEY")
    """Rating run, if there are several (a prefix of its key)."""
    judge: str | None = _rows(None, name="judge-name")
    """Judge whose ratings are used, if there are several."""
    scale: str | None = _rows(None, metavar="LOW,HIGH")
    """Ends of the scale of a table's ratings, if it is not 0 to 1, e.g. 1,5."""
    rule_columns: str | None = _rows(None, metavar="NAME,NAME,...")
    """Columns of a wide table that are rules."""
    rating: Literal["level", "expected"] = _rows("level")
    """The kind of rating that weights are computed from: the judge's label, or the mean over its
    labels' probabilities."""
    paper: PaperTables = _rows("main")
    """Backbone of the paper's figures shown beside."""
    published: Path | None = _rows(None, metavar="PATH")
    """Results that others published: records of every_eval_ever (JSON), a file or a folder. Their
    rows are marked "as published"."""
    row_revisions: dict[str, str] = option(dict, hidden=True)
    """Hub revision of each --reward-model, by the row's name."""

    @property
    def named_models(self) -> Mapping[str, str]:
        """Return the reward models by the name of their row.

        Raises:
            InputError: A name or a model is missing, or a name occurs twice.
        """
        models: dict[str, str] = {}
        for option_value in self.reward_models:
            name, _, model = option_value.partition("=")
            if not (name and model) or name in models:
                raise InputError(
                    f"--reward-model {option_value!r}: expected NAME=FOLDER_OR_ID, once"
                )
            models[name] = model
        return models

    @property
    def named_results(self) -> tuple[tuple[str | None, Path], ...]:
        """Return the name of the row and the path of each file of results. None: the file's name.

        A value that is the path of an existing file is a path, even if it contains "=".
        """
        pairs: list[tuple[str | None, Path]] = []
        for option_value in self.results:
            name, equals, path = option_value.partition("=")
            is_named = equals and not Path(option_value).exists()
            pairs.append((name, Path(path)) if is_named else (None, Path(option_value)))
        return tuple(pairs)


class BenchmarkRunOptions(ComputingOptions):
    """Work on a table: where its files go, and how the models compute."""

    records: Path | None = option(None, metavar="DIR")
    """Folder for our rows as records of every_eval_ever, one file a row."""
    out: Path | None = option(None, metavar="DIR")
    """Folder for the table and the results per pair. Default: STUDY/benchmarks/KEY."""
    device: str | None = option(None, hidden=True)
    """Device of the models; default: a GPU if present."""


class VerdictConfig(StageConfig):
    """Options with which a judge compares the two answers of a pair."""

    protocol: Literal["explained", "verdict-only"] | None = option(None, only_for={"by": ("pair",)})
    """explained: the judge explains its verdict (RewardBench, the default). verdict-only: it
    replies with the verdict alone."""
    max_reply_tokens: int | None = option(
        None,
        ge=2,
        le=8192,
        help="A longer reply is cut off and gives no verdict. Default: 2048 explained, else "
        f"16. With --by rating at most {MAX_RATING_REPLY_TOKENS}.",
    )


class JudgeBenchmarkConfig(VerdictConfig):
    """Configuration of `encore judge`: the judge, the pairs, and the protocol."""

    judge: JudgeConfig
    out: Path = option(metavar="DIR")
    """Folder for the judge's replies, one folder per key."""
    pairs: PairsConfig = PairsConfig()
    by: JudgeBy = option("pair")
    """pair: the judge names the better answer (RewardBench's protocol). rating: it rates both
    answers under every rule, and the weighted ratings are the reward."""
    rules: str | None = option(None, only_for=_BY_RATING)
    """With --by rating: encore-10 (the default), encore-20, or your own rule set (TOML)."""
    weights_from: StudyFolder | None = _weights(metavar="RATINGS")
    """With --by rating: training study whose ratings weigh the rules."""
    weights_run: str | None = _weights(metavar="RUN_KEY")
    """Rating run of --weights-from, if it has several."""
    scheme: str | None = _weights(help=f"One of: {', '.join(SCHEMES)}. Default: encore.")
    tau: float | None = tau_option(None, group="Weights of rules", only_for=_BY_RATING)
    k: int | None = k_option(None, group="Weights of rules", only_for=_BY_RATING)
    rule: str | None = rule_option(group="Weights of rules", only_for=_BY_RATING)
    seed: int = option(0, ge=0)
    """Seed of random schemes and of the order drawn in RewardBench's protocol."""
    shard_size: int = option(100, ge=1, le=100_000)
    """Pairs per file: at most this many are lost in a crash."""

    @property
    def rating(self) -> RatingConfig:
        """Return the configuration by which the judge rates the pairs, as for training data."""
        names = {"rules", "shard_size", "max_reply_tokens"}
        options = self.model_dump(include=names, exclude_none=True)
        return RatingConfig(judge=self.judge, **options)


class CompareConfig(StageConfig):
    """Configuration of `encore compare`: the studies, and the rows to put side by side."""

    studies: tuple[StudyFolder, ...] = option(positional=True, min_length=1, metavar="STUDY...")
    """Studies with benchmark tables."""
    by: str | None = option(None, metavar="FIGURE")
    """Score to sort by, the best first: the headline (default, e.g. safety) or a subset."""
    benchmark: str | None = option(None, metavar="NAME")
    """Only tables of this benchmark."""
    reference: str | None = option(None, metavar="ROW")
    """Row that all rows are compared with: its name, or its id in --json. Default: the first row of
    the first table, usually uniform weights."""
    seed: int = option(0, ge=0)
    """Seed of the test of differences, where prompts have several pairs that differ."""
    scores: tuple[str, ...] = option((), metavar="KEY")
    """Give it twice, to compare two reward models instead: by the keys of their scorings of the
    study (`encore score`). How often does each agree with the judge under each rule?"""
    run: str | None = option(None, metavar="RUN_KEY")
    """For --scores: key of the rating run, or a unique prefix. Default: the run with most pairs."""
