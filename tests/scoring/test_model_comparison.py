"""Two reward models by what a judge says under each rule, on the same pairs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.analysis.bootstrap import TAIL
from encore.analysis.paired_difference import mean_difference_interval
from encore.core.errors import InputError
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.scoring.head_scores import HeadScores
from encore.scoring.model_comparison import PEOPLE, compare_scores
from encore.warehouse import PairRatings
from tests.golden.command_line import encore
from tests.worlds.ratings import rated_pairs, table_of_pairs
from tests.worlds.scorings import head_scores, make_model, score
from tests.worlds.studies import rules_of, write_rating_run

#: Under "kind" the judge prefers the chosen response of pairs 0 to 3 and the other one of 4 to 7,
#: under "short" that of 0, and it ties the others. Pair 9 has no rating.
KIND = np.array([1.0] * 4 + [0.0] * 4 + [0.5, np.nan])
SHORT = np.array([1.0] + [0.5] * 9)


def judged_pairs(num_pairs: int = 10) -> PairRatings:
    """Return the first of the ten pairs with the judge's ratings."""
    chosen_PR = np.stack([KIND, SHORT], axis=1)[:num_pairs]
    return rated_pairs(chosen_PR, np.full_like(chosen_PR, 0.5), rule_ids=["kind", "short"])


def scores_of(margin_PR: list[list[float]], *head_ids: str) -> HeadScores:
    """Return scores with these margins, chosen minus rejected, of pairs in reverse order."""
    ratings = judged_pairs(len(margin_PR))
    chosen_PR = np.array(margin_PR)[::-1]
    return head_scores(
        np.stack([chosen_PR, np.zeros_like(chosen_PR)], axis=1),
        head_ids=head_ids,
        pair_ids=ratings.pair_id_P[::-1].tolist(),
        sources=ratings.source_P[::-1].tolist(),
    )


def test_a_model_is_right_where_it_prefers_what_the_judge_prefers():
    """The first model always prefers the chosen response: right on 4 of 8 under "kind".

    The second one is right on 0 to 2 and 4 to 6, ties 3 and is wrong on 7: 6.5 of 8.
    """
    first = scores_of([[1.0]] * 10, "reward")
    second = scores_of([[1.0]] * 3 + [[0.0]] + [[-1.0]] * 3 + [[1.0]] * 3, "reward")
    people, kind, short = compare_scores(judged_pairs(), [first, second])
    assert (people.rule_id, people.first, people.second) == (PEOPLE, 1.0, 0.65)
    assert (kind.num_pairs, kind.first, kind.second) == (8, 4 / 8, 6.5 / 8)
    assert (kind.num_first_pairs, kind.num_second_pairs) == (1, 3)
    delta_P = np.array([0, 0, 0, -0.5, 1, 1, 1, 0])
    assert kind.difference == mean_difference_interval(delta_P, tail=TAIL / 3)
    assert (short.num_pairs, short.first, short.second) == (1, 1.0, 1.0)


def test_a_model_with_heads_is_asked_by_the_head_of_the_rule():
    heads = scores_of([[1.0, -1.0]] * 10, "kind", "short")
    single = scores_of([[1.0]] * 10, "reward")
    kind, short = compare_scores(judged_pairs(), [heads, single])
    assert (kind.first, kind.second, short.first, short.second) == (0.5, 0.5, 0.0, 1.0)
    with pytest.raises(InputError, match="rule 'short': a model has 2 heads and none for it"):
        compare_scores(judged_pairs(), [scores_of([[1.0, 1.0]] * 10, "kind", "other"), single])


def test_pairs_that_a_model_lacks_or_cannot_read_are_left_out():
    first = scores_of([[1.0]] * 3, "reward")
    second = scores_of([[np.nan]] + [[1.0]] * 9, "reward")
    assert compare_scores(judged_pairs(), [first, second])[1].num_pairs == 2
    foreign = head_scores([[[1.0], [0.0]]], head_ids=["a"], pair_ids=["x"], sources=["y"])
    with pytest.raises(InputError, match="no pair in common"):
        compare_scores(judged_pairs(), [first, foreign])


def test_the_command_names_two_scorings_of_a_study(study, tmp_path):
    pairs = sorted((pair.source, pair.pair_id) for pair in iter_pairs(open_study(study)))
    sources, pair_ids = zip(*pairs, strict=True)
    ratings = rated_pairs(np.ones((len(pairs), 1)), np.zeros((len(pairs), 1)), rule_ids=["kind"])
    ratings = dataclasses.replace(
        ratings, source_P=np.array(sources, object), pair_id_P=np.array(pair_ids, object)
    )
    write_rating_run(study, table_of_pairs(ratings), rules=rules_of(["kind"]))
    models = [make_model(tmp_path / f"m{seed}", head_ids=["kind"], seed=seed) for seed in (0, 1)]
    keys = [score(study, model).out.name for model in models]
    result = encore("compare", study, "--scores", keys[0], "--scores", keys[1][:6], "--json").json
    people, kind = result["rows"]
    # The judge prefers the response that people prefer, everywhere.
    assert people == kind | {"rule_id": PEOPLE}
    assert kind["num_pairs"] == len(pairs)
    assert kind["difference"]["value"] == pytest.approx(kind["second"] - kind["first"])
    printed = encore("compare", study, "--scores", keys[0], "--scores", keys[1]).out
    assert result["sentence"].split(" (")[0] in printed
    for problem, arguments in {
        "0 match; the study has": ("--scores", "none", "--scores", keys[1]),
        "1 scorings; expected the keys of two": ("--scores", keys[0]),
    }.items():
        refused = encore("compare", study, *arguments)
        assert (refused.code, problem in refused.error) == (1, True)
