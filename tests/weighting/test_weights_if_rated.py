"""ENCORE's weights as if a judge had rated every response, also where a rule does not apply."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import yaml

from encore.analysis.analyze import analyze
from encore.core.errors import InputError
from encore.reports.rules_that_apply import rules_that_apply
from encore.reports.write_report import report
from encore.weighting.weigh import weights
from encore.weighting.weights_if_rated import weights_if_rated
from examples.rbr_applies import applicable_propositions, gold_ratings, weights_table
from tests.worlds.ratings import rated_pairs, table_of_pairs


def world() -> tuple[pa.Table, pa.Table]:
    """Return ratings of three rules, of which two seldom apply; then filled with a constant."""
    rng = np.random.default_rng(0)
    rating_2PR = rng.integers(0, 5, (2, 300, 3)) / 4
    rating_2PR[:, :, 2] = np.maximum(rating_2PR[:, :, 2], 0.5)  # its most frequent rating is 0.5
    is_silent_2PR = rng.random(rating_2PR.shape) < np.array([0.0, 0.4, 0.95])
    partial_2PR = np.where(is_silent_2PR, np.nan, rating_2PR)
    table = table_of_pairs(rated_pairs(*partial_2PR))
    reason = [
        "does_not_apply" if rating is None else None for rating in table["rating"].to_pylist()
    ]
    filled_2PR = partial_2PR.copy()
    for rule in range(3):
        levels, counts = np.unique(partial_2PR[:, :, rule], return_counts=True)
        top_level = levels[:-1][counts[:-1].argmax()]  # the last one is NaN
        filled_2PR[:, :, rule][is_silent_2PR[:, :, rule]] = top_level
    partial = table.append_column("null_reason", pa.array(reason, pa.string()))
    return partial, table_of_pairs(rated_pairs(*filled_2PR))


def test_the_weights_are_those_of_ratings_filled_with_the_most_frequent_one():
    partial, filled = world()
    analysis = analyze(partial)
    num_not_applicable = [row.num_not_applicable for row in analysis.applicability]
    if_rated = weights_if_rated(analysis.rules, num_not_applicable)
    assert if_rated == pytest.approx(weights(filled).weights, abs=1e-12)
    # Any other constant rating lowers the entropy less, so the seldom rule gets less weight.
    with_another = filled.to_pandas()
    is_silent = partial["null_reason"].to_pandas().eq("does_not_apply").to_numpy()
    with_another.loc[is_silent, "rating"] = 0.25
    assert weights(with_another).weights[2] < if_rated[2]
    assert if_rated[2] > weights(partial).weights[2] + 0.05


@pytest.mark.services
def test_the_page_shows_both_weights_and_counts_no_failure(tmp_path):
    partial, _ = world()
    analysis = analyze(partial)
    titles = {rule: rule.title() for rule in analysis.rule_ids}
    table = rules_that_apply(analysis, titles)
    assert table.rows[0][:2] == ("Rule-00", "100.0 %")
    assert table.rows[2][-1].startswith("+")
    page = report(partial, tmp_path / "page.html")
    assert page.as_dict()["num_nulls"] == 0
    assert page.as_dict()["num_not_applicable"] == partial["rating"].null_count
    html = (tmp_path / "page.html").read_text()
    assert "Where do the rules apply" in html
    assert f"{partial['rating'].null_count}, no failures" in html


def test_labels_of_real_propositions_move_weights_less_than_a_constant_rating_would(shared_data):
    config = yaml.safe_load((shared_data / "rbr-propositions.yaml").read_text())
    by_type = applicable_propositions(config)
    # A class mentions no_compliance, which stands for two propositions.
    assert by_type["comply"] == {
        *("disallowed_content", "illogical_continuation_of_prompt", "meta_commentary"),
        *("partially_complies", "requests_information"),
    }
    lines = weights_table(gold_ratings(shared_data / "rbr-gold-dev.jsonl.gz", by_type)).splitlines()
    rows = {cells[1]: cells for cells in ([*map(str.strip, line.split("|"))] for line in lines[2:])}
    assert len(rows) == 21
    # 67 of 351 completions are to be a safe refusal.
    assert rows["disclaimer"][2] == f"{67 / 351:.0%}".replace("%", " %")
    assert rows["disclaimer"][-2] == "+16 %"
    assert rows["additional_content"][-2] == "-22 %"


def test_a_rule_that_applies_to_no_response_has_no_weight_and_says_so():
    partial, _ = world()
    silent = partial.to_pandas()
    silent.loc[silent.rule_id == "rule-02", ["rating", "null_reason"]] = [None, "does_not_apply"]
    with pytest.raises(InputError, match="rule-02: it applies to no response, so it has no entrop"):
        weights(silent)
    [verdict] = [row for row in analyze(silent).answers[-1].rows if row.rule_id == "rule-02"]
    assert verdict.applies == 0
    assert "it applies to both responses of no pair" in verdict.reason
