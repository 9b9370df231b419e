"""What a weight vector was made from: enough to make it again, or to see that the data changed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where ratings came from, as far as it is known; None where it is not.

    Attributes:
        run_key: The run of `encore rate`.
        judge: The judge.
        data_sha256: Digest of the run's preference pairs (`encore.data.pairs.data_digest`).
        rules_sha256: Digest of the run's rule texts and their order.
        ratings_sha256: SHA-256 over the sorted SHA-256 of the files that were read, one hex digest
            a line: the same for every name and order of the files.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    run_key: str | None = None
    judge: str | None = None
    data_sha256: str | None = None
    rules_sha256: str | None = None
    ratings_sha256: str | None = None
    num_shards: int = 0
    num_missing_shards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What stands behind one weight vector.

    Attributes:
        uses_labels: Whether people's preferences entered, so that accuracy on them is flattered.
        uses_benchmark: Whether a benchmark's answers entered.
        tau: The temperature; None where the scheme has none.
        num_ratings: Ratings that are not null, over all rules.
        num_nulls: Null ratings.
        num_pairs: Preference pairs that the ratings are of.
        num_pairs_used: Pairs whose labels the scheme learnt from; None where it learns from none.
        origin: Where the ratings came from.
        log_base: Of the entropies. It acts as a temperature: base 2 at tau 2 is base e at 2 ln 2.
        encore_version: The version that made it.
    """

    uses_labels: bool
    uses_benchmark: bool
    tau: float | None
    num_ratings: int
    num_nulls: int
    num_pairs: int
    num_pairs_used: int | None
    origin: Origin = field(default_factory=Origin)
    log_base: str = "e"
    encore_version: str

    def as_dict(self) -> dict[str, Any]:
        """One flat JSON object."""
        found: dict[str, Any] = dataclasses.asdict(self)
        origin: dict[str, Any] = found.pop("origin")
        return found | origin
