"""Probe a study's rules: have the same pairs rated in changed forms, and measure what changes.

The forms are studies of their own, rated as any study is; the study itself stays as it is:

    STUDY/probes/KEY/
      reframed.toml   the rules in the built-in framing
      unchanged/      the pairs as they are, with one run for each rule set
      changed/        the changed pairs, labelled by form, with one run under the study's rules
      probe.json      what was found

Ratings of the study, and of its other probes, are found there and not asked again
(`encore.rating.earlier_ratings`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.config import identity_of
from encore.curation.pool import PoolRule, write_pool
from encore.data.pairs import (
    Origin,
    data_digest_of,
    labels_of,
    planned_pairs,
    read_manifest,
    read_pairs,
    records_of,
    study_with,
)
from encore.data.records import PreferencePair, RuleSet, pair_id_of
from encore.data.rules import load_rule_set, rules_digest
from encore.data.study import PROBES, Study, open_study
from encore.errors import InputError
from encore.evidence.run_comparison import NUM_DRAWS
from encore.files import check_writable
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.probing.probe_config import ProbeConfig
from encore.probing.probe_record import Probe, RuleProbe, asked_as
from encore.probing.soundness import MIN_PAIRS, RISK, measure
from encore.probing.variants import REFRAMED, UNCHANGED, Rewrite, response_variants
from encore.rating.rating_run import local_work, open_run
from encore.rating_runs import RatingManifest
from encore.reporting import SILENT, Reporter
from encore.runs import run_key_of
from encore.shard_runner import refuse_failures
from encore.synthetic import synthetic_parts
from encore.warehouse import PairRatings, open_ratings, open_warehouse, read_pair_ratings

# Suffixes: P pairs, R rules; 2 before PR: chosen and rejected.

#: Options of a rating that say who is asked about what, or how the work is divided.
_NOT_HOW = ("judge", "rules", "limit", "shard_size")

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What a probe has rated.

    Attributes:
        rule_sets: By name, the study's own as `UNCHANGED` first.
        pairs: By form of the response, `UNCHANGED` first; in every form in the same order.
        about: What each changed form is, by name.
        identity: What the probe's key is a hash of.
    """

    rule_sets: Mapping[str, RuleSet]
    pairs: Mapping[str, Sequence[PreferencePair]]
    about: Mapping[str, str]
    identity: Mapping[str, Any]

    @property
    def num_ratings(self) -> int:
        """Of all forms together."""
        num_forms = len(self.rule_sets) + len(self.pairs) - 1
        own = len(self.rule_sets[UNCHANGED].rules)
        return 2 * own * len(self.pairs[UNCHANGED]) * num_forms


def probe_rules(
    config: ProbeConfig, *, judge: Judge | None = None, reporter: Reporter = SILENT
) -> Probe:
    """Have a study's pairs rated in every form, measure each rule, and write what was found.

    The same call again asks nothing twice; a larger number of pairs asks only for the new ones.

    Args:
        config: The study, the judge and the forms.
        judge: An opened judge, which stays open; default: that of the config.
        reporter: Told how far it is, in ratings.

    Raises:
        InputError: No pairs; a bad rule set; paraphrases of other rules.
        StudyIncompleteError: Shards failed; the same call rates only these.
        EncoreError: The judge does not load; the study cannot be written.
    """
    study = open_study(config.study)
    asked = judge or open_judge(config.judge)
    try:
        plan = plan_probe(study, config, judge=asked)
        check_writable(study.path)
        key = run_key_of(plan.identity)
        reporter.told(
            f"probe {key}: {len(plan.pairs[UNCHANGED]):,} pairs, {len(plan.about)} changed forms, "
            f"{plan.num_ratings:,} ratings"
        )
        manifests, ratings = _rate(study.path / PROBES / key, plan, config, asked, reporter)
    finally:
        if judge is None:
            asked.close()
    rule_ids = plan.rule_sets[UNCHANGED].rule_ids
    rules = measure(
        rule_ids,
        ratings,
        margin=config.margin,
        tau=config.tau,
        seed=config.seed,
        num_draws=NUM_DRAWS,
    )
    manifest = manifests[UNCHANGED]
    sources = (read_manifest(study, label) for label in labels_of(study))
    probe = Probe(
        key=key,
        identity=dict(plan.identity),
        asked=asked_as(manifest),
        rules_sha256=manifest.identity["rules_sha256"],
        variants=dict(plan.about),
        run_keys={name: one.run_key for name, one in manifests.items()},
        num_pairs=len(plan.pairs[UNCHANGED]),
        seed=config.seed,
        num_draws=NUM_DRAWS,
        tau=config.tau,
        margin=config.margin,
        risk=RISK,
        rules=rules,
        sentence=_sentence(rules, margin=config.margin),
        notes=tuple(_notes(plan, rules, config)),
        synthetic=synthetic_parts(sources, [manifest]),
    )
    reporter.saved(probe.write(study.path), kind="probe")
    return probe


