"""`encore judge` as a function: judge a benchmark by pair or by rating, keep the results, report.

Suffixes: P pairs, 2 answers (chosen, rejected).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig, JudgeBy
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.judging.comparison_prompt import CRITERION_ID
from encore.benchmarks.judging.judged_pairs import judge_pairs
from encore.benchmarks.judging.rated_pairs import RatedPairs, checked_weights, origin_of, rate_pairs
from encore.benchmarks.judging.verdicts import (
    CHOSEN,
    REJECTED,
    VerdictSummary,
    filled,
    pair_credits,
    reliability,
    remarks,
    single_order_credits,
    summarize,
)
from encore.benchmarks.metrics import BenchmarkScore, benchmark_score
from encore.benchmarks.pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.results import PairResults, RowAbout, write_pair_results
from encore.config import MAX_RATING_REPLY_TOKENS
from encore.data.records import slug
from encore.data.rules import load_rule_set
from encore.errors import InputError
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.reporting import SILENT, Reporter
from encore.synthetic import SYNTHETIC_LABEL, is_demo_judge, synthetic_in
from encore.warehouse import open_ratings
from encore.weighting.vector import WeightVector
from encore.weighting.weigh import weights as weigh
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU

#: Parameters of schemes that tell two weight vectors apart in a table.
_TELLING_PARAMS = ("tau", "k", "seed", "rule")
#: A file's name has at most 255 bytes; what stands behind makes it one of its own.
_NAME_LENGTH = 60


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
        strict_score: By rating, the score with ties as losses, as those of reward models are.
        bounds: By pair, the headline if all missing verdicts were wrong, and if all were right.
        criteria: By pair, figures of the verdicts: one summary.
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
    strict_score: BenchmarkScore | None = None
    bounds: tuple[float, float] | None = None
    criteria: tuple[VerdictSummary, ...] = ()
    weights: Mapping[str, float] | None = None
    num_pairs: int
    num_ties: int
    num_unrated: int = 0
    null_reasons: Mapping[str, int]
    uses_labels: bool = False
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore judge --json``."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        scores = {
            name: None if plain[name] is None else dataclasses.asdict(plain[name])
            for name in ("score", "single_order_score", "strict_score")
        }
        return {
            **plain,
            **scores,
            "folder": str(self.folder),
            "results": str(self.results),
            "criteria": [dataclasses.asdict(one) for one in self.criteria],
        }


def judge_benchmark(
    config: JudgeBenchmarkConfig, *, judge: Judge | None = None, reporter: Reporter = SILENT
) -> JudgeReport:
    """Judge what is not judged yet, write the per-pair results, report.

    Args:
        config: Judge, pairs and the way of judging.
        judge: The config's, where it is open already; it stays open.
        reporter: Told how far it is, in replies.

    Raises:
        InputError: Options that the way of judging has no use for, or none where it needs them;
            weights of other rules, or of the benchmark's own ratings.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    check_way(config)
    pairs = read_benchmark_pairs(
        load_benchmark(config.pairs.benchmark),
        data=config.pairs.data,
        allow_partial=config.pairs.allow_partial,
    )
    if config.by == "rating":
        return _by_rating(pairs, config, judge=judge, reporter=reporter)
    opened = judge or open_judge(config.judge)
    try:
        return _by_pair(pairs, config, judge=opened, reporter=reporter)
    finally:
        if judge is None:
            opened.close()


def check_way(config: JudgeBenchmarkConfig) -> None:
    """Refuse what a way of judging has no use for, or lacks.

    Raises:
        InputError: What does not fit.
    """
    has_weights = config.weights_from is not None
    if config.by == "pair" and has_weights:
        raise InputError(
            "weights of rules with verdicts on whole pairs: there is nothing to weigh; judge by "
            "rating (--by rating), or give no weights"
        )
    if config.by == "rating" and not has_weights:
        raise InputError(
            "judging by rating needs weights of rules; give --weights-from with a training study, "
            "and --scheme uniform for equal ones"
        )
    if config.by == "rating" and config.protocol is not None:
        raise InputError(
            f"protocol {config.protocol}: ratings have a prompt of their own; leave it out"
        )
    if config.by == "rating" and (config.max_reply_tokens or 0) > MAX_RATING_REPLY_TOKENS:
        raise InputError(
            f"--max-reply-tokens {config.max_reply_tokens}: by rating a reply is a number and has "
            f"at most {MAX_RATING_REPLY_TOKENS} tokens; give no more than that, or leave it out"
        )


