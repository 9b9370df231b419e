"""All rules in one call against one rule a call: planted effects are found, with intervals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from encore.analysis.all_rules_check import check_all_rules
from encore.analysis.list_position import position_effects
from encore.core.errors import InputError
from encore.data.rule_order import rule_order
from encore.data.study import Study, open_study
from encore.judges.judge_options import JudgeConfig
from encore.rating import rating_run
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.worker import work_through
from encore.warehouse import open_ratings, read_pairs_of
from tests.golden.command_line import encore
from tests.worlds.all_rules import PlantedJudge
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = pytest.mark.services

NUM_PAIRS, NUM_CHECKED = 300, 100


def planted_judge(per_position: int) -> ScriptedJudge:
    return ScriptedJudge(script=PlantedJudge(per_position=per_position), reads_texts=True)


def rated_study(path: Path, per_position: int) -> Study:
    """Rate pairs with all rules in a call, and the first of them with one rule a call."""
    study = open_study(study_of(numbered_pairs(NUM_PAIRS), path))
    judge = JudgeConfig(model="scripted")
    for options in ({"layout": "all-rules"}, {"layout": "paper", "limit": NUM_CHECKED}):
        config = RatingConfig(judge=judge, **options)
        work_through(open_run(study, config, judge=planted_judge(per_position)).job())
    return study


def test_a_planted_effect_of_the_position_is_found_with_its_interval(tmp_path):
    # Two hundredths for each of nine steps from the first position to the last.
    planted = -0.18
    study = rated_study(tmp_path / "study", per_position=2)
    check = check_all_rules(open_ratings(study))
    *rules, of_all = check.positions
    effect = of_all.last_minus_first
    assert of_all.num_ratings == NUM_PAIRS * 20
    assert effect.low < planted < effect.high < 0
    # A score is uniform over 30 hundredths wherever its rule stands: standard deviation 0.0866.
    # Positions 0 to 9, divided by 9, have 0.319. 1.96 x 0.0866 / 0.319 / sqrt(6000) is 0.0069.
    assert (effect.high - effect.low) / 2 == pytest.approx(0.0069, rel=0.15)
    # Of ten intervals of 95 %, at most two miss with a probability of 99 %.
    intervals = [rule.last_minus_first for rule in rules]
    assert sum(interval.low < planted < interval.high for interval in intervals) >= 8
    assert all(interval.high < 0 for interval in intervals)
    # Against one rule a call, a rule loses half of that: it stands in the middle on average.
    assert check.comparison is not None
    assert check.comparison.num_pairs == NUM_CHECKED
    differences = [row.mean_difference for row in check.comparison.rules]
    assert sum(row.low < planted / 2 < row.high for row in differences) >= 8
    # Scores that lose 0 to 18 hundredths have more levels than those that lose none.
    assert all(row.entropy_difference.low > 0 for row in check.comparison.rules)


def test_where_the_position_has_no_effect_none_is_found(tmp_path):
    check = check_all_rules(open_ratings(rated_study(tmp_path / "study", per_position=0)))
    of_all = check.positions[-1].last_minus_first
    assert of_all.low < 0 < of_all.high
    assert check.comparison is not None
    for row in check.comparison.rules:
        assert row.agreement.value == 1
        assert row.mean_difference.value == row.weight_difference.value == 0


def test_of_two_rules_the_effect_is_the_difference_of_two_means(tmp_path):
    # Two positions, so the line of least squares goes through the means of both. One score in five
    # is missing.
    text = '[[rules]]\ntitle = "{0}"\ndescription = "{0}"\npreference_rule = "{0}"\n'
    text += 'rating_rule = "Is {0}."\n'
    rules = tmp_path / "rules.toml"
    rules.write_text('name = "two"\n' + "".join(map(text.format, ("kind", "brief"))))
    rng = np.random.default_rng(0)

    def script(_prompt: str) -> str:
        scores = {key: round(float(rng.random()), 2) for key in "12" if rng.random() < 0.8}
        return json.dumps(scores)

    study = open_study(study_of(numbered_pairs(40), tmp_path / "study"))
    config = RatingConfig(
        judge=JudgeConfig(model="x"), rules=str(rules), layout="all-rules", order_seed=5
    )
    work_through(open_run(study, config, judge=ScriptedJudge(script=script)).job())
    ratings = open_ratings(study)
    pairs, numerator, denominator = read_pairs_of(ratings), 0.0, 0.0
    *effects, of_all = position_effects(ratings)
    for effect in effects:
        by_position: tuple[list[float], list[float]] = ([], [])
        for response, rating_PR in (("chosen", pairs.chosen_PR), ("rejected", pairs.rejected_PR)):
            for pair_id, rating in zip(
                pairs.pair_id_P, rating_PR[:, pairs.rule_ids.index(effect.rule_id)], strict=True
            ):
                order = rule_order(("kind", "brief"), pair_id=pair_id, response=response, seed=5)
                if not np.isnan(rating):
                    by_position[order.index(effect.rule_id)].append(rating)
        num_first, num_last = map(len, by_position)
        difference = float(np.mean(by_position[1]) - np.mean(by_position[0]))
        assert effect.num_ratings == num_first + num_last < 80
        assert effect.last_minus_first.value == pytest.approx(difference)
        weight = num_first * num_last / (num_first + num_last)
        numerator, denominator = numerator + weight * difference, denominator + weight
    assert of_all.last_minus_first.value == pytest.approx(numerator / denominator)


def test_rate_with_check_makes_two_runs_and_analyze_compares_them(tmp_path, monkeypatch):
    judge = planted_judge(2)
    monkeypatch.setattr(rating_run, "open_judge", lambda *_: judge)
    study = study_of(numbered_pairs(20), tmp_path / "study")
    options = (study, "--judge", "scripted", "--layout", "all-rules")
    finished = encore("rate", *options, "--check", 15, "--json")
    assert finished.code == 0, finished.err
    # 20 pairs in one call a response; the 15 responses of the check are those of 8 pairs.
    assert finished.json["plan"]["num_calls"]["actual"] == 40
    assert finished.json["check"]["plan"]["num_calls"]["actual"] == 8 * 20
    assert judge.num_asked == 40 + 160
    assert finished.json["check"]["num_ratings"] == 160
    assert f"one rule a call, run {finished.json['check']['run_key'][:8]}:" in finished.err
    again = encore("rate", *options, "--check", 15, "--json")
    assert (again.json["reused"], again.json["check"]["reused"]) == (1, 1)
    assert judge.num_asked == 200
    analysis = encore("analyze", study, "--json")
    check = analysis.json["all_rules"]
    assert check["run_key"] == finished.json["check"]["run_key"]
    assert check["comparison"]["num_pairs"] == 8
    assert [row["rule_id"] for row in check["positions"]][-1] is None
    text = encore("analyze", study).out
    assert "All rules at once minus one rule a call" in text
    assert "All rules, last minus first: −0.1" in text
    one_rule = encore("analyze", study, "--run", check["run_key"], "--json").json
    assert "all_rules" not in one_rule
    with pytest.raises(InputError, match="not of a run with --layout all-rules"):
        check_all_rules(open_ratings(study, run=check["run_key"]))


def test_without_a_run_of_one_rule_a_call_analyze_says_how_to_make_it(tmp_path):
    study = open_study(study_of(numbered_pairs(5), tmp_path / "study"))
    config = RatingConfig(judge=JudgeConfig(model="scripted"), layout="all-rules")
    work_through(open_run(study, config, judge=planted_judge(0)).job())
    check = check_all_rules(open_ratings(study))
    assert check.comparison is None
    assert "--check 200" in encore("analyze", study.path).out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "belongs to --layout all-rules"),
        (("--layout", "all-rules", "--budget-calls", 9), "--budget-calls.*--limit 100"),
        (("--layout", "all-rules", "--shard", 0), "--check with --shard"),
        (("--layout", "all-rules", "--batch-file", "x.jsonl"), "--batch-file"),
    ],
)
def test_a_check_that_an_option_would_not_bind_is_refused(tmp_path, options, message):
    study = study_of(numbered_pairs(2), tmp_path / "study")
    finished = encore("rate", study, "--judge", "scripted", "--check", 200, *options)
    assert finished.code == 2
    assert re.search(message, " ".join(finished.err.split()))