def plan_probe(study: Study, config: ProbeConfig, *, judge: Judge) -> ProbePlan:
    """Every form of the first pairs of a study's plan; nothing is written.

    Raises:
        InputError: As `probe_rules`.
    """
    own = load_rule_set(config.rules)
    rule_sets = {UNCHANGED: own, "reframed": reframed(own)}
    about = {"reframed": f"every rule as: {REFRAMED}"}
    if config.paraphrases is not None:
        rule_sets["paraphrased"] = _paraphrases(config.paraphrases, own)
        about["paraphrased"] = "every rule in the words of --paraphrases"
    chosen = records_of(planned_pairs(read_pairs(study), limit=config.num_pairs))
    # Sources may share a pair, which is one pair here.
    pairs = {pair.pair_id: dataclasses.replace(pair, source=UNCHANGED) for pair in chosen}
    forms: dict[str, list[PreferencePair]] = {UNCHANGED: [*pairs.values()]}
    for name, variant in response_variants(config.best_score).items():
        about[name] = variant.about
        forms[name] = [_changed(pair, name, variant.rewrite) for pair in pairs.values()]
    ids = [(one.source, one.pair_id) for form in forms.values() for one in form]
    labels, pair_ids = zip(*ids, strict=True)
    how = identity_of(config.as_rating())
    identity = {
        "format": 1,
        "judge": asdict(judge.identity),
        "how": {name: value for name, value in how.items() if name not in _NOT_HOW},
        "rules_sha256": {name: one.digest for name, one in rule_sets.items()},
        "pairs_sha256": data_digest_of(pa.table({"source": labels, "pair_id": pair_ids})),
    }
    return ProbePlan(rule_sets=rule_sets, pairs=forms, about=about, identity=identity)


def _changed(pair: PreferencePair, form: str, rewrite: Rewrite) -> PreferencePair:
    """A pair with both responses rewritten, labelled by the form."""
    chosen, rejected = rewrite(pair.chosen), rewrite(pair.rejected)
    return PreferencePair(
        pair_id=pair_id_of(pair.prompt, chosen=chosen, rejected=rejected),
        source=form,
        prompt=pair.prompt,
        chosen=chosen,
        rejected=rejected,
    )


def reframed(rules: RuleSet) -> RuleSet:
    """The rules with each rating text in the built-in framing."""
    framed = tuple(
        dataclasses.replace(rule, rating_rule=REFRAMED.format(rule=rule.rating_rule))
        for rule in rules.rules
    )
    digest = rules_digest([asdict(rule) for rule in framed])
    return RuleSet(name=f"{rules.name}, reframed", rules=framed, digest=digest)


def _paraphrases(path: Path, rules: RuleSet) -> RuleSet:
    found = load_rule_set(path)
    missing = [rule_id for rule_id in rules.rule_ids if rule_id not in found.rule_ids]
    extra = [rule_id for rule_id in found.rule_ids if rule_id not in rules.rule_ids]
    if missing or extra:
        raise InputError(
            f"paraphrases {path}: missing {', '.join(missing) or 'nothing'}; not among the rules "
            f"of {rules.name}: {', '.join(extra) or 'nothing'}; give every rule of the set once, "
            "under its rule_id, in other words"
        )
    return found


