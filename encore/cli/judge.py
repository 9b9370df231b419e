"""`encore judge`: a language model as the judge of a benchmark's pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from encore.cli import rating_options as options
from encore.cli.benchmark_options import (
    DEFAULT_BENCHMARK,
    AllowPartial,
    BenchmarkData,
    BenchmarkName,
)
from encore.cli.judge_tables import print_judge_tables
from encore.cli.output import JsonOption, print_json, progress_bar, say, warn
from encore.cli.scheme_options import warn_of_unused
from encore.cli.stopping import stopped_by_sigterm
from encore.config import MAX_RATING_REPLY_TOKENS
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import Progress

    from encore.benchmarks.judging.driver import JudgingProgress
    from encore.benchmarks.judging.report import JudgeReport
    from encore.weighting.vector import WeightVector

By = Literal["pair", "rule", "rating"]

_WEIGHTS = "Weights of rules"
_DEFAULT_SCHEME = "encore"
_DEFAULT_RULES = "encore-10"


def judge(
    judge: options.Judge,
    folder: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where judgings lie, each under its own key."),
    ],
    benchmark: BenchmarkName = DEFAULT_BENCHMARK,
    data: BenchmarkData = None,
    allow_partial: AllowPartial = False,
    by: Annotated[
        By,
        typer.Option(
            help="pair: which answer is better, RewardBench's protocol. rule: the same for every "
            "rule, then a vote. rating: both answers are rated under every rule, and the weighted "
            "ratings are the reward."
        ),
    ] = "pair",
    protocol: Annotated[
        Literal["explained", "verdict-only"] | None,
        typer.Option(
            help="Whether the judge explains itself before a verdict (RewardBench) or only gives "
            "it. Default: explained by pair, verdict-only by rule.",
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="By rule and by rating: encore-10 (the default), encore-20, or the path of your "
            "own rule set (TOML)."
        ),
    ] = None,
    weights_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RATINGS",
            help="The training study (or ratings) that rules are weighed by: needed by rating; by "
            "rule without it every rule has one vote.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    weights_run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN_KEY", help="Which of its runs, if several.", rich_help_panel=_WEIGHTS
        ),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            help=f"One of: {', '.join(SCHEMES)}. Default: {_DEFAULT_SCHEME}.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help=f"Temperature of scheme encore. Default: {DEFAULT_TAU:g}.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", help=f"Of top-k and random-k. Default: {DEFAULT_K}.", rich_help_panel=_WEIGHTS
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE_ID", help="The rule of scheme single.", rich_help_panel=_WEIGHTS
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of the one order a pair in RewardBench's own figure, and of the schemes random "
            "and random-k. It changes no verdict.",
        ),
    ] = 0,
    name: Annotated[
        str | None,
        typer.Option(
            help="Of the row in a table of `encore benchmark --results`. Default: judge, way of "
            "judging and weights; a judge of the paper, such as judge-llama3-8b, stands beside the "
            "paper's figure."
        ),
    ] = None,
    shard_size: options.ShardSize = 100,
    max_reply_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=8192,
            help="A longer reply is cut off and gives no verdict. Default: 2048 explained, else "
            f"16. By rating at most {MAX_RATING_REPLY_TOKENS}.",
        ),
    ] = None,
    backend: options.Backend = "vllm",
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    engine_arg: options.EngineArgs = None,
    as_json: JsonOption = False,
) -> None:
    """Have a language model judge a benchmark's pairs, each in both orders.

    What is reported: accuracy with its interval (no verdict counts one half, as in RewardBench),
    how often both orders agree, how often the first place wins, replies without a verdict. Run the
    same command again after a crash or Ctrl-C: only shards that are missing or damaged are judged.

    Examples: encore judge --judge ./my-judge --out judged --protocol verdict-only

    encore judge --judge ./my-judge --out judged --by rating --weights-from my-study
    """
    from encore.benchmarks.definition import load_benchmark
    from encore.benchmarks.judging.report import JudgingRequest, check_way
    from encore.benchmarks.judging.ways import judge_benchmark
    from encore.benchmarks.pairs import read_benchmark_pairs

    of_weights = {"scheme": scheme, "tau": tau, "k": k, "rule": rule, "weights-run": weights_run}
    _refuse_idle(by, rules=rules, weights_from=weights_from, of_weights=of_weights)
    check_way(
        by,
        has_weights=weights_from is not None,
        protocol=protocol,
        max_reply_tokens=max_reply_tokens,
    )
    config = options.rating_config(
        judge=judge,
        rules=rules or _DEFAULT_RULES,
        shard_size=shard_size,
        limit=None,
        backend=backend,
        revision=revision,
        dtype=dtype,
        max_model_len=max_model_len,
        overlong="set-aside",
        max_reply_tokens=max_reply_tokens if by == "rating" and max_reply_tokens else 16,
        engine_arg=engine_arg,
    )
    weights = _weights(
        weights_from, run=weights_run, scheme=scheme, tau=tau, k=k, rule=rule, seed=seed
    )
    pairs = read_benchmark_pairs(load_benchmark(benchmark), data=data, allow_partial=allow_partial)
    request = JudgingRequest(
        by=by,
        config=config,
        out=folder,
        protocol=protocol,
        max_reply_tokens=max_reply_tokens,
        weights=weights,
        synthetic=_synthetic(weights_from, run=weights_run),
        seed=seed,
        name=name,
    )
    with progress_bar() as bar, stopped_by_sigterm():
        shown = _Shown(bar)
        report = judge_benchmark(pairs, request, on_progress=shown.progress)
    _report(report, as_json=as_json)


class _Shown:
    """A bar on a terminal, elsewhere a line for every tenth of the replies."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("judging", total=None, rate="", visible=False)
        self._num_tenths = 0

    def progress(self, progress: JudgingProgress) -> None:
        """Replies that are there. Called from worker threads too."""
        num_done, num_replies = progress.num_done, progress.num_replies
        self._bar.update(self._task, total=num_replies, completed=num_done, visible=True)
        num_tenths = 10 * num_done // num_replies
        if self._bar.disable and num_tenths > self._num_tenths:
            say(f"judged: {num_done:,} of {num_replies:,} replies")
        self._num_tenths = max(num_tenths, self._num_tenths)


