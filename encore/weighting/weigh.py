"""`encore weights` as a function: ratings in, a weight vector out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.analysis.statistics import RuleStats, rating_statistics
from encore.core.files import file_sha256
from encore.warehouse import (
    PairRatings,
    Ratings,
    Warehouse,
    open_ratings,
    open_warehouse,
    read_pair_ratings,
)
from encore.weighting.composed_ratings import rule_margin_sds
from encore.weighting.folds import HeldOut, held_out
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, Evidence, SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.weight_vector import Origin, WeightVector


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedRules:
    """A weight vector with what it was made from and what it does.

    Attributes:
        vector: The weights.
        rules: Statistics of the rules over all sources, in the vector's order.
        margin_sds: Per rule the standard deviation (ddof 1) of rating(chosen) - rating(rejected)
            over the pairs that it rated fully; None for fewer than two. Times the weight it is the
            effective weight: how much the rule moves the composed reward.
        uses_labels: Whether people's preferences entered the weights.
        held_out: Accuracy on pairs that the weights were not learnt from; None for schemes that
            learn from no label, and where there are too few pairs.
        origin: Where the ratings came from.
    """

    vector: WeightVector
    rules: tuple[RuleStats, ...]
    margin_sds: tuple[float | None, ...]
    uses_labels: bool
    held_out: HeldOut | None
    origin: Origin

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --json``: the vector, for schemes with labels also a test.

        ``entropy_nats`` has the entropies behind the weights, by rule, so that an export of the
        weights can state them. A scheme that learns from labels has the key ``held_out``: its
        accuracy by cross-validation, None where there are too few pairs.
        """
        found = self.vector.as_dict()
        found["entropy_nats"] = {rule.rule_id: rule.entropy_nats for rule in self.rules}
        if self.uses_labels:
            found["held_out"] = self.held_out and dataclasses.asdict(self.held_out)
        return found


def weights(
    ratings: str | Path | Ratings | Any,
    *,
    scheme: str = "encore",
    tau: float = DEFAULT_TAU,
    seed: int = 0,
    k: int = DEFAULT_K,
    rule: str | None = None,
) -> WeightVector:
    """The weights of a scheme for the rules of some ratings, all sources pooled.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        scheme: One of `encore.weighting.SCHEMES`.
        tau: Temperature of scheme ``encore`` (the paper's default).
        seed: Of schemes ``random`` and ``random-k``.
        k: Number of rules that ``top-k`` and ``random-k`` select (the paper's appendix: 5).
        rule: The rule of scheme ``single``.

    Raises:
        InputError: No ratings table, an unknown scheme, an impossible parameter, a rule without
            ratings, no pair to learn from.
    """
    options = SchemeOptions(tau=tau, seed=seed, k=k, rule=rule)
    loaded = load_scheme(scheme)
    with open_evidence(ratings) as evidence:
        return loaded.weigh(evidence, options)


def weigh_rules(
    ratings: str | Path | Ratings | Any, *, scheme: str, options: SchemeOptions
) -> WeighedRules:
    """The weights of a scheme with everything that `encore weights` shows beside them.

    Holds every rating in memory: 16 bytes a pair and rule.
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
    """The evidence of some ratings; its pairs can be read while the context is open.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.

    Raises:
        InputError: No ratings table, or a rule without ratings.
    """
    opened = open_ratings(ratings)
    with open_warehouse(opened) as warehouse:
        yield evidence_of(warehouse, opened)


def evidence_of(warehouse: Warehouse, ratings: Ratings) -> Evidence:
    """The evidence of an opened input, all sources pooled; pairs are read at most once.

    Raises:
        InputError: A rating is there more than once, or a rule has none.
    """
    rules = rating_statistics(warehouse)[-1].rules
    rule_ids = tuple(rule.rule_id for rule in rules)

    @functools.cache
    def read_pairs() -> PairRatings:
        return read_pair_ratings(warehouse, rule_ids=rule_ids)

    origin = _origin(ratings)
    return Evidence(rules=rules, read_pairs=read_pairs, origin=origin, study=ratings.study)


def _origin(ratings: Ratings) -> Origin:
    manifest = ratings.manifest
    identity = manifest.identity if manifest else {}
    digests = sorted(f"{file_sha256(path)}\n" for path in ratings.files)
    return Origin(
        run_key=manifest.run_key if manifest else None,
        judge=manifest.judge if manifest else ratings.judge,
        data_sha256=identity.get("data_sha256"),
        rules_sha256=identity.get("rules_sha256"),
        ratings_sha256=hashlib.sha256("".join(digests).encode()).hexdigest() if digests else None,
        num_shards=ratings.num_shards,
        num_missing_shards=ratings.num_missing_shards,
    )
