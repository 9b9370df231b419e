"""Probe a study's rules: rate the same pairs in changed forms, and measure what changes.

The forms are written as studies of their own and rated like any study. The probed study does not
change:

    STUDY/probes/PAIRS/    named by a digest of all pairs
      unchanged/           study with the unchanged pairs, and one run for each rule set
      changed/             study with the changed pairs, one source a form, rated under the rules
      reframed-RULES.toml  the rules in the built-in framing
      probe-KEY.json       result of the probe (`Probe`)

Ratings that the study or its other probes have are reused (`encore.rating.earlier_ratings`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.analysis.run_comparison import NUM_DRAWS
from encore.core.config import part_of
from encore.core.errors import InputError
from encore.core.files import check_writable, write_json
from encore.core.reporting import SILENT, Reporter
from encore.data import pairs as study_pairs
from encore.data.pairs_manifest import Origin
from encore.data.rating_runs import RatingManifest
from encore.data.records import PreferencePair, RuleSet, pair_id_of
from encore.data.rule_sets import load_rule_set
from encore.data.study import PROBES_DIR, Study
from encore.judges.base import Judge
from encore.rating.rating_options import EngineOptions, RatingConfig, RatingRunOptions
from encore.rating.rating_run import open_rating_judge, open_run
from encore.rules import probe_variants as fixed
from encore.rules.pool import PoolRule, write_pool
from encore.rules.probe_effects import MARGIN, MIN_PAIRS, measure
from encore.rules.probe_record import Probe, RuleProbe
from encore.rules.probe_variants import UNCHANGED
from encore.rules.rules_options import ProbeConfig
from encore.runs.identity import run_key_of
from encore.runs.worker import raise_for_failed_shards, work_through
from encore.warehouse import open_ratings, open_warehouse, read_pair_ratings

# Suffixes: P pairs, R rules; 2 before PR: chosen and rejected.

_Floats = NDArray[np.float64]
#: Pairs by form of their responses, `UNCHANGED` first. All forms have the same order of pairs.
_Forms = Mapping[str, Sequence[PreferencePair]]
#: Rating run of a form, and its ratings of the probed pairs, shape [2, P, R].
_Rated = tuple[RatingManifest, _Floats]


def probe_rules(
    study: Study,
    config: ProbeConfig,
    how: EngineOptions = EngineOptions(),
    *,
    judge: Judge | None = None,
    reporter: Reporter = SILENT,
) -> Probe:
    """Rate a study's pairs in every form, measure each rule, and write the result.

    The same call again rates nothing twice. A call with more pairs rates only the new pairs.

    Args:
        study: The opened study.
        config: Judge, number of pairs, and forms.
        how: Engines, and how long their replies are waited for.
        judge: Opened judge, which is closed at the end; default: open that of the config.
        reporter: Receives the progress in ratings.

    Raises:
        InputError: The study has no pairs, a rule set is wrong, or the paraphrases have other
            rule ids.
        StudyIncompleteError: Shards failed; the same call rates only these.
        EncoreError: The judge does not load, or the study cannot be written.
    """
    rules = load_rule_set(config.rules)
    _check_paraphrases(config, rules)
    variants = fixed.response_variants(config.labels[-1] if config.labels else "1.0")
    forms = _forms(study, variants, num_pairs=config.num_pairs)
    ids = {name: [pair.pair_id for pair in form] for name, form in forms.items()}
    folder = study.path / PROBES_DIR / run_key_of(ids)
    check_writable(study.path)
    with contextlib.closing(judge or open_rating_judge(config.judge, how)) as opened:
        rated = _rate(folder, config, how, rules, forms, judge=opened, reporter=reporter)
    runs = {name: run for name, (run, _) in rated.items()}
    ratings = {name: rating_2PR for name, (_, rating_2PR) in rated.items()}
    prompts = [repr(pair.prompt) for pair in forms[UNCHANGED]]
    group_P = np.unique(prompts, return_inverse=True)[1]
    rule_probes = measure(rules.rule_ids, ratings, num_draws=NUM_DRAWS, group_P=group_P)
    descriptions = fixed.RULE_VARIANTS | {name: text for name, (text, _) in variants.items()}
    num_pairs = len(forms[UNCHANGED])
    note = f"the study has {num_pairs:,} pairs, fewer than {config.num_pairs:,}: all are probed"
    run_keys = {name: run.run_key for name, run in runs.items()}
    probe = Probe(
        key=run_key_of(run_keys),
        identity=runs[UNCHANGED].identity,
        variants={name: descriptions[name] for name in ratings if name != UNCHANGED},
        run_keys=run_keys,
        num_pairs=num_pairs,
        rules=rule_probes,
        sentence=_sentence(rule_probes),
        notes=(note,) if num_pairs < config.num_pairs else (),
        synthetic=tuple(dict.fromkeys((*study.synthetic, *runs[UNCHANGED].synthetic))),
    )
    path = folder / f"probe-{probe.key}.json"
    write_json(path, probe)
    reporter.saved(path, kind="probe")
    return probe


def _check_paraphrases(config: ProbeConfig, rules: RuleSet) -> None:
    """Raise if the paraphrases do not have exactly the rule ids of the rule set."""
    if config.paraphrases is None:
        return
    rule_ids, paraphrased = {*rules.rule_ids}, {*load_rule_set(config.paraphrases).rule_ids}
    missing = ", ".join(sorted(rule_ids - paraphrased))
    extra = ", ".join(sorted(paraphrased - rule_ids))
    if missing or extra:
        raise InputError(
            f"paraphrases {config.paraphrases}: missing {missing or 'nothing'}; not among the "
            f"rules of {rules.name}: {extra or 'nothing'}; give every rule of the set once, under "
            "its rule_id, in other words"
        )


def _forms(
    study: Study, variants: Mapping[str, tuple[str, fixed.Rewrite]], *, num_pairs: int
) -> _Forms:
    """Return the first pairs of the study's plan, in every form of their responses."""
    planned = study_pairs.planned_pairs(study_pairs.read_pairs(study), limit=num_pairs)
    # A pair that several sources share is probed once.
    pairs = {pair.pair_id: pair for pair in study_pairs.records_of(planned)}

    def changed(pair: PreferencePair, name: str, rewrite: fixed.Rewrite) -> PreferencePair:
        chosen, rejected = rewrite(pair.chosen), rewrite(pair.rejected)
        pair_id = pair_id_of(pair.prompt, chosen=chosen, rejected=rejected)
        return dataclasses.replace(
            pair, pair_id=pair_id, source=name, chosen=chosen, rejected=rejected
        )

    rewrites = {UNCHANGED: str} | {name: rewrite for name, (_, rewrite) in variants.items()}
    return {
        name: [changed(pair, name, rewrite) for pair in pairs.values()]
        for name, rewrite in rewrites.items()
    }


