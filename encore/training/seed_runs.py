"""Train one model for each of several seeds, and summarise what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encore.training.training_options import TrainingRunConfig

if TYPE_CHECKING:
    from encore.training.run_folder import EvaluationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean, lowest and highest of a figure over seeds.

    Attributes:
        mean: Mean over the seeds that have the figure.
        lowest: Lowest value of the seeds.
        highest: Highest value of the seeds.
        num_seeds: Number of seeds that have the figure.
    """

    mean: float
    lowest: float
    highest: float
    num_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSummary:
    """Spread of the last evaluations of several seeds; None where no seed has the figure."""

    loss: Spread | None
    r2_by_head: dict[str, Spread | None]
    accuracy_half_by_head: dict[str, Spread | None]


def seed_configs(config: TrainingRunConfig, *, num_seeds: int) -> list[TrainingRunConfig]:
    """Return the config of each seed, from the config's own on, each with a folder of its own.

    A single seed keeps the config. A given folder gets a folder ``seed-N`` for each of several.
    """
    if num_seeds == 1:
        return [config]
    return [
        config.model_copy(update={"seed": seed, "out": config.out and config.out / f"seed-{seed}"})
        for seed in range(config.seed, config.seed + num_seeds)
    ]


def summarise_seeds(evaluations: Sequence[EvaluationRecord]) -> SeedSummary:
    """Return the spread of loss, R² and accuracy of each head over the evaluations of seeds."""
    heads = evaluations[0].accuracy_half_by_head
    return SeedSummary(
        loss=spread(record.loss for record in evaluations),
        r2_by_head={
            head: spread(record.r2_by_head.get(head) for record in evaluations) for head in heads
        },
        accuracy_half_by_head={
            head: spread(record.accuracy_half_by_head[head] for record in evaluations)
            for head in heads
        },
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of the values that are not None; None if there are none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return Spread(
        mean=sum(present) / len(present),
        lowest=min(present),
        highest=max(present),
        num_seeds=len(present),
    )
