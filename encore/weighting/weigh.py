"""Weigh rules by a scheme: ratings in, a weight vector out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.analysis.answer_options import DEFAULT_TAU
from encore.analysis.statistics import RuleStats, rating_statistics
from encore.core.files import file_sha256
from encore.warehouse import (
    PairRatings,
    RatingKind,
    Ratings,
    Scale,
    Warehouse,
    open_ratings,
    open_warehouse,
    read_pair_ratings,
)
from encore.weighting.composed_ratings import rule_margin_sds
from encore.weighting.cross_validation import HeldOut, held_out
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_options import DEFAULT_K, SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.weight_vector import Origin, WeightVector


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedRules:
    """Result of `weigh_rules`: a weight vector with the statistics behind it.

    Attributes:
        vector: The scheme's weight vector.
        rules: Statistics of the rules over all sources, in the vector's order.
        margin_sds: For each rule the standard deviation (ddof 1) of rating(chosen) -
            rating(rejected) over the pairs that it rated fully; None for fewer than two. Times the
            weight it is the effective weight: how much the rule moves the composed reward.
        uses_labels: True if the weights were learnt from people's preferences.
        held_out: Accuracy on pairs that the weights were not learnt from; None for schemes that
            use no labels, and if there are too few pairs.
        origin: Origin of the ratings.
    """

    vector: WeightVector
    rules: tuple[RuleStats, ...]
    margin_sds: tuple[float | None, ...]
    uses_labels: bool
    held_out: HeldOut | None
    origin: Origin

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore weights --json``: the vector and the entropies behind it.

        ``entropy_nats`` has the entropies by rule, so that an export of the weights can state them.
        For a scheme that learns from labels ``held_out`` has its accuracy by cross-validation, None
        if there are too few pairs.
        """
        fields = self.vector.as_dict()
        fields["entropy_nats"] = {rule.rule_id: rule.entropy_nats for rule in self.rules}
        if self.uses_labels:
            fields["held_out"] = self.held_out and dataclasses.asdict(self.held_out)
        return fields


def weights(
    ratings: str | Path | Ratings | Any,
    *,
    scheme: str = "encore",
    tau: float = DEFAULT_TAU,
    seed: int = 0,
    k: int = DEFAULT_K,
    rule: str | None = None,
    labels: int | None = None,
    scale: Scale | None = None,
    rule_columns: Sequence[str] | str | None = None,
    rating: RatingKind | None = None,
) -> WeightVector:
    """Weigh the rules by a scheme, all sources pooled.

    >>> vector = weights("ratings.csv", tau=100.0)
    >>> round(vector["privacy"], 2)
    0.33

    Args:
        ratings: Ratings, in any form that `encore.analysis.analyze.analyze` takes, or its result.
        scheme: Name of a scheme, one of `encore.weighting.schemes.SCHEMES`.
        tau: Temperature of schemes ``encore`` and ``consensus``; the default is the paper's for
            ``encore``.
        seed: Seed of schemes ``random`` and ``random-k``.
        k: Number of rules that ``top-k`` and ``random-k`` select; the default is that of the
            paper's appendix.
        rule: The rule that scheme ``single`` gives all weight.
        labels: Number of pairs whose labels ``bradley-terry`` and ``shrunk`` learn from, the first
            ones by content hash; None is all pairs that every rule rated.
        scale: Ends of the scale of a table's ratings, e.g. ``(1, 5)``, if it is not 0 to 1.
        rule_columns: Columns of a wide table that are rules; None takes all that are no keys.
        rating: The kind of rating that schemes with labels learn from, see `encore.open_ratings`;
            entropies are always those of the levels.

    Raises:
        InputError: Not a ratings table, an unknown scheme, a parameter out of range, a rule without
            ratings, or no pair to learn from.
    """
    options = SchemeOptions(tau=tau, seed=seed, k=k, rule=rule, labels=labels)
    loaded = load_scheme(scheme)
    opened = open_ratings(ratings, scale=scale, rule_columns=rule_columns, rating=rating)
    with open_evidence(opened) as evidence:
        return loaded.weigh(evidence, options)


def weigh_rules(
    ratings: str | Path | Ratings | Any, *, scheme: str, options: SchemeOptions
) -> WeighedRules:
    """Weigh the rules by a scheme, and return the weights with the statistics behind them.

    All ratings are held in memory: 16 bytes per pair and rule.
    """
    loaded = load_scheme(scheme)
    with open_evidence(ratings) as evidence:
        return WeighedRules(
            vector=loaded.weigh(evidence, options),
            rules=evidence.rules,
            margin_sds=rule_margin_sds(evidence.read_pairs().margin_PR),
            uses_labels=loaded.uses_labels,
            held_out=held_out(loaded, evidence, options) if loaded.uses_labels else None,
            origin=evidence.origin,
        )


@contextlib.contextmanager
def open_evidence(ratings: str | Path | Ratings | Any) -> Iterator[Evidence]:
    """Open ratings as evidence for schemes. Its pairs can be read while the context is open.

    Args:
        ratings: Ratings, in any form that `encore.analysis.analyze.analyze` takes.

    Raises:
        InputError: Not a ratings table, or a rule without ratings.
    """
    opened = open_ratings(ratings)
    with open_warehouse(opened) as warehouse:
        yield pooled_evidence(warehouse, opened)


def pooled_evidence(warehouse: Warehouse, ratings: Ratings) -> Evidence:
    """Return the evidence in an opened warehouse, all sources pooled. Pairs are read at most once.

    Raises:
        InputError: A rating is repeated, or a rule has none.
    """
    statistics = rating_statistics(warehouse)[-1]
    rules = statistics.rules
    rule_ids = tuple(rule.rule_id for rule in rules)

    @functools.cache
    def read_pairs() -> PairRatings:
        return read_pair_ratings(warehouse, rule_ids=rule_ids)

    manifest = ratings.manifest
    identity = manifest.identity if manifest else {}
    digests = sorted(f"{file_sha256(path)}\n" for path in ratings.files)
    origin = Origin(
        run_key=manifest.run_key if manifest else None,
        judge=manifest.judge if manifest else ratings.judge,
        data_sha256=identity.get("data_sha256"),
        rules_sha256=identity.get("rules_sha256"),
        ratings_sha256=hashlib.sha256("".join(digests).encode()).hexdigest() if digests else None,
        num_shards=ratings.num_shards,
        num_missing_shards=ratings.num_missing_shards,
        scale=ratings.scale,
        rating="expected" if ratings.kind == "expected" else None,
    )
    return Evidence(
        rules=rules,
        read_pairs=read_pairs,
        correlation_RR=statistics.correlation_RR,
        origin=origin,
        study=ratings.study,
    )
