"""The stage `encore judge`: judge a benchmark by pair or by rating, and write the results.

Suffixes: P pairs, 2 answers (chosen, rejected).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig, JudgeBy
from encore.benchmarks.benchmark_pairs import BenchmarkPairs, configured_pairs
from encore.benchmarks.judging.judged_pairs import judge_pairs
from encore.benchmarks.judging.rated_pairs import (
    RatedPairs,
    check_weights,
    rate_pairs,
    weights_origin,
)
from encore.benchmarks.judging.verdict_summary import (
    VerdictSummary,
    pair_credits,
    single_order_credits,
    summarize,
    verdict_notes,
)
from encore.benchmarks.metrics import BenchmarkScore, Headline, benchmark_score
from encore.benchmarks.pair_results import write_pair_results
from encore.benchmarks.table_rows import ComputedWith, RowMetadata, TableRow
from encore.core.command_parser import UsageError
from encore.core.config import unused_options
from encore.core.errors import InputError
from encore.core.model_files import is_demo_judge
from encore.core.reporting import SILENT, Reporter
from encore.core.shown_record import ShownRecord
from encore.data.rating_runs import DOES_NOT_APPLY
from encore.data.records import slug
from encore.data.rule_sets import load_rule_set
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.judges.server_options import ServerOptions
from encore.rating.rating_options import MAX_RATING_REPLY_TOKENS
from encore.runs.identity import run_key_of
from encore.warehouse import open_ratings
from encore.weighting.weigh import weights as weigh
from encore.weighting.weight_vector import WeightVector

#: Parameters of schemes that are part of a row's name.
_NAME_PARAMS = ("tau", "k", "seed", "rule")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JudgeReport(ShownRecord):
    """Result of `judge_benchmark`.

    Attributes:
        name: Name of the row in tables.
        by: ``pair`` (verdicts) or ``rating`` (weighted ratings), as in `JudgeBenchmarkConfig`.
        judge: Name of the judge.
        folder: Folder with the judge's replies.
        results: File of the results per pair.
        score: Scores of subsets and the headline. A tie counts one half.
        single_order_score: By pair: the score if each pair had been judged in one order, drawn
            with the seed, as in RewardBench's own protocol. None by rating.
        verdicts: By pair: counts and consistency of the verdicts. None by rating.
        weights: By rating: weight of each rule. None by pair.
        num_pairs: Pairs of the benchmark. If rows have several rejected answers, the score counts
            fewer units.
        num_ties: By rating: pairs with equal rewards. By pair: pairs with a credit of one half,
            which includes pairs without any verdict.
        num_unrated: By rating: pairs without a rule that rated both answers. By pair: 0.
        null_reasons: Number of replies without a verdict or rating, by reason.
        uses_labels: True if the weights were learnt from people's preferences.
        notes: Sentences for the reader, those of the benchmark first.
        synthetic: Labels of the synthetic parts.
    """

    name: str
    by: JudgeBy
    judge: str
    folder: Path
    results: Path
    score: BenchmarkScore
    single_order_score: BenchmarkScore | None = None
    verdicts: VerdictSummary | None = None
    weights: Mapping[str, float] | None = None
    num_pairs: int
    num_ties: int
    num_unrated: int = 0
    null_reasons: Mapping[str, int]
    uses_labels: bool = False
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]


def judge_benchmark(
    config: JudgeBenchmarkConfig,
    how: ServerOptions = ServerOptions(),
    *,
    judge: Judge | None = None,
    reporter: Reporter = SILENT,
) -> JudgeReport:
    """Judge the pairs that are not judged yet, and write the results per pair.

    Args:
        config: Judge, pairs and the way of judging.
        how: Address of the judge's server, and how it is asked.
        judge: An opened judge, which stays open. None: open the config's judge.
        reporter: Receives the progress, in replies.

    Raises:
        UsageError: An option has no effect.
        InputError: A needed option is missing, or the weights are of other rules or from ratings of
            the benchmark itself.
        StudyIncompleteError: Shards failed. The same call judges only these.
        EncoreError: The judge does not load.
    """
    _check_options(config)
    config.judge.server(how)  # a contradiction is refused before the benchmark is fetched
    pairs = configured_pairs(config.pairs)
    if config.by == "pair" and "ties" in pairs.benchmark.scoring.values():
        raise InputError(
            f"benchmark {pairs.benchmark.name}: its subset Ties is scored from a reward of every "
            "answer, and a judge by pair gives none; judge --by rating, or a benchmark without it "
            "(--benchmark rewardbench-2-safety)"
        )
    weights: WeightVector | None = None
    training_labels: tuple[str, ...] = ()
    if config.by == "rating":
        ratings = open_ratings(config.weights_from, run=config.weights_run)
        options = {"scheme", "tau", "k", "rule", "seed"}
        weights = weigh(ratings, **config.model_dump(include=options, exclude_none=True))
        check_weights(weights, load_rule_set(config.rating.rules), pairs, out=config.out)
        training_labels = tuple(f"training {part}" for part in ratings.synthetic)
    with contextlib.ExitStack() as stack:  # the judge opens after all checks
        opened = judge or stack.enter_context(contextlib.closing(open_judge(config.judge, how)))
        if weights is None:
            return _by_pair(pairs, config, judge=opened, reporter=reporter)
        return _by_rating(pairs, config, weights, training_labels, judge=opened, reporter=reporter)


def _check_options(config: JudgeBenchmarkConfig) -> None:
    """Raise an error if the way of judging ignores an option or lacks one."""
    unused = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in unused_options(config, because_of="by").items()
        if value is not None
    ]
    if unused:
        raise UsageError(f"{', '.join(unused)}: changes nothing with --by {config.by}")
    if config.by == "pair":
        return
    if config.weights_from is None:
        raise InputError("--by rating needs --weights-from STUDY: its ratings weigh the rules")
    if (config.max_reply_tokens or 0) > MAX_RATING_REPLY_TOKENS:
        raise InputError(
            f"--max-reply-tokens {config.max_reply_tokens}: by rating a reply has at most "
            f"{MAX_RATING_REPLY_TOKENS} tokens"
        )


def _by_pair(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig, *, judge: Judge, reporter: Reporter
) -> JudgeReport:
    manifest, verdict_P2, null_reasons = judge_pairs(pairs, config, judge=judge, reporter=reporter)
    name = judge.identity.name
    summary, credit_P = summarize(verdict_P2), pair_credits(verdict_P2)
    low, high = (
        benchmark_score(
            pair_credits(verdict_P2, missing=missing), pairs=pairs, ties="half"
        ).headline
        for missing in (0, 1)
    )
    bounds = f"{low.name} would be {low.score:.1%} or {high.score:.1%}"
    notes = tuple(
        f"judge {name}: {note}" for note in verdict_notes(summary, null_reasons, bounds=bounds)
    )
    single_P = single_order_credits(verdict_P2, seed=config.seed)
    metadata = RowMetadata(
        kind="judge",
        synthetic=_synthetic(pairs, judge),
        notes=tuple(dict.fromkeys((f"judge {name}: {summary.reliability}", *notes))),
        judge=name,
        computed_with=_computed_with(judge, manifest.versions),
    )
    row_name = f"judge {name} ({config.protocol or 'explained'})"
    return _report(
        TableRow(name=row_name, ties="half", credit_P=credit_P, metadata=metadata),
        pairs,
        config.out / manifest.key,
        manifest.key,
        by="pair",
        single_order_score=benchmark_score(single_P, pairs=pairs, ties="half"),
        verdicts=summary,
        num_ties=int((credit_P == 1 / 2).sum()),
        null_reasons=null_reasons,
        notes=(*pairs.notes, *notes),
    )


def _by_rating(
    pairs: BenchmarkPairs,
    config: JudgeBenchmarkConfig,
    weights: WeightVector,
    training_labels: tuple[str, ...],
    *,
    judge: Judge,
    reporter: Reporter,
) -> JudgeReport:
    by_rule = dict(zip(weights.rule_ids, weights.weights, strict=True))
    rated = rate_pairs(pairs, config, by_rule, judge=judge, reporter=reporter)
    name, credit_P = rated.manifest.judge, rated.credit_P
    strict = benchmark_score(
        np.floor(credit_P), pairs=pairs, ties="loss", reward_P2=rated.full_reward_P2
    ).headline
    notes = tuple(f"judge {name}: {note}" for note in _rating_notes(rated, strict, weights))
    params = [f"{key} {weights.params[key]}" for key in _NAME_PARAMS if key in weights.params]
    metadata = RowMetadata(
        kind="judge",
        params=dict(weights.params),
        uses_labels=bool(weights.provenance and weights.provenance.uses_labels),
        synthetic=(*_synthetic(pairs, judge), *training_labels),
        notes=notes,
        judge=name,
        scheme=weights.scheme,
        computed_with=_computed_with(judge, rated.manifest.versions),
    )
    row = TableRow(
        name=f"judge {name} by rating, {' '.join([weights.scheme, *params])}",
        ties="half",
        credit_P=credit_P,
        reward_P2=rated.full_reward_P2,
        metadata=metadata,
    )
    return _report(
        row,
        pairs,
        rated.study,
        rated.manifest.key,
        by="rating",
        weights=by_rule,
        num_ties=rated.num_ties,
        num_unrated=rated.num_unrated,
        null_reasons=rated.null_reasons,
        notes=(*pairs.notes, *notes),
    )


def _rating_notes(rated: RatedPairs, strict: Headline, weights: WeightVector) -> Iterator[str]:
    """Yield notes on ties, missing ratings and the source of the weights."""
    if rated.num_ties or rated.num_unrated:
        yield (
            f"{rated.num_ties} pairs tie and {rated.num_unrated} have no reward; each counts one "
            f"half; if they count as losses, {strict.name} is {strict.score:.1%}"
        )
    for reason, count in rated.null_reasons.items():
        if reason == DOES_NOT_APPLY:
            yield f"{count} ratings are not there, because the rule does not apply"
        else:
            yield f"{count} ratings are missing: {reason.replace('_', ' ')}"
    if rated.num_partly:
        yield f"{rated.num_partly} pairs lack ratings under some rules; the other rules decide"
    origin = weights_origin(weights)
    if origin.judge not in (None, rated.manifest.judge):
        yield f"the rules are weighed by the ratings of another judge, {origin.judge}"
    if origin.num_missing_shards:
        yield (
            "the rules are weighed by an incomplete rating run: "
            f"{origin.num_missing_shards} of {origin.num_shards} shards are missing"
        )


def _computed_with(judge: Judge, versions: Mapping[str, str]) -> ComputedWith:
    identity = judge.identity
    return ComputedWith.recorded(
        versions, max_length=identity.max_model_len or None, dtype=identity.dtype, attention=None
    )


def _synthetic(pairs: BenchmarkPairs, judge: Judge) -> tuple[str, ...]:
    """Return the synthetic labels of a judging: of the benchmark, and of the demo's judge.

    The benchmark's name in this call decides: the same pairs may have had another name before.
    """
    identity = judge.identity
    label = (f"judge {identity.name}",) if is_demo_judge(identity.revision) else ()
    return (*pairs.synthetic, *label)


def _report(
    row: TableRow, pairs: BenchmarkPairs, folder: Path, key: str, **figures: Any
) -> JudgeReport:
    """Write ``results-<name>-<hash>.parquet`` into a folder, and return the report.

    The hash is of name, key and weights, so that results by the weights of one training study do
    not replace those of another. A file's name has at most 255 bytes.
    """
    file_key = run_key_of({"name": row.name, "key": key, "weights": figures.get("weights")})
    path = folder / f"results-{slug(row.name)[:60]}-{file_key}.parquet"
    return JudgeReport(
        name=row.name,
        judge=str(row.metadata.judge),
        folder=folder,
        results=write_pair_results(path, [row], pairs=pairs),
        score=benchmark_score(row.credit_P, pairs=pairs, ties="half", reward_P2=row.reward_P2),
        num_pairs=pairs.num_pairs,
        uses_labels=row.metadata.uses_labels,
        synthetic=row.metadata.synthetic,
        **figures,
    )