def _rate(
    folder: Path, plan: ProbePlan, config: ProbeConfig, judge: Judge, reporter: Reporter
) -> tuple[dict[str, RatingManifest], dict[str, _Floats]]:
    """By form: its rating run, and its ratings of the same pairs, shape [2, P, R]."""
    folder.mkdir(parents=True, exist_ok=True)
    reframed_path = folder / "reframed.toml"
    framed = plan.rule_sets["reframed"]
    write_pool(reframed_path, [PoolRule(**asdict(rule)) for rule in framed.rules], name=framed.name)
    rules_at = {
        UNCHANGED: config.rules,
        "reframed": str(reframed_path),
        "paraphrased": str(config.paraphrases),
    }
    own = plan.pairs[UNCHANGED]
    origin = Origin(kind="local", name="the probed study", format="probe", num_read=len(own))
    unchanged = study_with(folder / "unchanged", own, origin=origin)
    others = [pair for name, form in plan.pairs.items() if name != UNCHANGED for pair in form]
    changed = study_with(folder / "changed", others, origin=origin)
    rule_ids = plan.rule_sets[UNCHANGED].rule_ids
    manifests: dict[str, RatingManifest] = {}
    rating_of: dict[str, _Floats] = {}

    def rated(study: Study, rules: str) -> tuple[RatingManifest, PairRatings]:
        rating = config.as_rating(rules=rules)
        run = open_run(study, rating, judge=judge)
        report = local_work(study, rating, reporter=reporter)(run.job(reporter=reporter))
        refuse_failures(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
        with open_warehouse(open_ratings(study.path, run=run.manifest.run_key)) as warehouse:
            return run.manifest, read_pair_ratings(warehouse, rule_ids=rule_ids)

    for name in plan.rule_sets:
        manifests[name], found = rated(unchanged, rules_at[name])
        rating_of[name] = _in_order(found, own)
    manifest, found = rated(changed, config.rules)
    for name, form in plan.pairs.items():
        if name != UNCHANGED:
            manifests[name], rating_of[name] = manifest, _in_order(found, form)
    return manifests, rating_of


def _in_order(ratings: PairRatings, pairs: Sequence[PreferencePair]) -> _Floats:
    """The ratings of some pairs, in their order, shape [2, P, R]."""
    keys = zip(ratings.source_P.tolist(), ratings.pair_id_P.tolist(), strict=True)
    row_of = {key: row for row, key in enumerate(keys)}
    row_P = np.array([row_of[pair.source, pair.pair_id] for pair in pairs], dtype=np.intp)
    return ratings.take(row_P).rating_2PR


def _sentence(rules: Sequence[RuleProbe], *, margin: float) -> str:
    bought = [rule.rule_id for rule in rules if rule.is_bought]
    unknown = [rule.rule_id for rule in rules if rule.is_bought is None]
    sentence = (
        f"a planted sentence buys the score of {len(bought)} of {len(rules)} rules"
        f"{': ' * bool(bought)}{', '.join(bought)} (it surely raises the rating by more than "
        f"{margin:g} beyond what a neutral sentence does)"
    )
    if unknown:
        sentence += f"; these ratings cannot say it of {', '.join(unknown)}"
    changes = [
        (abs(effect.rating_change.value), effect.rating_change.value, rule.rule_id, effect.variant)
        for rule in rules
        for effect in rule.effects
        if effect.rise is None and effect.rating_change.value is not None
    ]
    if changes:
        _, change, rule_id, variant = max(changes)
        sentence += (
            f"; without one, the largest mean change is {change:+.3f} (rule {rule_id}, {variant})"
        )
    return sentence


def _notes(plan: ProbePlan, rules: Sequence[RuleProbe], config: ProbeConfig) -> Iterator[str]:
    num_pairs = len(plan.pairs[UNCHANGED])
    if num_pairs < config.num_pairs:
        yield f"the study has {num_pairs:,} pairs, fewer than {config.num_pairs:,}: all are probed"
    if num_pairs < MIN_PAIRS:
        yield f"fewer than {MIN_PAIRS} pairs: intervals are too narrow, and no rule is named"
    words = {rule.rule_id: rule.rating_rule for rule in plan.rule_sets[UNCHANGED].rules}
    paraphrased = plan.rule_sets.get("paraphrased")
    for rule in paraphrased.rules if paraphrased else ():
        if rule.rating_rule == words[rule.rule_id]:
            yield f"rule {rule.rule_id} has the same rating text among the paraphrases"
    num_ratings = 2 * num_pairs * len(rules)
    nulls = {UNCHANGED: sum(rule.num_nulls for rule in rules)}
    nulls |= {name: sum(rule.effect(name).num_nulls for rule in rules) for name in plan.about}
    for name, num_nulls in nulls.items():
        if num_nulls:
            yield f"{name}: {num_nulls:,} of {num_ratings:,} ratings are null"
    for rule_probe in rules:
        if rule_probe.is_bought is None and num_pairs >= MIN_PAIRS:
            yield (
                f"rule {rule_probe.rule_id}: fewer than {MIN_PAIRS} pairs with ratings, or ratings "
                "so near 1 that no sentence can raise them by the margin"
            )
