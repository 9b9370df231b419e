"""Agreement of rules: the cosine of their signs, against the statistics' own sign products."""

from __future__ import annotations

import numpy as np
import pytest

from encore.analysis.analyze import read_statistics
from encore.pair_ratings import read_pair_ratings
from encore.ratings_input import ratings_input
from encore.report.agreement import rule_agreement_of
from encore.warehouse import Warehouse
from tests.ratings_files import random_table, ratings_table

# Rule a prefers chosen in both pairs; rule b in one and ties in the other; rule c never decides.
ROWS = [
    ("p1", "s", "chosen", "a", 1.0),
    ("p1", "s", "rejected", "a", 0.0),
    ("p2", "s", "chosen", "a", 1.0),
    ("p2", "s", "rejected", "a", 0.0),
    ("p1", "s", "chosen", "b", 0.9),
    ("p1", "s", "rejected", "b", 0.1),
    ("p2", "s", "chosen", "b", 0.5),
    ("p2", "s", "rejected", "b", 0.5),
    ("p1", "s", "chosen", "c", 0.5),
    ("p1", "s", "rejected", "c", 0.5),
]


def test_the_cosine_of_signs() -> None:
    with Warehouse(ratings_input(ratings_table(ROWS))) as warehouse:
        found = rule_agreement_of(read_pair_ratings(warehouse, rule_ids=("a", "b", "c")))
    assert found.sign_gram_RR.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    # Signs (1, 1) and (1, 0): their product is 1, their lengths are sqrt 2 and 1.
    assert found.cosine_RR[0, 1] == pytest.approx(1 / np.sqrt(2))
    assert np.isnan(found.cosine_RR[0, 2])


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_sign_product_of_the_statistics(seed: int) -> None:
    source = ratings_input(random_table(np.random.default_rng(seed), max_rows=3000))
    pooled = read_statistics(source)[-1]
    rule_ids = tuple(rule.rule_id for rule in pooled.rules)
    with Warehouse(source) as warehouse:
        found = rule_agreement_of(read_pair_ratings(warehouse, rule_ids=rule_ids))
    assert found.sign_gram_RR.tolist() == pooled.outcomes.sign_gram_RR.tolist()
    assert found.num_pairs == pooled.outcomes.num_pairs