def _rate(
    folder: Path,
    config: ProbeConfig,
    engines: EngineOptions,
    rules: RuleSet,
    forms: _Forms,
    *,
    judge: Judge,
    reporter: Reporter,
) -> dict[str, _Rated]:
    """Rate every form; forms of responses are the sources of one study."""
    # A judge that refuses is a finding: no null stops the run.
    how = RatingRunOptions(**{**dict(engines), "allow_nulls": True})

    def rate(name: str, sources: _Forms, config: RatingConfig) -> dict[str, _Rated]:
        num_pairs = sum(map(len, sources.values()))
        origin = Origin(kind="local", name="study", format="probe", num_read=num_pairs)
        study = study_pairs.write_pairs_once(folder / name, sources, origin=origin)
        run = open_run(study, config, how, judge=judge)
        num_ratings = f"{num_pairs * run.manifest.rows_per_pair:,} ratings"
        reporter.message(f"{', '.join(sources)} under {Path(config.rules).stem}: {num_ratings}")
        report = work_through(run.job(reporter=reporter), reporter=reporter)
        raise_for_failed_shards(run.run_dir, report.failures, num_shards=len(run.manifest.shards))
        with open_warehouse(open_ratings(study, run=run.manifest.run_key)) as warehouse:
            rated = read_pair_ratings(warehouse, rule_ids=rules.rule_ids)
        row_of = {pair_id: row for row, pair_id in enumerate(rated.source_P + rated.pair_id_P)}
        return {
            source: (
                run.manifest,
                rated.rating_2PR[:, [row_of[source + pair.pair_id] for pair in pairs]],
            )
            for source, pairs in sources.items()
        }

    folder.mkdir(parents=True, exist_ok=True)
    options = part_of(config, RatingConfig)
    reframed = _reframed_file(folder, rules)
    rule_files = {UNCHANGED: config.rules, "reframed": reframed, "paraphrased": config.paraphrases}
    changed = dict(forms)
    unchanged = {UNCHANGED: changed.pop(UNCHANGED)}
    rated_forms = {
        name: rate("unchanged", unchanged, part_of(config, RatingConfig, rules=str(file)))[
            UNCHANGED
        ]
        for name, file in rule_files.items()
        if file is not None
    }
    return rated_forms | rate("changed", changed, options)


def _reframed_file(folder: Path, rules: RuleSet) -> Path:
    """Write the rules with their rating texts in another frame; return the path."""
    path = folder / f"reframed-{rules.digest[:16]}.toml"
    texts = [  # the statement for a decision model is made of the rating text
        dataclasses.asdict(rule)
        | {"rating_rule": fixed.REFRAMED.format(rule=rule.rating_rule), "decision_rule": ""}
        for rule in rules.rules
    ]
    write_pool(path, [PoolRule(**text) for text in texts])
    return path


def _sentence(rules: Sequence[RuleProbe]) -> str:
    """Return the result of a probe as a sentence."""
    bought = [rule.rule_id for rule in rules if rule.is_bought]
    unknown = [rule.rule_id for rule in rules if rule.is_bought is None]
    sentence = (
        f"a planted sentence buys the score of {len(bought)} of {len(rules)} rules"
        f"{': ' * bool(bought)}{', '.join(bought)} (the lower bound of its rise beyond a neutral "
        f"sentence is above {MARGIN:g})"
    )
    if unknown:
        sentence += (
            f"; unknown for {', '.join(unknown)}: fewer than {MIN_PAIRS} prompts with ratings, or "
            "ratings too near 1 to rise by so much"
        )
    return sentence