def _by_pair(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig, *, judge: Judge, reporter: Reporter
) -> JudgeReport:
    protocol = config.protocol or "explained"
    judged = judge_pairs(
        pairs,
        judge=judge,
        out=config.out,
        protocol=protocol,
        max_reply_tokens=config.max_reply_tokens,
        shard_size=config.shard_size,
        reporter=reporter,
    )
    verdict_P2 = judged.verdict_P2
    summary = summarize(verdict_P2, criterion_id=CRITERION_ID)
    low, high = (
        benchmark_score(pair_credits(filled(verdict_P2, by=by)), pairs=pairs, ties="half").headline
        for by in (REJECTED, CHOSEN)
    )
    bounds, figure = (low.score, high.score), pairs.benchmark.headline
    notes = tuple(
        remarks(summary, judged.null_reasons, judge=judged.judge, bounds=bounds, figure=figure)
    )
    single_P = np.empty(pairs.num_pairs)  # drawn in the plan's order: that of the file is nothing
    single_P[judged.plan_P] = single_order_credits(verdict_P2[judged.plan_P], seed=config.seed)
    credit_P = pair_credits(verdict_P2)
    synthetic = _synthetic(pairs, judge)
    results = PairResults(
        name=config.name or f"judge {judged.judge} ({protocol})",
        ties="half",
        credit_P=credit_P,
        about=RowAbout(
            kind="judge",
            synthetic=synthetic,
            notes=tuple(dict.fromkeys((reliability(summary, judge=judged.judge), *notes))),
            judge=judged.judge,
        ),
    )
    return JudgeReport(
        name=results.name,
        by=config.by,
        judge=judged.judge,
        folder=judged.folder,
        results=_write(judged.folder, results, key=judged.key, weights=None, pairs=pairs),
        score=benchmark_score(credit_P, pairs=pairs, ties="half"),
        single_order_score=benchmark_score(single_P, pairs=pairs, ties="half"),
        bounds=bounds,
        criteria=(summary,),
        num_pairs=pairs.num_pairs,
        num_ties=int((credit_P == 1 / 2).sum()),
        null_reasons=judged.null_reasons,
        notes=(*pairs.notes, *notes),
        synthetic=synthetic,
    )


