"""`encore judge` as a function: judge a benchmark by pair or by rating, keep the results, report.

Suffixes: P pairs, 2 answers (chosen, rejected).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig, JudgeBy
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
from encore.benchmarks.table_rows import RowMetadata, TableRow
from encore.core.errors import InputError
from encore.core.model_files import is_demo_judge
from encore.core.options import UsageError
from encore.core.reporting import SILENT, Reporter
from encore.data.records import slug
from encore.data.rule_sets import load_rule_set
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.rating.rating_config import MAX_RATING_REPLY_TOKENS
from encore.runs.run_files import run_key_of
from encore.warehouse import open_ratings
from encore.weighting.weigh import weights as weigh
from encore.weighting.weight_vector import WeightVector

#: Options that a way of judging has no use for.
_ONLY_BY_OTHER = {
    "pair": ("rules", "weights_from", "weights_run", "scheme", "tau", "k", "rule"),
    "rating": ("protocol",),
}
#: Parameters of schemes that tell two weight vectors apart in a table.
_TELLING_PARAMS = ("tau", "k", "seed", "rule")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeReport:
    """A judge on a benchmark.

    Attributes:
        name: The row's name in tables.
        by: See `JudgeBenchmarkConfig`.
        judge: The judge's name.
        folder: Where its words lie.
        results: The file of per-pair results.
        score: Subsets and headline; a tie counts one half.
        single_order_score: By pair, the headline if one order a pair, drawn with the seed, had been
            asked: RewardBench's own protocol.
        verdicts: By pair, how far the verdicts can be believed.
        weights: Of the rules; None by pair.
        num_pairs: Of the benchmark; where a row has several rejected answers, more than units are
            counted in the score.
        num_ties: Those of them whose rewards are equal; by pair whose two orders make one half,
            which those without any verdict do too.
        num_unrated: By rating, those that no rule rated on both sides; else 0.
        null_reasons: Replies without a verdict, by rating without a number, by reason.
        uses_labels: Whether the weights were learnt from people's preferences.
        notes: What a reader should know, a sentence each, those of the benchmark first.
        synthetic: What is synthetic, in words.
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
    config: JudgeBenchmarkConfig, *, judge: Judge | None = None, reporter: Reporter = SILENT
) -> JudgeReport:
    """Judge what is not judged yet, write the per-pair results, report.

    Args:
        config: Judge, pairs and the way of judging.
        judge: The config's, where it is open already; it stays open.
        reporter: Told how far it is, in replies.

    Raises:
        UsageError: Options that would change nothing.
        InputError: Options that the way of judging has no use for, or none where it needs them;
            weights of other rules, or of the benchmark's own ratings.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    _check_way(config)
    pairs = configured_pairs(config.pairs)
    weights, marks = (None, ()) if config.by == "pair" else _weights(pairs, config)
    with contextlib.ExitStack() as stack:  # a judge opens once everything else is checked
        opened = judge or stack.enter_context(contextlib.closing(open_judge(config.judge)))
        if weights is None:
            return _by_pair(pairs, config, judge=opened, reporter=reporter)
        return _by_rating(pairs, config, weights, marks, judge=opened, reporter=reporter)


def _check_way(config: JudgeBenchmarkConfig) -> None:
    """Refuse what a way of judging has no use for, or lacks."""
    given = [name for name in _ONLY_BY_OTHER[config.by] if getattr(config, name) is not None]
    if given:
        shown = ", ".join(f"--{name.replace('_', '-')} {getattr(config, name)}" for name in given)
        raise UsageError(f"{shown}: changes nothing with --by {config.by}")
    if config.by == "pair":
        return
    if config.weights_from is None:
        raise InputError("--by rating needs --weights-from STUDY: its ratings weigh the rules")
    if (config.max_reply_tokens or 0) > MAX_RATING_REPLY_TOKENS:
        shown = f"--max-reply-tokens {config.max_reply_tokens}"
        raise InputError(f"{shown}: by rating a reply has at most {MAX_RATING_REPLY_TOKENS} tokens")


def _weights(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig
) -> tuple[WeightVector, tuple[str, ...]]:
    """Return the checked weights of the training study's rules, and what of it is synthetic."""
    ratings = open_ratings(config.weights_from, run=config.weights_run)
    given = config.model_dump(include={"scheme", "tau", "k", "rule", "seed"}, exclude_none=True)
    weights = weigh(ratings, **given)
    check_weights(weights, load_rule_set(config.rating.rules), pairs, out=config.out)
    return weights, tuple(f"training {part}" for part in ratings.synthetic)


