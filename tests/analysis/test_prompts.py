"""Pairs of one prompt belong together: false verdicts, coverage of intervals, and what is said."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from encore.analysis.analyze import analyze
from encore.analysis.answer_options import AnswerOptions
from encore.analysis.rule_verdicts import RuleAnswer, rule_answer
from encore.analysis.share_intervals import (
    degrees_of_freedom,
    exact_interval,
    half_credit_interval,
    jackknife_variance,
    mean_credit_interval,
    share_interval,
)
from encore.analysis.statistics import SourceStatistics, rating_statistics
from encore.core.errors import InputError
from encore.warehouse import PairRatings, open_ratings, open_warehouse
from tests.worlds.prompts import (
    DESIGNS,
    meaningless_pairs,
    meaningless_ratings,
    ranked_pairs,
    table_with_prompts,
)
from tests.worlds.ratings import rated_pairs, statistics_of_margins, table_of_pairs

pytestmark = pytest.mark.services

# Suffixes: G prompts, P pairs, R rules.

FULL = pytest.mark.full


def few_or_all_tie_rates(num_studies: int, num_full: int) -> list[Any]:
    """Return numbers of studies with shares of ties: one share of few, and all three in full."""
    full = [pytest.param(num_full, rate, marks=FULL) for rate in (0, 0.5, 0.9)]
    return [(num_studies, 0.5), *full]


def statistics_of(pairs: PairRatings) -> SourceStatistics:
    """Return the counts that verdicts need, without a query."""
    statistics = statistics_of_margins(pairs.margin_PR)
    num_prompts = len(np.unique(pairs.group_P))
    return dataclasses.replace(
        statistics,
        counts=statistics.counts.by_prompt(pairs),
        num_prompts=num_prompts,
        pairs=pairs if num_prompts < pairs.num_pairs else None,
    )


def answer_of(pairs: PairRatings) -> RuleAnswer:
    numbers = {rule_id: number for number, rule_id in enumerate(pairs.rule_ids, start=1)}
    return rule_answer(statistics_of(pairs), rule_numbers=numbers, options=AnswerOptions())


def false_share(rng: np.random.Generator, *, num_studies: int, **study: Any) -> float:
    """Return the share of studies of meaningless ratings that trust or reject any rule."""
    num_false = 0
    for _ in range(num_studies):
        rating_GMR = meaningless_ratings(rng, **study)
        verdicts = {
            row.verdict for row in answer_of(ranked_pairs(rating_GMR, study["design"])).rows
        }
        num_false += bool(verdicts & {"trust", "against"})
    return num_false / num_studies


# --- false verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rules", [10, pytest.param(20, marks=FULL)])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("num_studies", "tie_rate"), few_or_all_tie_rates(60, 3000))
def test_meaningless_labels_give_a_false_verdict_in_one_study_in_twenty(
    design, num_rules, tie_rate, num_studies
):
    """600 pairs. At 5 %, 60 studies have 10 or more false ones with a chance of 0.1 %.

    A share of 5 % in 3,000 studies has a standard error of 0.4 %.
    """
    rng = np.random.default_rng(num_rules)
    share = false_share(
        rng, num_studies=num_studies, design=design, num_rules=num_rules, tie_rate=tie_rate
    )
    assert share <= (0.06 if num_studies == 3000 else 9 / 60)


def test_pairs_of_one_prompt_are_not_taken_as_independent():
    """28 prompts of 7 responses: in a study of 588 pairs 10 rules were trusted falsely in half."""
    rng, num_studies = np.random.default_rng(0), 40
    study = {"design": "all pairs of 7", "num_rules": 10, "tie_rate": 0.0}
    assert false_share(rng, num_studies=num_studies, **study) <= 6 / num_studies
    num_false = 0
    for _ in range(num_studies):
        pairs = ranked_pairs(meaningless_ratings(rng, **study), study["design"])
        single = dataclasses.replace(pairs, prompt_P=np.arange(pairs.num_pairs, dtype=np.uint64))
        num_false += bool({row.verdict for row in answer_of(single).rows} - {"undecided"})
    assert num_false >= 14  # without prompts: 35 % and more


@pytest.mark.parametrize("is_best_against_rest", [False, True])
@pytest.mark.parametrize("sizes", ["one prompt of 16", "eight of 8", "2 to 8"])
@pytest.mark.parametrize(("num_studies", "tie_rate"), few_or_all_tie_rates(60, 1000))
def test_prompts_of_different_sizes_give_no_more_false_verdicts(
    sizes, is_best_against_rest, tie_rate, num_studies
):
    """A prompt of 16 responses has 120 pairs, more than 100 prompts of one pair together.

    Of 60 studies at 5 %, 10 or more are false with a chance of 0.1 %.
    """
    rng, num_false = np.random.default_rng(7), 0
    num_responses = {
        "one prompt of 16": [2] * 100 + [16],
        "eight of 8": [2] * 200 + [8] * 8,
        "2 to 8": [2, 3, 4, 5, 6, 7, 8] * 9,
    }[sizes]
    for _ in range(num_studies):
        pairs = meaningless_pairs(
            rng,
            num_responses=num_responses,
            num_rules=10,
            tie_rate=tie_rate,
            is_best_against_rest=is_best_against_rest,
        )
        num_false += bool({row.verdict for row in answer_of(pairs).rows} & {"trust", "against"})
    assert num_false / num_studies <= (0.06 if num_studies == 1000 else 9 / 60)


def test_the_variance_over_groups_is_that_of_leaving_out_one_after_another():
    hits_G, total_G = np.array([1, 0, 5, 2]), np.array([1, 1, 9, 2])
    share = hits_G.sum() / total_G.sum()
    left_out_G = (hits_G.sum() - hits_G) / (total_G.sum() - total_G)
    expected = 3 / 4 * ((left_out_G - share) ** 2).sum()
    size_G = total_G.astype(np.float64)
    assert jackknife_variance(hits_G - share * size_G, size_G) == pytest.approx(expected)
    # 13² / (1 + 1 + 81 + 4) groups of one size.
    assert degrees_of_freedom(size_G) == pytest.approx(169 / 87 - 1)
    assert degrees_of_freedom(np.ones(30)) == pytest.approx(29)


def test_few_groups_of_one_side_leave_room_for_a_larger_one():
    """One of 40 prompts won its only untied pair, the others lost it; a prompt has up to seven."""
    hits_G, total_G = np.eye(40, dtype=np.int64)[0], np.ones(40, dtype=np.int64)
    seen = share_interval(hits_G, total_G, largest_group=1)
    unseen = share_interval(hits_G, total_G, largest_group=7)
    assert seen == exact_interval(1, 40)
    assert unseen.high > 2 * seen.high
    many = np.repeat([1, 0], 20)  # twenty won ones show how large they are
    assert share_interval(many, total_G, largest_group=7) == share_interval(
        many, total_G, largest_group=2
    )


def test_a_rare_rule_that_lost_everywhere_is_not_said_to_be_against():
    """Best against rest of 8: a rating that is rare loses 7 times in 8 whatever it means.

    One response in 30 is rated 1, and by chance none of 28 is a best one (a chance of 2.4 %).
    """
    quality_GMR = np.zeros((28, 8, 10))
    quality_GMR[:, 3, 0] = 1.0
    row = next(row for row in answer_of(ranked_pairs(quality_GMR, "best against rest of 8")).rows)
    assert (row.untied.value, row.num_untied_pairs) == (0.0, 28)
    assert row.verdict != "against"
    # 28 prompts: a share q of others that the interval leaves possible, each with seven pairs.
    share = 1 - 0.0025 ** (1 / 28)
    assert row.untied.high == pytest.approx(7 * share / (7 * share + 1 - share))


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "total"), [(0, 9), (3, 9), (9, 9)])
def test_one_item_a_group_has_the_exact_interval(hits, total):
    hits_G = np.arange(total) < hits
    interval = share_interval(hits_G.astype(np.int64), np.ones(total, dtype=np.int64))
    assert interval == exact_interval(hits, total)
    # Clopper and Pearson: at either end, so few or so many hits have a chance of 2.5 %.
    if 0 < hits < total:
        assert binom.sf(hits - 1, total, interval.low) == pytest.approx(0.025)
        assert binom.cdf(hits, total, interval.high) == pytest.approx(0.025)


def test_copies_of_every_pair_make_no_interval_narrower():
    rng = np.random.default_rng(3)
    hits_G = rng.integers(0, 2, 50)
    once = share_interval(hits_G, np.ones(50, dtype=np.int64))
    copied = share_interval(4 * hits_G, np.full(50, 4))
    assert once.low is not None
    assert copied.low is not None
    assert copied.value == once.value
    assert copied.low <= once.low + 1e-3
    credit_N, group_N = np.repeat(hits_G, 4).astype(np.float64), np.repeat(np.arange(50), 4)
    half = float(hits_G.mean())
    low, _ = half_credit_interval(half, tie_rate=0, num_pairs=50)
    assert mean_credit_interval(credit_N, group_N).low == pytest.approx(low, abs=4e-3)


@pytest.mark.parametrize("accuracy", [0.6, *(pytest.param(a, marks=FULL) for a in (0.5, 0.8))])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("num_studies", [150, pytest.param(2000, marks=FULL)])
def test_intervals_cover_the_true_accuracy(design, accuracy, num_studies):
    """A standard error of 95 % is 0.5 % in 2,000 studies, 1.8 % in 150; ten rules at once.

    A rule's rating is noise, plus a shift by the response's rank that gives this accuracy: of two
    neighbours in rank one is the better one, and over all pairs of the design it is searched for.
    """
    num_responses, ranks = DESIGNS[design]
    shift = _shift_for(accuracy, ranks)
    rng, num_covered = np.random.default_rng(5), 0
    num_prompts = round(600 / len(ranks))
    for _ in range(num_studies):
        noise_GMR = rng.standard_normal((num_prompts, num_responses, 10))
        quality_GMR = noise_GMR - shift * np.arange(num_responses)[:, None]
        rows = answer_of(ranked_pairs(quality_GMR, design)).rows
        num_covered += all(row.untied.low <= accuracy <= row.untied.high for row in rows)
    share = num_covered / num_studies
    assert share >= (0.935 if num_studies == 2000 else 0.89)
    assert num_studies < 2000 or share <= 0.985


def _shift_for(accuracy: float, ranks: list[tuple[int, int]]) -> float:
    """Return the shift by rank at which the mean over pairs of P(better is rated higher) is it."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(shift: float) -> float:
        distances = [worse - better for better, worse in ranks]
        return float(np.mean(norm.cdf(shift * np.array(distances) / math.sqrt(2)))) - accuracy

    return 0.0 if accuracy == 0.5 else float(brentq(excess, 0, 10))