def _by_rating(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig, *, judge: Judge | None, reporter: Reporter
) -> JudgeReport:
    assert config.weights_from is not None, "check_way asks for them"
    vector = weigh(
        open_ratings(config.weights_from, run=config.weights_run),
        scheme=config.scheme or "encore",
        tau=DEFAULT_TAU if config.tau is None else config.tau,
        k=DEFAULT_K if config.k is None else config.k,
        rule=config.rule,
        seed=config.seed,
    )
    rules = load_rule_set(config.rating.rules)
    by_rule = checked_weights(vector, rules, pairs, out=config.out)  # before any rating
    opened = judge or open_judge(config.judge)
    try:
        rated = rate_pairs(
            pairs,
            config=config.rating,
            out=config.out,
            weights=by_rule,
            judge=opened,
            reporter=reporter,
        )
    finally:
        if judge is None:
            opened.close()
    strict_P = np.asarray(rated.credit_P == 1, dtype=np.float64)
    is_half_P = np.asarray(rated.credit_P == 1 / 2)
    strict = benchmark_score(strict_P, pairs=pairs, ties="loss", is_tie_P=is_half_P)
    of_weights = synthetic_in(config.weights_from, run=config.weights_run)
    synthetic = (*_synthetic(pairs, opened), *(f"training {part}" for part in of_weights))
    uses_labels = bool(vector.provenance and vector.provenance.uses_labels)
    notes = (*rated.notes, *_origin_notes(vector, judge=rated.judge))
    params = [f"{name} {vector.params[name]}" for name in _TELLING_PARAMS if name in vector.params]
    tie_notes = _tie_notes(rated, strict, pairs)
    results = PairResults(
        name=config.name or f"judge {rated.judge} by rating, {' '.join([vector.scheme, *params])}",
        ties="half",
        credit_P=rated.credit_P,
        reward_P2=None if rated.num_unrated else rated.reward_P2,
        about=RowAbout(
            kind="judge",
            params=dict(vector.params),
            uses_labels=uses_labels,
            synthetic=synthetic,
            notes=(*tie_notes, *notes),
            judge=rated.judge,
            scheme=vector.scheme,
        ),
    )
    return JudgeReport(
        name=results.name,
        by=config.by,
        judge=rated.judge,
        folder=rated.study,
        results=_write(rated.study, results, key=rated.run_key, weights=vector, pairs=pairs),
        score=benchmark_score(rated.credit_P, pairs=pairs, ties="half"),
        strict_score=strict,
        weights=by_rule,
        num_pairs=pairs.num_pairs,
        num_ties=rated.num_ties,
        num_unrated=rated.num_unrated,
        null_reasons=rated.null_reasons,
        uses_labels=uses_labels,
        notes=(*pairs.notes, *notes),
        synthetic=synthetic,
    )


def _tie_notes(rated: RatedPairs, strict: BenchmarkScore, pairs: BenchmarkPairs) -> tuple[str, ...]:
    """What ties are worth to a reward that is not one of a reward model."""
    if not rated.num_ties and not rated.num_unrated:
        return ()
    as_models = ", as a reward model's ties are," if pairs.benchmark.ties == "loss" else ""
    note = (
        f"judge {rated.judge}: {rated.num_ties} pairs tie and {rated.num_unrated} have no reward, "
        f"of {pairs.num_pairs}; each counts one half; counted as losses{as_models} they make "
        f"{strict.headline.name} {strict.headline.score:.1%}"
    )
    return (note,)


def _origin_notes(weights: WeightVector, *, judge: str) -> tuple[str, ...]:
    """What a reader of a judge's figures must know of where its weights come from."""
    origin, found = origin_of(weights), []
    if origin.judge not in (None, judge):
        found.append(
            f"judge {judge}: the rules are weighed by the ratings of another judge, {origin.judge}"
        )
    if origin.num_missing_shards:
        found.append(
            f"judge {judge}: the rules are weighed by an incomplete rating run: "
            f"{origin.num_missing_shards} of {origin.num_shards} shards are missing, damaged or "
            "failed"
        )
    return tuple(found)


def _synthetic(pairs: BenchmarkPairs, judge: Judge) -> tuple[str, ...]:
    """What of a judging is synthetic, in words: the demo's judge, a benchmark that says so.

    The benchmark counts by its name in this call: the same pairs may have had another one before.
    """
    name, found = pairs.benchmark.name, []
    if name.casefold().startswith(SYNTHETIC_LABEL):
        found.append(f"benchmark {name}")
    if is_demo_judge(judge.identity.revision):
        found.append(f"judge {judge.identity.name}")
    return tuple(found)


def _write(
    folder: Path,
    results: PairResults,
    *,
    key: str,
    weights: WeightVector | None,
    pairs: BenchmarkPairs,
) -> Path:
    """Write ``results-<name>-<key>-<hash>.parquet`` into a folder and return its path.

    The hash is of name and weights: the key covers neither, and the results of one training study's
    weights must not take the place of another's.
    """
    by_rule = None if weights is None else [list(weights.rule_ids), list(weights.weights)]
    digest = hashlib.sha256(json.dumps([results.name, by_rule]).encode()).hexdigest()
    parts = ("results", slug(results.name)[:_NAME_LENGTH].strip("-"), key[:8], digest[:8])
    path = folder / f"{'-'.join(filter(None, parts))}.parquet"
    return write_pair_results(path, [results], pairs=pairs)
