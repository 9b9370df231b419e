"""Every rule is judged by its own text; rules vote; weights change the vote and no verdict."""

from __future__ import annotations

import pytest

from encore.benchmarks.judging.by_rule import judge_by_rule, read_judged_by_rule
from encore.benchmarks.judging.pairwise import judge_pairs, read_judged_pairs
from encore.data.rules import load_rule_set
from encore.errors import InputError
from tests.benchmarks.judging.scripted import index_in, judge_saying, make_benchmark, verdict_of

RULES = load_rule_set("encore-10")
IDS = RULES.rule_ids
#: Pair 0: seven rules are right, three wrong. Pair 1: four right, six wrong. Pair 2: five right,
#: four wrong, one follows the place.
OPINIONS = (
    ["right"] * 7 + ["wrong"] * 3,
    ["right"] * 4 + ["wrong"] * 6,
    ["right"] * 5 + ["wrong"] * 4 + ["A"],
)


def say(prompt: str) -> str:
    place = next(
        index for index, rule in enumerate(RULES.rules) if f"Rule: {rule.preference_rule}" in prompt
    )
    return verdict_of(OPINIONS[index_in(prompt)][place], prompt)


@pytest.fixture
def judge():
    return judge_saying(say)


def test_without_weights_the_majority_of_the_rules_decides(tmp_path, judge):
    result = judge_by_rule(make_benchmark(3), judge=judge, rules=RULES, out=tmp_path)
    assert result.credit_P.tolist() == [1, 0, 1]
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.rule_ids == IDS
    assert judge.num_asked == 3 * 2 * 10


def test_each_rule_has_figures_of_its_own(tmp_path, judge):
    result = judge_by_rule(make_benchmark(3), judge=judge, rules=RULES, out=tmp_path)
    # Rule 0 is right three times; rule 4 on pairs 0 and 2; rule 9 is wrong twice, then follows A.
    assert [result.rules[place].accuracy for place in (0, 4, 9)] == pytest.approx([1, 2 / 3, 1 / 6])
    assert result.rules[9].consistency == pytest.approx(2 / 3)
    assert result.rules[9].share_first == pytest.approx(4 / 6)


def test_weights_decide_a_vote_against_the_majority_and_ask_nothing(tmp_path, judge):
    pairs = make_benchmark(3)
    result = judge_by_rule(pairs, judge=judge, rules=RULES, out=tmp_path)
    # The last three rules, wrong about pairs 0 and 1, outweigh the seven others; on pair 2 rules 7
    # and 8 are wrong and rule 9 abstains.
    weights = dict.fromkeys(IDS[:7], 0.01) | dict.fromkeys(IDS[7:], 0.31)
    assert result.revote(weights).credit_P.tolist() == [0, 0, 0]
    single = dict.fromkeys(IDS, 0.0) | {IDS[9]: 1.0}
    assert result.revote(single).credit_P.tolist() == [0, 0, 0.5]
    again = judge_by_rule(pairs, judge=judge, rules=RULES, out=tmp_path, weights=weights)
    assert again.credit_P.tolist() == [0, 0, 0]
    assert again.weights == pytest.approx(weights)
    assert result.revote(None).credit_P.tolist() == [1, 0, 1]
    read = read_judged_by_rule(result.folder, pairs=pairs, weights=weights)
    assert read.credit_P.tolist() == [0, 0, 0]
    assert judge.num_asked == 60


def test_the_order_in_which_weights_are_given_does_not_matter(tmp_path, judge):
    result = judge_by_rule(make_benchmark(3), judge=judge, rules=RULES, out=tmp_path)
    weights = {rule_id: 1.0 + place for place, rule_id in enumerate(IDS)}
    turned = dict(reversed(weights.items()))
    assert result.revote(turned).credit_P.tolist() == result.revote(weights).credit_P.tolist()


def test_rules_that_follow_the_place_are_named(tmp_path):
    judge = judge_saying(lambda _: "[[B]]")
    result = judge_by_rule(make_benchmark(3), judge=judge, rules=RULES, out=tmp_path)
    assert result.accuracy == 0.5
    assert len(result.notes) == 10
    assert f"always answers B under {IDS[0]}:" in result.notes[0]


def test_missing_verdicts_abstain_and_are_counted_once(tmp_path):
    judge = judge_saying(lambda prompt: "?" if index_in(prompt) == 0 else "[[A]]")
    result = judge_by_rule(make_benchmark(2), judge=judge, rules=RULES, out=tmp_path)
    assert result.num_unparsed == 20
    assert result.null_reasons == {"no_verdict": 20}
    assert "20 of 40 verdicts are missing: neither" in result.notes[0]
    assert result.credit_P.tolist() == [0.5, 0.5]
    # Pair 0 has no verdict, so its vote goes where they are put; pair 1 contradicts itself.
    assert result.bounds == (0.25, 0.75)
    assert "would be 25.0% or 75.0%" in result.notes[1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"kindness": 1.0}, "weights of 1 rules for a judge asked about 10"),
        (dict.fromkeys(IDS, 0.0), "all are 0"),
        (dict.fromkeys(IDS, 0.1) | {IDS[0]: -1.0}, rf"weight -1.0 of rule {IDS[0]}"),
        (dict.fromkeys(IDS, 0.1) | {IDS[0]: float("nan")}, "weight nan"),
    ],
)
def test_bad_weights_are_refused_before_the_judge_is_asked(tmp_path, judge, weights, message):
    with pytest.raises(InputError, match=message):
        judge_by_rule(make_benchmark(1), judge=judge, rules=RULES, out=tmp_path, weights=weights)
    assert judge.num_asked == 0


def test_a_judging_by_rule_is_not_read_as_one_of_pairs_and_the_other_way_round(tmp_path, judge):
    pairs = make_benchmark(2)
    by_rule = judge_by_rule(pairs, judge=judge, rules=RULES, out=tmp_path)
    overall = judge_saying(lambda prompt: verdict_of("right", prompt))
    by_pair = judge_pairs(pairs, judge=overall, out=tmp_path, protocol="verdict-only")
    with pytest.raises(InputError, match="by 10 rules"):
        read_judged_pairs(by_rule.folder, pairs=pairs)
    with pytest.raises(InputError, match="not by rule"):
        read_judged_by_rule(by_pair.folder, pairs=pairs)


def test_an_interruption_between_shards_asks_for_the_rest_alone(tmp_path, judge):
    """Every shard is one pair: 2 orders times 10 rules."""

    def stop(prompt: str) -> str:
        if index_in(prompt) == 1:
            raise KeyboardInterrupt
        return say(prompt)

    pairs = make_benchmark(3)
    with pytest.raises(KeyboardInterrupt):
        judge_by_rule(pairs, judge=judge_saying(stop), rules=RULES, out=tmp_path, shard_size=1)
    result = judge_by_rule(pairs, judge=judge, rules=RULES, out=tmp_path, shard_size=1)
    assert judge.calls == [20, 20]  # pairs 1 and 2
    assert result.credit_P.tolist() == [1, 0, 1]


def test_all_verdicts_together_say_how_consistent_the_judge_is(tmp_path, judge):
    """Three pairs under ten rules; one verdict of the thirty, rule 9 on pair 2, follows A."""
    result = judge_by_rule(make_benchmark(3), judge=judge, rules=RULES, out=tmp_path)
    assert result.reliability == (
        "judge scripted: 60 verdicts in 60 replies; both orders agree on 96.7% of 30 pairs under "
        "10 rules (a coin: 50%); 51.7% of the verdicts name the answer shown first"
    )  # 29 of 30; A once in each of these and twice in the other: 31 of 60