# --- which rows belong together -------------------------------------------------------------------


def two_pairs_a_prompt(num_prompts: int = 40) -> PairRatings:
    rng = np.random.default_rng(1)
    pairs = rated_pairs(*rng.integers(0, 11, (2, 2 * num_prompts, 3)) / 10)
    prompt_P = np.repeat(np.arange(num_prompts, dtype=np.uint64), 2)
    return dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by="prompt")


def test_a_tables_prompts_are_counted_and_without_them_the_answer_says_so():
    pairs = two_pairs_a_prompt()
    answer = analyze(table_with_prompts(pairs)).answers[-1]
    assert answer.pairs_and_prompts == "80 pairs of 40 prompts"
    assert "Pairs of one prompt count together." in answer.summary[-1]
    bare = analyze(table_of_pairs(pairs)).answers[-1]
    assert bare.pairs_and_prompts == "80 pairs, taken as independent (no prompt_id)"
    assert "prompts of these pairs are not known" in bare.summary[-1]


def test_one_pair_a_prompt_changes_no_figure():
    pairs = two_pairs_a_prompt()
    single = dataclasses.replace(pairs, prompt_P=np.arange(80, dtype=np.uint64))
    with_prompts, bare = (
        analyze(table) for table in (table_with_prompts(single), table_of_pairs(pairs))
    )
    assert with_prompts.intervals == bare.intervals
    assert with_prompts.correlation == bare.correlation
    assert with_prompts.variance == bare.variance
    assert [row.untied for row in with_prompts.answers[-1].rows] == [
        row.untied for row in bare.answers[-1].rows
    ]


