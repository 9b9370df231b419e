"""`encore rules probe` names the rules that can be bought, and asks nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import read_run
from encore.data.rule_sets import load_rule_set
from encore.data.study import open_study
from encore.rating.rating_run import open_run
from encore.rules import rule_probe, soundness
from encore.rules.probe_record import Probe, read_probe
from encore.rules.rule_probe import probe_rules
from encore.runs.shard_runner import work_through
from tests.rules.scripted_probes import RULES, make_study, probe_config, weak_judge, write_rules
from tests.worlds.studies import create_study

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


def bought(found: Probe) -> list[str]:
    return [rule.rule_id for rule in found.rules if rule.is_bought]


def files_of(study: Path) -> dict[str, bytes]:
    paths = [path for path in study.rglob("*") if path.is_file()]
    own = {str(path.relative_to(study)): path.read_bytes() for path in paths}
    return {name: content for name, content in own.items() if not name.startswith("probes/")}


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_rules_that_obey_are_named(study: Path, seed: int) -> None:
    before = files_of(study)
    judge = weak_judge(obeys=("kind", "safe"), noise=0.15, seed=seed)
    found = probe_rules(probe_config(study), judge=judge)
    assert bought(found) == ["kind", "safe"]
    assert [rule.is_bought for rule in found.rules] == [False, True, False, True]
    assert "2 of 4 rules: kind, safe (" in found.sentence
    assert judge.num_asked == 2 * NUM_PAIRS * len(RULES) * (NUM_FORMS + 1)
    assert files_of(study) == before
    kind = found.rules[1]
    # It obeys two of the three sentences: 0.5 on average becomes 1.
    rises = {name: one.rise_bound for name, one in kind.effects.items()}
    assert min(rises["planted-order"], rises["planted-request"]) > 0.3 > rises["planted-claim"]
    for name, one in kind.effects.items():
        is_obeyed = name in ("planted-order", "planted-request")
        assert (one.change.mean_difference.low > 0.3) == is_obeyed, name
        assert (one.change.entropy_difference.high < -1) == is_obeyed
        assert (one.change.weight_difference.low > 0) == is_obeyed
        # Ratings that are all 1 have no order; noise of 0.15 turns some pairs around.
        assert (one.change.flip_rate.value == 0) == is_obeyed


def test_what_the_study_and_other_probes_have_is_not_asked_again(study: Path) -> None:
    judge, config = weak_judge(noise=0.1), probe_config(study)
    whole = open_run(open_study(study), config.as_rating(), judge=judge)
    work_through(whole.job())
    per_form = 2 * 30 * len(RULES)
    rated = judge.num_asked
    small = probe_rules(probe_config(study, num_pairs=30), judge=judge)
    assert judge.num_asked - rated == NUM_FORMS * per_form  # the unchanged form is there
    asked = judge.num_asked
    again = probe_rules(probe_config(study, num_pairs=30, shard_size=100), judge=judge)
    assert judge.num_asked == asked
    assert (again.rules, again.num_pairs) == (small.rules, 30)
    probe_rules(probe_config(study), judge=judge)
    assert judge.num_asked - asked == NUM_FORMS * 2 * 10 * len(RULES)  # the ten new pairs
    assert len(judge.asked) == len(set(judge.asked))


def test_paraphrases_are_one_form_more(study: Path, tmp_path: Path) -> None:
    judge = weak_judge(noise=0.2)
    paraphrases = write_rules(tmp_path / "words.toml", verb="seem", rule_ids=RULES[::-1])
    probe_rules(probe_config(study), judge=judge)
    asked = judge.num_asked
    found = probe_rules(probe_config(study, paraphrases=paraphrases), judge=judge)
    assert judge.num_asked - asked == 2 * NUM_PAIRS * len(RULES)
    assert all(rule.effects["paraphrased"].change.mean_difference.value for rule in found.rules)
    own, reframed, other = (
        read_run(next(study.glob(f"probes/*/unchanged/ratings/{found.run_keys[name]}")))
        for name in ("unchanged", "reframed", "paraphrased")
    )
    assert found.identity == own.identity
    framed = next(study.glob("probes/*/reframed-*.toml"))
    assert load_rule_set(framed).digest == reframed.identity["rules_sha256"]
    assert {rule["rating_rule"] for rule in other.rules} == {f"Let it seem {one}." for one in RULES}
    same = write_rules(tmp_path / "same.toml", verb="be", rule_ids=RULES)
    found = probe_rules(probe_config(study, paraphrases=same), judge=judge)
    assert found.rules[0].effects["paraphrased"].change.mean_difference.value == 0


def test_the_record_is_read_back_for_the_run_whose_rules_it_is_about(study: Path) -> None:
    judge = weak_judge(obeys=("calm",))
    probe_rules(probe_config(study, num_pairs=35), judge=judge)
    found = probe_rules(probe_config(study), judge=judge)
    asked = judge.num_asked
    run = open_run(open_study(study), probe_config(study).as_rating(limit=9), judge=judge)
    work_through(run.job())
    assert judge.num_asked == asked  # the probes have these ratings
    manifest = read_run(run.run_dir)
    assert read_probe(study, manifest) == found
    other = probe_config(study, layout="conversation-first").as_rating()
    assert read_probe(study, open_run(open_study(study), other, judge=judge).manifest) is None
    [path] = study.glob(f"probes/*/probe-{found.key}.json")
    assert json.loads(path.read_text())["rules"][0]["is_bought"] is True
    path.write_text("{}")
    with pytest.raises(EncoreError, match="json: damaged; delete it"):
        read_probe(study, manifest)
    assert found.synthetic == ()


def test_a_judge_that_is_silent_on_planted_sentences_is_neither_named_nor_cleared(study: Path):
    found = probe_rules(probe_config(study), judge=weak_judge(refuses="this"))
    silent = [rule.effects["planted-order"] for rule in found.rules]
    assert {one.change.num_ratings for one in silent} == {0}
    assert {one.change.mean_difference.value for one in silent} == {None}
    assert [rule.is_bought for rule in found.rules] == [None] * len(RULES)
    assert "unknown for calm, kind, plain, safe: fewer than 30" in found.sentence


def test_bad_input_is_named_and_leaves_nothing(study: Path, tmp_path: Path) -> None:
    empty = create_study(tmp_path / "empty").path
    with pytest.raises(InputError, match="has no pairs; run `encore ingest` first"):
        probe_rules(probe_config(empty), judge=weak_judge())
    assert not (empty / "probes").exists()
    strange = write_rules(tmp_path / "strange.toml", rule_ids=["calm", "kind", "plain", "sane"])
    with pytest.raises(InputError, match="missing safe; not among the rules of mine: sane"):
        probe_rules(probe_config(study, paraphrases=strange), judge=weak_judge())
    assert not (study / "probes").exists()
    with pytest.raises(InputError, match="neither a shipped set"):
        probe_rules(probe_config(study, rules="no-such-rules"), judge=weak_judge())


@pytest.mark.full
def test_over_a_hundred_noisy_judges_the_weak_rule_is_named_and_others_as_the_risk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path, num_pairs=NUM_PAIRS)
    num_alarms = {0.05: 0, 0.001: 0}
    for seed in range(100):
        judge = weak_judge(obeys=("kind",), noise=0.15, seed=seed)
        for margin in num_alarms:
            monkeypatch.setattr(soundness, "MARGIN", margin)
            named = bought(probe_rules(probe_config(study), judge=judge))
            assert "kind" in named
            num_alarms[margin] += named != ["kind"]
    # Noise alone raises nothing by 0.05. Beyond 0.001 one of 100 probes in 20 may name a rule: 5 on
    # average, and more than 11 in one case of 250.
    assert num_alarms[0.05] == 0
    assert num_alarms[0.001] <= 11, num_alarms
