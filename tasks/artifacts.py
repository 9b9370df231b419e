"""What a flow run shows in the Prefect UI: progress, failed shards, statistics, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from encore.analysis.analyze import Analysis
from encore.weighting.weigh import WeighedRules

NOTHING = "–"
_DIGITS = 4


@dataclass(slots=True)
class ShardProgress:
    """A progress artifact that counts shards."""

    num_shards: int
    num_finished: int = 0
    _artifact: UUID | None = None

    def start(self) -> None:
        """Show 0 %."""
        artifact = create_progress_artifact(
            progress=0.0,
            key="rating-progress",
            description=f"Share of {self.num_shards} shards that are rated, reused or failed.",
        )
        assert isinstance(artifact, UUID)  # called from a synchronous flow
        self._artifact = artifact

    def advance(self) -> None:
        """One more shard is through."""
        self.num_finished += 1
        assert self._artifact is not None
        update_progress_artifact(self._artifact, progress=100 * self.num_finished / self.num_shards)


def publish_failed_shards(failures: Mapping[int, str]) -> None:
    """A table of the shards that failed; it says so when there is none."""
    rows: list[dict[str, Any]] = [
        {
            "shard": index,
            "error": error,
            "how to rerun": f"run again, or only this: shards=[{index}]",
        }
        for index, error in failures.items()
    ]
    create_table_artifact(
        rows or [{"shard": "none", "error": NOTHING, "how to rerun": NOTHING}],
        key="failed-shards",
        description=(
            f"{len(failures)} shards failed. A run with the same parameters rates only these; "
            f"`shards={list(failures)}` looks at no others."
            if failures
            else "No shard failed."
        ),
    )


def publish_statistics(analysis: Analysis) -> None:
    """A table of the rules: entropy, levels, accuracy under every tie policy, ties, coverage."""
    create_table_artifact(
        [
            {
                "rule": rule.rule_id,
                "entropy (nats)": _figure(rule.entropy_nats),
                "levels": rule.num_levels,
                "half": _figure(rule.accuracy.half),
                "untied": _figure(rule.accuracy.untied),
                "strict": _figure(rule.accuracy.strict),
                "inclusive": _figure(rule.accuracy.inclusive),
                "ties": _figure(rule.tie_rate),
                "coverage": _figure(rule.coverage),
                "ratings": rule.num_ratings,
                "nulls": rule.num_unparsed,
            }
            for rule in analysis.rules
        ],
        key="rule-statistics",
        description=_paragraphs(
            "Entropy of each rule's ratings, and its accuracy on people's preferences under four "
            "tie policies: half (a tie counts one half), untied (left out), strict (a miss), "
            "inclusive (a hit).",
            *analysis.notes,
            *_missing(analysis.num_missing_shards, analysis.num_shards),
        ),
    )


def publish_weights(weighed: WeighedRules) -> None:
    """A table of the rules' weights, and how much each moves the composed reward."""
    vector = weighed.vector
    params = ", ".join(f"{name} {value}" for name, value in vector.params.items())
    create_table_artifact(
        [
            {
                "rule": rule.rule_id,
                "weight": _figure(weight),
                "effective weight": _figure(None if sd is None else weight * sd),
                "entropy (nats)": _figure(rule.entropy_nats),
            }
            for rule, weight, sd in zip(
                weighed.rules, vector.weights, weighed.margin_sds, strict=True
            )
        ],
        key="rule-weights",
        description=_paragraphs(
            f"Weights by scheme {vector.scheme}{f' ({params})' if params else ''}. The effective "
            "weight is the weight times the standard deviation of rating(chosen) − "
            "rating(rejected).",
            *_missing(weighed.num_missing_shards, weighed.num_shards),
        ),
    )


def _figure(value: float | None) -> float | str:
    return NOTHING if value is None else round(value, _DIGITS)


def _missing(num_missing: int, num_shards: int) -> Sequence[str]:
    if not num_missing:
        return ()
    return (f"**{num_missing} of {num_shards} shards are not done and not in these figures.**",)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(texts)