def test_copied_pairs_of_a_prompt_widen_every_interval_to_that_of_one():
    """Each prompt's pair stands there four times: what one pair says, four copies say."""
    rng = np.random.default_rng(2)
    chosen_PR, rejected_PR = rng.integers(0, 11, (2, 150, 4)) / 10
    once = rated_pairs(chosen_PR, rejected_PR)
    once = dataclasses.replace(once, prompt_P=np.arange(150, dtype=np.uint64), grouped_by="prompt")
    copies = rated_pairs(np.repeat(chosen_PR, 4, axis=0), np.repeat(rejected_PR, 4, axis=0))
    copies = dataclasses.replace(
        copies, prompt_P=np.repeat(np.arange(150, dtype=np.uint64), 4), grouped_by="prompt"
    )
    narrow, single, copied = (
        analyze(table)
        for table in (table_of_pairs(copies), table_with_prompts(once), table_with_prompts(copies))
    )

    def widths(analysis: Any) -> NDArray[np.float64]:
        rows = [
            [row.high - row.low for row in (interval.entropy, interval.half, interval.untied)]
            for interval in analysis.intervals
        ]
        return np.array(rows)

    # Four times as many independent pairs would have intervals half as wide.
    assert (widths(copied) / widths(single) > 0.9).all()
    assert (widths(narrow) / widths(single) < 0.65).all()
    shares = [
        [(row.between_prompts.low, row.between_prompts.high) for row in analysis.variance]
        for analysis in (single, copied)
    ]
    # With copies, two pairs of one prompt are no two draws: the estimate itself differs slightly.
    np.testing.assert_allclose(shares[0], shares[1], atol=0.06)
    bands = [
        [row.null_high - row.null_low for row in analysis.correlation if row.null_high is not None]
        for analysis in (single, copied)
    ]
    np.testing.assert_allclose(bands[0], bands[1], rtol=0.05)


