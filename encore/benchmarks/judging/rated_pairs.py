"""The rule judge: weighted ratings of an LLM judge as a reward, without a reward model.

The benchmark's pairs become a study, which is rated under every rule as training data are. The
reward of an answer is the weighted sum of its ratings, with weights from a training study. Nothing
is trained, and no label of the benchmark is used.

Suffixes: P pairs, 2 answers (chosen, rejected), R rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import data_digest, data_digest_of, write_pairs_once
from encore.data.pairs_manifest import Origin
from encore.data.rating_runs import RatingManifest, null_reasons, run_status
from encore.data.records import RuleSet
from encore.data.study import Study, is_study, open_study
from encore.judges.base import Judge
from encore.rating.rating_options import RatingRunOptions
from encore.rating.rating_run import open_run
from encore.runs.worker import raise_for_failed_shards, work_through
from encore.warehouse import PairRatings, open_ratings, open_warehouse, read_pair_ratings
from encore.weighting.composed_ratings import pair_credits
from encore.weighting.weight_vector import Origin as WeightsOrigin
from encore.weighting.weight_vector import WeightVector

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatedPairs:
    """Weighted ratings as rewards of a benchmark's pairs.

    Attributes:
        study: Path of the study with these pairs, a study like any other.
        manifest: Manifest of the rating run in the study.
        reward_P2: Rewards of the chosen and of the rejected answer (`_weighted_rewards`).
        credit_P: Credit of each pair: 1, 0, or 1/2 for a tie or a pair without ratings.
        num_partly: Pairs of which some, but not all, rules with a weight rated both answers.
        null_reasons: Ratings without a number, by reason, the most frequent first.
    """

    study: Path
    manifest: RatingManifest
    reward_P2: _Floats
    credit_P: _Floats
    num_partly: int
    null_reasons: Mapping[str, int]

    @property
    def num_unrated(self) -> int:
        """Return the number of pairs without a rule with a weight that rated both answers."""
        return int(np.isnan(self.reward_P2[:, 0]).sum())

    @property
    def full_reward_P2(self) -> _Floats | None:
        """Return the rewards. None if a pair has none."""
        return None if self.num_unrated else self.reward_P2

    @property
    def num_ties(self) -> int:
        """Return the number of pairs whose two rewards are equal."""
        return int((self.credit_P == 1 / 2).sum()) - self.num_unrated


def rate_pairs(
    pairs: BenchmarkPairs,
    config: JudgeBenchmarkConfig,
    weights: Mapping[str, float],
    *,
    judge: Judge,
    reporter: Reporter = SILENT,
) -> RatedPairs:
    """Have a judge rate every answer under every rule, shard by shard, and weigh the ratings.

    Args:
        pairs: Pairs of the benchmark.
        config: Rules and shards. The study goes to ``config.out/rated-<digest of the pairs>``.
        weights: Weight of each rule of the rule set (`check_weights`).
        judge: Opened judge. It stays open.
        reporter: Receives the progress, in ratings.

    Raises:
        StudyIncompleteError: Shards failed. The same call rates only these.
        EncoreError: The judge does not load.
    """
    study = create_rated_study(pairs, out=config.out)
    run = open_run(study, config.rating, RatingRunOptions(allow_nulls=True), judge=judge)
    report = work_through(run.job(reporter=reporter), reporter=reporter)
    raise_for_failed_shards(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
    with open_warehouse(open_ratings(study, run=run.manifest.run_key)) as warehouse:
        ratings = read_pair_ratings(warehouse, rule_ids=tuple(weights))
    row_by_id = {pair_id: row for row, pair_id in enumerate(ratings.pair_id_P.tolist())}
    rated = ratings.take(np.array([row_by_id[pair.pair_id] for pair in pairs.pairs], dtype=np.intp))
    weight_R = np.array(list(weights.values()), dtype=np.float64)
    reward_P2 = _weighted_rewards(rated, weight_R)
    margin_P = reward_P2[:, 0] - reward_P2[:, 1]
    lacks_P = rated.is_failed_PR[:, weight_R > 0].any(axis=1)
    return RatedPairs(
        study=study.path,
        manifest=run.manifest,
        reward_P2=reward_P2,
        credit_P=pair_credits(np.nan_to_num(margin_P)),  # no margin: one half, as for a tie
        num_partly=int((lacks_P & ~np.isnan(margin_P)).sum()),
        null_reasons=null_reasons(run_status(run.run_dir)),
    )


def _weighted_rewards(ratings: PairRatings, weight_R: _Floats) -> _Floats:
    """Return the weighted mean ratings over the rules that rated both answers, shape [P, 2].

    Both answers are thus measured by the same rules, but for a rule that does not apply to one of
    them: it counts for the other. NaN if there is no such rule with a weight.
    """
    is_rated_2PR = ~np.isnan(ratings.rating_2PR) & ~ratings.is_failed_PR
    sum_2P = np.where(is_rated_2PR, ratings.rating_2PR, 0.0) @ weight_R
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.asarray((sum_2P / (is_rated_2PR @ weight_R)).T)


def check_weights(
    weights: WeightVector, rules: RuleSet, pairs: BenchmarkPairs, *, out: Path
) -> None:
    """Raise an error unless the weights are from ratings of a training study under these rules.

    Facts that the weights do not record are not checked.

    Raises:
        InputError: The weights are of other rules or rule texts, or from ratings of the benchmark
            itself.
    """
    origin = weights_origin(weights)
    differing = sorted(set(weights.rule_ids).symmetric_difference(rules.rule_ids))
    if differing or origin.rules_sha256 not in (None, rules.digest):
        difference = ", ".join(differing[:3]) or "their texts or their order"
        raise InputError(
            f"weights of other rules than those of {rules.name}: they differ in {difference}; "
            "give the rule set that the study was rated under (--rules), or rate the study under "
            "this one"
        )
    # A study of these pairs may have another name, which the benchmark had before.
    ids = list(dict.fromkeys(pair.pair_id for pair in pairs.pairs))
    table = pa.table({"source": [pairs.benchmark.name] * len(ids), "pair_id": ids})
    digests = {data_digest_of(table)}
    if is_study(path := _rated_study_path(pairs, out=out)):
        digests.add(data_digest(open_study(path)))
    if origin.data_sha256 in digests:
        raise InputError(
            f"weights from ratings of benchmark {pairs.benchmark.name} itself (run "
            f"{origin.run_key}): take them from a training study"
        )


def weights_origin(weights: WeightVector) -> WeightsOrigin:
    """Return the recorded source of weights; its fields are None if nothing is recorded."""
    return weights.provenance or WeightsOrigin()


def create_rated_study(pairs: BenchmarkPairs, *, out: Path) -> Study:
    """Return the study of a benchmark's pairs; create it if it is missing.

    Equal pairs are in it once.

    Raises:
        InputError: Its path holds something else.
    """
    name = pairs.benchmark.name
    named = {name: [dataclasses.replace(pair, source=name) for pair in pairs.pairs]}
    origin = Origin(kind="local", name=name, format="benchmark", num_read=len(pairs.pairs))
    return write_pairs_once(_rated_study_path(pairs, out=out), named, origin=origin)


def _rated_study_path(pairs: BenchmarkPairs, *, out: Path) -> Path:
    """Return the folder of the study in which the judge's ratings of these pairs are kept."""
    return out / f"rated-{pairs.digest[:16]}"
