"""The counts behind the histograms are those of the ratings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from encore.ratings_input import ratings_input
from encore.report.histograms import MAX_LEVELS, rule_histograms
from encore.warehouse import Warehouse
from tests.ratings_files import random_table


def levels(rows: list[tuple[str, float | None, int]]) -> pa.Table:
    names = ("rule_id", "rating", "num_ratings")
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(names, map(list, columns), strict=True)))


def test_a_bar_for_each_level_and_its_share() -> None:
    [found] = rule_histograms(levels([("r", 0.5, 3), ("r", 0.0, 1)]), rule_ids=["r"])
    assert found.positions == (0.0, 0.5)
    assert found.num_ratings == (1, 3)
    assert found.shares == (0.25, 0.75)
    assert not found.is_binned


def test_rows_of_one_level_add_up_and_nulls_do_not_count() -> None:
    rows = [("r", 0.5, 3), ("r", 0.5, 4), ("r", None, 9), ("other", 0.5, 2)]
    [found] = rule_histograms(levels(rows), rule_ids=["r"])
    assert found.num_ratings == (7,)


def test_a_rule_without_ratings_has_no_histogram() -> None:
    found = rule_histograms(levels([("r", 0.5, 3)]), rule_ids=["silent", "r"])
    assert [histogram.rule_id for histogram in found] == ["r"]


def test_too_many_levels_become_bins_that_hold_every_rating() -> None:
    ratings = np.linspace(0, 1, MAX_LEVELS + 1)
    rows = [("r", float(rating), 2) for rating in ratings]
    [found] = rule_histograms(levels(rows), rule_ids=["r"])
    assert found.is_binned
    assert sum(found.num_ratings) == 2 * len(ratings)
    # 50 bins of 0.02: the first holds 0 and 1/60, the last 59/60 and, as its upper end, 1.
    assert found.positions[0] == pytest.approx(0.01)
    assert found.num_ratings[0] == found.num_ratings[-1] == 4


@pytest.mark.parametrize("seed", range(3))
def test_the_query_and_a_count_in_python_agree(seed: int) -> None:
    table = random_table(np.random.default_rng(seed), max_rows=3000)
    rule_ids = sorted(set(table["rule_id"].to_pylist()))
    with Warehouse(ratings_input(table)) as warehouse:
        rows = warehouse.query("rule_histogram")
    pooled = rows.filter(rows["source"].is_null())
    for found in rule_histograms(pooled, rule_ids=rule_ids):
        counts = Counter(
            rating
            for rule_id, rating in zip(
                table["rule_id"].to_pylist(), table["rating"].to_pylist(), strict=True
            )
            if rule_id == found.rule_id and rating is not None
        )
        assert sum(found.num_ratings) == counts.total()
        if not found.is_binned:
            assert dict(zip(found.positions, found.num_ratings, strict=True)) == dict(counts)
