"""The rule judge: a judge's own ratings, weighted, as a reward without any reward model.

The benchmark's pairs are a study of their own, rated under every rule exactly as training data are;
the reward of an answer is the weighted sum of its ratings, with weights from a training study.
Nothing is trained, and no label of the benchmark enters.

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

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.judging.earlier_versions import earlier_rated_study_path, rated_study_path
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.data.pairs import data_digest, data_digest_of, write_pairs_once
from encore.data.pairs_manifest import Origin
from encore.data.rating_runs import RatingManifest, null_reasons, run_status
from encore.data.records import RuleSet
from encore.data.study import Study, is_study, open_study
from encore.judges.base import Judge
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.run_files import finished_shards
from encore.runs.shard_runner import raise_for_failed_shards, work_through
from encore.warehouse import PairRatings, open_ratings, open_warehouse, read_pair_ratings
from encore.weighting.composed_ratings import pair_credits
from encore.weighting.weight_vector import Origin as WeightsOrigin
from encore.weighting.weight_vector import WeightVector

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatedPairs:
    """Weighted ratings as rewards of a benchmark's pairs.

    Attributes:
        study: A study of these pairs; anything that reads studies reads it.
        manifest: Of the rating run in it.
        reward_P2: Of the chosen and of the rejected answer (`_weighted_rewards`).
        credit_P: 1, 1/2 for a tie or where nothing is rated, 0.
        num_partly: Pairs that some rule with a weight did not rate on both sides, but others did.
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
        """Pairs that no rule with a weight rated on both sides."""
        return int(np.isnan(self.reward_P2[:, 0]).sum())

    @property
    def num_ties(self) -> int:
        """Pairs whose two rewards are equal."""
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
        pairs: The benchmark's.
        config: Rules and shards; the study goes to ``config.out/rated-<digest of the pairs>``.
        weights: By rule, all of the rule set (`check_weights`).
        judge: Stays open.
        reporter: Told how far it is, in ratings.

    Raises:
        StudyIncompleteError: Shards failed; the same call rates only these.
        EncoreError: The judge does not load.
    """
    study, run = _open_run(pairs, config, judge=judge)
    report = work_through(run.job(reporter=reporter), reporter=reporter)
    raise_for_failed_shards(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
    with open_warehouse(open_ratings(study.path, run=run.manifest.run_key)) as warehouse:
        ratings = read_pair_ratings(warehouse, rule_ids=tuple(weights))
    row_of = {pair_id: row for row, pair_id in enumerate(ratings.pair_id_P.tolist())}
    rated = ratings.take(np.array([row_of[pair.pair_id] for pair in pairs.pairs], dtype=np.intp))
    weight_R = np.array(list(weights.values()), dtype=np.float64)
    reward_P2 = _weighted_rewards(rated, weight_R)
    margin_P = reward_P2[:, 0] - reward_P2[:, 1]
    lacks_P = np.isnan(rated.margin_PR[:, weight_R > 0]).any(axis=1)
    return RatedPairs(
        study=study.path,
        manifest=run.manifest,
        reward_P2=reward_P2,
        credit_P=pair_credits(np.nan_to_num(margin_P)),  # no margin: one half, as for a tie
        num_partly=int((lacks_P & ~np.isnan(margin_P)).sum()),
        null_reasons=null_reasons(run_status(run.run_dir)),
    )


def _open_run(
    pairs: BenchmarkPairs, config: JudgeBenchmarkConfig, *, judge: Judge
) -> tuple[Study, RatingRun]:
    """Open the rating run of these pairs, where an earlier version has more of it: that one."""
    studies = [create_rated_study(pairs, out=config.out)]
    studies += [open_study(path) for path in _study_paths(pairs, out=config.out)[1:]]
    opened = [(study, open_run(study, config.rating, judge=judge)) for study in studies]
    return opened[0] if len(opened) == 1 else max(opened, key=lambda pair: _num_done(pair[1]))


def _num_done(run: RatingRun) -> int:
    """Return how many shards of a rating run are done."""
    return len(finished_shards(run.run_dir, run.manifest, run.manifest.shards))


def _weighted_rewards(ratings: PairRatings, weight_R: _Floats) -> _Floats:
    """The weighted mean rating of both answers, over the rules that rated both; shape [P, 2].

    A missing rating is no rating of 0: both answers are measured by the same rules. NaN where no
    rule with a weight rated both.
    """
    is_rated_PR = ~np.isnan(ratings.margin_PR)
    sum_2P = np.where(is_rated_PR, ratings.rating_2PR, 0.0) @ weight_R
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.asarray((sum_2P / (is_rated_PR @ weight_R)).T)


def check_weights(
    weights: WeightVector, rules: RuleSet, pairs: BenchmarkPairs, *, out: Path
) -> None:
    """Refuse weights from elsewhere than a training study's ratings under these rules.

    What weights do not say of where they come from is not looked at.

    Raises:
        InputError: Weights of other rules or of other rule texts, or of the ratings of the
            benchmark itself.
    """
    origin = weights_origin(weights)
    differing = sorted(set(weights.rule_ids).symmetric_difference(rules.rule_ids))
    if differing or origin.rules_sha256 not in (None, rules.digest):
        shown = ", ".join(differing[:3]) or "their texts or their order"
        raise InputError(
            f"weights of other rules than those of {rules.name}: they differ in {shown}; give the "
            "rule set that the study was rated under (--rules), or rate the study under this one"
        )
    # A study of these pairs may be labelled with another name that the benchmark had before.
    ids = list(dict.fromkeys(pair.pair_id for pair in pairs.pairs))
    table = pa.table({"source": [pairs.benchmark.name] * len(ids), "pair_id": ids})
    own = {data_digest(open_study(path)) for path in _study_paths(pairs, out=out)}
    if origin.data_sha256 in {data_digest_of(table)} | own:
        raise InputError(
            f"weights from ratings of benchmark {pairs.benchmark.name} itself (run "
            f"{origin.run_key}): take them from a training study"
        )


def weights_origin(weights: WeightVector) -> WeightsOrigin:
    """Where weights come from, as far as they say."""
    return weights.provenance or WeightsOrigin()


def create_rated_study(pairs: BenchmarkPairs, *, out: Path) -> Study:
    """Return the study of a benchmark's pairs, made if it is missing; equal pairs are in it once.

    It is not made where an earlier version has made one.

    Raises:
        InputError: Something else is at its place.
    """
    name = pairs.benchmark.name
    named = {name: [dataclasses.replace(pair, source=name) for pair in pairs.pairs]}
    origin = Origin(kind="local", name=name, format="benchmark", num_read=len(pairs.pairs))
    path = next(iter(_study_paths(pairs, out=out)), rated_study_path(pairs, out=out))
    return write_pairs_once(path, named, origin=origin)


def _study_paths(pairs: BenchmarkPairs, *, out: Path) -> list[Path]:
    """Return the folders of the studies of a benchmark's pairs, this version's first."""
    paths = (rated_study_path(pairs, out=out), earlier_rated_study_path(pairs, out=out))
    return [path for path in paths if is_study(path)]
