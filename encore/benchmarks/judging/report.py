"""What a judge is asked to do with a benchmark, and what came of it: one kind for all ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encore.benchmarks.judging.summary import VerdictSummary
from encore.benchmarks.judging.verdicts import VerdictNullReason
from encore.benchmarks.metrics import BenchmarkScore
from encore.config import MAX_RATING_REPLY_TOKENS, RatingConfig
from encore.errors import InputError
from encore.weighting.vector import WeightVector

#: One verdict a pair; one a pair and rule, then a vote; or a rating of every answer and rule.
JudgeBy = Literal["pair", "rule", "rating"]
#: How many replies lack a verdict, or a rating, and why.
NullReasons = Mapping[VerdictNullReason, int] | Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRequest:
    """How a judge is to judge a benchmark.

    Attributes:
        by: See `JudgeBy`.
        config: Judge, rules and shard size; replies to rating prompts.
        out: The folder that holds judgings.
        protocol: Of verdicts; None: ``explained`` by pair, ``verdict-only`` by rule.
        max_reply_tokens: Of a verdict; None: the protocol's.
        weights: Of rules; None: by rule each has one vote. Needed by rating.
        synthetic: What of the data behind the weights is synthetic, in words.
        seed: Of the one order a pair in RewardBench's own figure.
        name: Of the row in tables; None: judge, way of judging and weights. A paper's judge, such
            as ``judge-llama3-8b``, puts the row beside the paper's.
    """

    by: JudgeBy
    config: RatingConfig
    out: Path
    protocol: str | None = None
    max_reply_tokens: int | None = None
    weights: WeightVector | None = None
    synthetic: tuple[str, ...] = ()
    seed: int = 0
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeReport:
    """A judge on a benchmark.

    Attributes:
        name: The row's name in tables.
        by: See `JudgeBy`.
        judge: The judge's name.
        folder: Where its words lie.
        results: The file of per-pair results.
        score: Subsets and headline; a tie counts one half.
        single_order_score: The headline if one order a pair, drawn with the seed, had been asked:
            RewardBench's own protocol. None but by pair.
        strict_score: By rating, the score with ties as losses, as those of reward models are; None
            otherwise.
        bounds: The headline if all missing verdicts were wrong, and if all were right; None by
            rating.
        criteria: Figures of the verdicts, one a criterion; none by rating.
        weights: Of the rules; None by pair.
        num_pairs: Of the benchmark; where a row has several rejected answers, more than units are
            counted in the score.
        num_ties: Those of them whose rewards are equal; by rule whose votes are, by pair whose two
            orders make one half, which those without any verdict do too.
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
    single_order_score: BenchmarkScore | None
    strict_score: BenchmarkScore | None
    bounds: tuple[float, float] | None
    criteria: tuple[VerdictSummary, ...]
    weights: Mapping[str, float] | None
    num_pairs: int
    num_ties: int
    num_unrated: int
    null_reasons: NullReasons
    uses_labels: bool
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore judge --json``."""
        content = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("score", "single_order_score", "strict_score", "criteria")
        }
        return {
            **content,
            "folder": str(self.folder),
            "results": str(self.results),
            "weights": None if self.weights is None else dict(self.weights),
            "null_reasons": dict(self.null_reasons),
            "score": dataclasses.asdict(self.score),
            "single_order_score": _score_dict(self.single_order_score),
            "strict_score": _score_dict(self.strict_score),
            "criteria": [dataclasses.asdict(one) for one in self.criteria],
        }


def check_way(
    by: JudgeBy, *, has_weights: bool, protocol: str | None, max_reply_tokens: int | None = None
) -> None:
    """Refuse what a way of judging has no use for, or lacks.

    Args:
        by: See `JudgeBy`.
        has_weights: Whether rules are to be weighed.
        protocol: Of verdicts, where one is asked for.
        max_reply_tokens: Of a reply, where a number is asked for.

    Raises:
        InputError: What does not fit.
    """
    if by == "pair" and has_weights:
        raise InputError(
            "weights of rules with verdicts on whole pairs: there is nothing to weigh; judge by "
            "rule or by rating, or give no weights"
        )
    if by == "rating" and not has_weights:
        raise InputError(
            "judging by rating needs weights of rules; give --weights-from with a training study, "
            "and --scheme uniform for equal ones"
        )
    if by == "rating" and protocol is not None:
        raise InputError(f"protocol {protocol}: ratings have a prompt of their own; leave it out")
    if by == "rating" and (max_reply_tokens or 0) > MAX_RATING_REPLY_TOKENS:
        raise InputError(
            f"--max-reply-tokens {max_reply_tokens}: by rating a reply is a number and has at most "
            f"{MAX_RATING_REPLY_TOKENS} tokens; give no more than that, or leave it out"
        )


def _score_dict(score: BenchmarkScore | None) -> dict[str, Any] | None:
    return None if score is None else dataclasses.asdict(score)
