"""`encore rules probe` names the rules that can be bought, and asks nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.core.config import part_of
from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import read_run
from encore.data.rule_sets import load_rule_set
from encore.data.study import open_study
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run
from encore.rules import probe_effects, rule_probe
from encore.rules.probe_record import read_probe
from encore.runs.worker import work_through
from tests.rules.scripted_probes import RULES, make_study, probe, probe_config, weak_judge
from tests.worlds.studies import create_study, file_digests, write_rules

pytestmark = pytest.mark.services

NUM_PAIRS = 40
#: Reframed, padded, longer, bulleted, headed, three planted sentences.
NUM_FORMS = 8


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path, num_pairs=NUM_PAIRS)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals cost most of a probe's time, and their width is tested elsewhere."""
    monkeypatch.setattr(rule_probe, "NUM_DRAWS", 40)


def files_without_probes(study: Path) -> dict[str, str]:
    digests = file_digests(study)
    return {name: digests[name] for name in digests if not name.startswith("probes/")}


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_rules_that_obey_are_named(study, seed):
    before = files_without_probes(study)
    judge = weak_judge(obeys=("kind", "safe"), noise=0.15, seed=seed)
    record = probe(study, judge)
    assert [rule.is_bought for rule in record.rules] == [False, True, False, True]
    assert "2 of 4 rules: kind, safe (" in record.sentence
    assert judge.num_asked == 2 * NUM_PAIRS * len(RULES) * (NUM_FORMS + 1)
    assert files_without_probes(study) == before
    # It obeys two of the three sentences: 0.5 on average becomes 1.
    effects = record.rules[1].effects
    bounds = {name: effect.rise_bound for name, effect in effects.items()}
    assert min(bounds["planted-order"], bounds["planted-request"]) > 0.3 > bounds["planted-claim"]
    for name, effect in effects.items():
        is_obeyed = name in ("planted-order", "planted-request")
        assert (effect.change.mean_difference.low > 0.3) == is_obeyed, name
        assert (effect.change.entropy_difference.high < -1) == is_obeyed
        assert (effect.change.weight_difference.low > 0) == is_obeyed
        # Ratings that are all 1 have no order; noise of 0.15 changes the order of some pairs.
        assert (effect.change.flip_rate.value == 0) == is_obeyed


def test_what_the_study_and_other_probes_have_is_not_asked_again(study):
    judge = weak_judge(noise=0.1)
    run = open_run(open_study(study), part_of(probe_config(study), RatingConfig), judge=judge)
    work_through(run.job())
    num_rated = judge.num_asked
    small = probe(study, judge, num_pairs=30)
    # The study has the ratings of the unchanged form.
    assert judge.num_asked - num_rated == NUM_FORMS * 2 * 30 * len(RULES)
    num_asked = judge.num_asked
    again = probe(study, judge, num_pairs=30, shard_size=100)
    assert judge.num_asked == num_asked
    assert (again.rules, again.num_pairs) == (small.rules, 30)
    probe(study, judge)
    assert judge.num_asked - num_asked == NUM_FORMS * 2 * 10 * len(RULES)  # the ten new pairs
    assert len(judge.asked) == len(set(judge.asked))


def test_paraphrases_are_rated_as_one_more_form(study, tmp_path):
    judge = weak_judge(noise=0.2)
    paraphrases = write_rules(tmp_path / "words.toml", RULES[::-1], rating_rule="Let it seem {}.")
    probe(study, judge)
    num_asked = judge.num_asked
    record = probe(study, judge, paraphrases=paraphrases)
    assert judge.num_asked - num_asked == 2 * NUM_PAIRS * len(RULES)
    assert all(rule.effects["paraphrased"].change.mean_difference.value for rule in record.rules)
    unchanged, reframed, paraphrased = (
        read_run(next(study.glob(f"probes/*/unchanged/ratings/{record.run_keys[name]}")))
        for name in ("unchanged", "reframed", "paraphrased")
    )
    assert record.identity == unchanged.identity
    framed = next(study.glob("probes/*/reframed-*.toml"))
    assert load_rule_set(framed).digest == reframed.identity["rules_sha256"]
    texts = {rule["rating_rule"] for rule in paraphrased.rules}
    assert texts == {f"Let it seem {rule_id}." for rule_id in RULES}
    record = probe(study, judge, paraphrases=study.parent / "rules.toml")
    assert record.rules[0].effects["paraphrased"].change.mean_difference.value == 0


def test_the_record_is_read_back_for_a_run_with_its_rules_and_judge(study):
    judge = weak_judge(obeys=("calm",))
    probe(study, judge, num_pairs=35)
    record = probe(study, judge)
    num_asked = judge.num_asked
    run = open_run(
        open_study(study), part_of(probe_config(study), RatingConfig, limit=9), judge=judge
    )
    work_through(run.job())
    assert judge.num_asked == num_asked  # the probes have these ratings
    manifest = read_run(run.run_dir)
    assert read_probe(study, manifest) == record
    another_layout = part_of(probe_config(study), RatingConfig, layout="conversation-first")
    other_run = open_run(open_study(study), another_layout, judge=judge)
    assert read_probe(study, other_run.manifest) is None
    [path] = study.glob(f"probes/*/probe-{record.key}.json")
    assert json.loads(path.read_text())["rules"][0]["is_bought"] is True
    path.write_text("{}")
    with pytest.raises(EncoreError, match="json: damaged; delete it"):
        read_probe(study, manifest)
    assert record.synthetic == ()


def test_a_judge_that_refuses_planted_sentences_is_neither_named_nor_cleared(study):
    record = probe(study, weak_judge(refuses="this"))
    changes = [rule.effects["planted-order"].change for rule in record.rules]
    assert {(change.num_ratings, change.mean_difference.value) for change in changes} == {(0, None)}
    assert [rule.is_bought for rule in record.rules] == [None] * len(RULES)
    assert "unknown for calm, kind, plain, safe: fewer than 30" in record.sentence


def test_bad_input_is_named_and_leaves_nothing(study, tmp_path):
    empty = create_study(tmp_path / "empty").path
    with pytest.raises(InputError, match="has no pairs; run `encore ingest` first"):
        probe(empty, weak_judge())
    assert not (empty / "probes").exists()
    strange = write_rules(tmp_path / "strange.toml", ["calm", "kind", "plain", "sane"])
    with pytest.raises(InputError, match="missing safe; not among the rules of mine: sane"):
        probe(study, weak_judge(), paraphrases=strange)
    with pytest.raises(InputError, match="neither a shipped set"):
        probe(study, weak_judge(), rules="no-such-rules")
    assert not (study / "probes").exists()


@pytest.mark.full
def test_over_a_hundred_noisy_judges_the_weak_rule_is_named_and_others_as_the_risk_says(
    study, monkeypatch
):
    num_alarms = {0.05: 0, 0.001: 0}
    for seed in range(100):
        judge = weak_judge(obeys=("kind",), noise=0.15, seed=seed)
        for margin in num_alarms:
            monkeypatch.setattr(probe_effects, "MARGIN", margin)
            rules = probe(study, judge).rules
            named = [rule.rule_id for rule in rules if rule.is_bought]
            assert "kind" in named
            num_alarms[margin] += named != ["kind"]
    # Noise alone raises nothing by 0.05. Beyond 0.001 one of 100 probes in 20 may name a rule: 5 on
    # average, and more than 11 in one case of 250.
    assert num_alarms[0.05] == 0
    assert num_alarms[0.001] <= 11, num_alarms