def _by_pair(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig, *, judge: Judge, reporter: Reporter
) -> JudgeReport:
    found = judge_pairs(pairs, config, judge=judge, reporter=reporter)
    (manifest, verdict_P2, null_reasons), name = found, judge.identity.name
    summary, credit_P = summarize(verdict_P2), pair_credits(verdict_P2)
    bounds = (pair_credits(verdict_P2, missing=one) for one in (0, 1))
    low, high = (benchmark_score(one, pairs=pairs, ties="half").headline for one in bounds)
    shown = f"{low.name} would be {low.score:.1%} or {high.score:.1%}"
    said = verdict_notes(summary, null_reasons, range_shown=shown)
    notes = tuple(f"judge {name}: {one}" for one in said)
    single_P = single_order_credits(verdict_P2, seed=config.seed)
    metadata = RowMetadata(
        kind="judge",
        synthetic=_synthetic(pairs, judge),
        notes=tuple(dict.fromkeys((f"judge {name}: {summary.reliability}", *notes))),
        judge=name,
    )
    shown = f"judge {name} ({config.protocol or 'explained'})"
    return _report(
        TableRow(name=shown, ties="half", credit_P=credit_P, metadata=metadata),
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
    training_marks: tuple[str, ...],
    *,
    judge: Judge,
    reporter: Reporter,
) -> JudgeReport:
    by_rule = dict(zip(weights.rule_ids, weights.weights, strict=True))
    rated = rate_pairs(pairs, config, by_rule, judge=judge, reporter=reporter)
    name, credit_P = rated.manifest.judge, rated.credit_P
    strict = benchmark_score(np.floor(credit_P), pairs=pairs, ties="loss").headline
    notes = tuple(f"judge {name}: {note}" for note in _rating_notes(rated, strict, weights))
    params = [f"{key} {weights.params[key]}" for key in _TELLING_PARAMS if key in weights.params]
    metadata = RowMetadata(
        kind="judge",
        params=dict(weights.params),
        uses_labels=bool(weights.provenance and weights.provenance.uses_labels),
        synthetic=(*_synthetic(pairs, judge), *training_marks),
        notes=notes,
        judge=name,
        scheme=weights.scheme,
    )
    row = TableRow(
        name=f"judge {name} by rating, {' '.join([weights.scheme, *params])}",
        ties="half",
        credit_P=credit_P,
        reward_P2=None if rated.num_unrated else rated.reward_P2,
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
    """What a reader must know of ties, of missing ratings, and of where the weights come from."""
    if rated.num_ties or rated.num_unrated:
        yield (
            f"{rated.num_ties} pairs tie and {rated.num_unrated} have no reward; each counts one "
            f"half; counted as losses they make {strict.name} {strict.score:.1%}"
        )
    for reason, count in rated.null_reasons.items():
        yield f"{count} ratings are missing: {reason.replace('_', ' ')}"
    if rated.num_partly:
        yield f"{rated.num_partly} pairs lack ratings under some rules; the others rank them"
    origin = weights_origin(weights)
    if origin.judge not in (None, rated.manifest.judge):
        yield f"the rules are weighed by the ratings of another judge, {origin.judge}"
    if origin.num_missing_shards:
        missing = f"{origin.num_missing_shards} of {origin.num_shards} shards are missing"
        yield f"the rules are weighed by an incomplete rating run: {missing}"


def _synthetic(pairs: BenchmarkPairs, judge: Judge) -> tuple[str, ...]:
    """What of a judging is synthetic, in words: the demo's judge, a benchmark that says so.

    The benchmark counts by its name in this call: the same pairs may have had another one before.
    """
    about = judge.identity
    is_demo = is_demo_judge(about.revision)
    return (*pairs.synthetic, *([f"judge {about.name}"] if is_demo else []))


def _report(
    row: TableRow, pairs: BenchmarkPairs, folder: Path, key: str, **figures: Any
) -> JudgeReport:
    """Write ``results-<name>-<hash>.parquet`` into a folder, and report.

    The hash is of name, key and weights: the results of one training study's weights must not take
    the place of another's. A file's name has at most 255 bytes.
    """
    about_file = run_key_of({"name": row.name, "key": key, "weights": figures.get("weights")})
    path = folder / f"results-{slug(row.name)[:60]}-{about_file}.parquet"
    return JudgeReport(
        name=row.name,
        judge=str(row.metadata.judge),
        folder=folder,
        results=write_pair_results(path, [row], pairs=pairs),
        score=benchmark_score(row.credit_P, pairs=pairs, ties="half"),
        num_pairs=pairs.num_pairs,
        uses_labels=row.metadata.uses_labels,
        synthetic=row.metadata.synthetic,
        **figures,
    )