def _refuse_idle(
    by: By,
    *,
    rules: str | None,
    weights_from: Path | None,
    of_weights: Mapping[str, object],
) -> None:
    """Refuse options that would change nothing."""
    given = [f"--{name} {value}" for name, value in of_weights.items() if value is not None]
    if given and weights_from is None:
        raise typer.BadParameter(
            f"{', '.join(given)}: says how rules are weighed, and nothing is weighed here; give "
            "--weights-from with a training study, or leave it out"
        )
    if by == "pair" and rules is not None:
        raise typer.BadParameter(
            f"--rules {rules}: pairs are judged as a whole, by no rule; give --by rule or --by "
            "rating, or leave it out"
        )


def _weights(
    ratings: Path | None,
    *,
    run: str | None,
    scheme: str | None,
    tau: float | None,
    k: int | None,
    rule: str | None,
    seed: int,
) -> WeightVector | None:
    if ratings is None:
        return None
    from encore.warehouse import open_ratings
    from encore.weighting.weigh import weights

    loaded = load_scheme(scheme or _DEFAULT_SCHEME)
    given = {"tau": tau, "k": k, "rule": rule}
    warn_of_unused(given, used=loaded.options, who=f"scheme {loaded.name}")
    return weights(
        open_ratings(ratings, run=run),
        scheme=loaded.name,
        tau=DEFAULT_TAU if tau is None else tau,
        k=DEFAULT_K if k is None else k,
        rule=rule,
        seed=seed,
    )


def _synthetic(ratings: Path | None, *, run: str | None) -> tuple[str, ...]:
    """What of the ratings behind the weights is synthetic, in words."""
    if ratings is None:
        return ()
    from encore.synthetic import synthetic_in

    return tuple(f"training {part}" for part in synthetic_in(ratings, run=run))


def _report(report: JudgeReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        print_judge_tables(report)
    if report.single_order_score is not None:
        single = report.single_order_score.headline
        say(f"with one order a pair, as RewardBench asks: {single.name} {single.score:.1%}")
    say(_ties(report))
    for note in report.notes:
        warn(note)
    for part in report.synthetic:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
    say(f"replies: {report.folder}")
    say(f"next: encore benchmark STUDY --results {report.results}")


def _ties(report: JudgeReport) -> str:
    """How many pairs tie, and what that is worth."""
    worth = "count one half"
    if report.score.headline.num_pairs != report.num_pairs:
        worth = "leave the choice they belong to a part of its credit"
    found = f"ties: {report.num_ties:,} of {report.num_pairs:,} pairs {worth}"
    more = f", as do {report.num_unrated:,} without ratings on both sides"
    return f"{found}{more if report.num_unrated else ''}"