def test_the_prompts_of_a_wide_table_are_no_rule(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(
        "pair_id,response,prompt_id,kind\n"
        + "".join(
            f"p{index},{response},q{index // 2},{index % 7 / 10 + (response == 'chosen') / 10}\n"
            for index in range(20)
            for response in ("chosen", "rejected")
        )
    )
    analysis = analyze(path)
    assert analysis.rule_ids == ["kind"]
    assert analysis.answers[-1].pairs_and_prompts == "20 pairs of 10 prompts"


def test_a_pair_of_two_prompts_is_refused():
    pairs = two_pairs_a_prompt(4)
    table = table_with_prompts(pairs)
    prompts = table["prompt_id"].to_pylist()
    prompts[0] = "another"
    table = table.set_column(table.schema.get_field_index("prompt_id"), "prompt_id", [prompts])
    with pytest.raises(InputError, match="has more than one prompt_id"):
        analyze(table)


def test_the_same_prompt_id_in_two_sources_is_two_prompts():
    pairs = two_pairs_a_prompt(10)
    sources = np.array(["a", "b"] * 10, dtype=object)
    table = table_with_prompts(dataclasses.replace(pairs, source_P=sources))
    assert analyze(table).answers[-1].pairs_and_prompts == "20 pairs of 20 prompts"


def test_sums_over_prompts_are_those_of_numpy():
    pairs = two_pairs_a_prompt(30)
    with open_warehouse(open_ratings(table_with_prompts(pairs))) as warehouse:
        statistics = rating_statistics(warehouse)[-1]
    sign_PR = np.sign(pairs.margin_PR)
    sum_GR = sign_PR.reshape(30, 2, 3).sum(axis=1)
    np.testing.assert_array_equal(statistics.counts.sign_gram_RR, sum_GR.T @ sum_GR)
    total_RR = statistics.counts.margin_sums_B2RR.sum(axis=0)[0]
    np.testing.assert_allclose(total_RR, pairs.margin_PR.T @ pairs.margin_PR)
    # Pairs of one prompt are in one block: at most 30 blocks are filled.
    filled = statistics.counts.margin_sums_B2RR.any(axis=(1, 2, 3)).sum()
    assert filled <= 30
    assert isinstance(table_with_prompts(pairs), pa.Table)
