"""How often each rule applies is counted apart from failures, and all figures are where it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.warehouse import open_ratings, open_warehouse, read_pairs_of
from tests.golden.command_line import encore

pytestmark = pytest.mark.services

NA, FAILED = "does_not_apply", "empty_reply"
#: Ratings of the chosen and the rejected response of the pairs of rule a.
PAIRS: dict[str, tuple[float | str, float | str]] = {
    "p1": (0.9, 0.1),
    "p2": (0.5, 0.5),
    "p3": (NA, 0.5),
    "p4": (NA, NA),
    "p5": (FAILED, 0.9),
    "p6": (FAILED, NA),
}


def row(pair_id: str, response: str, rule: str, x: float | str, **columns: Any) -> dict[str, Any]:
    rating, reason = (None, x) if isinstance(x, str) else (x, None)
    keys = {"pair_id": pair_id, "source": "hh", "response": response, "rule_id": rule}
    return {**keys, "rating": rating, "null_reason": reason, **columns}


def rows_of(
    pairs: dict[str, tuple[float | str, float | str]], rule: str
) -> Iterator[dict[str, Any]]:
    for pair_id, ratings in pairs.items():
        for response, x in zip(("chosen", "rejected"), ratings, strict=True):
            yield row(pair_id, response, rule, x)


def table() -> pa.Table:
    always = dict.fromkeys(PAIRS, (0.6, 0.4))
    return pa.Table.from_pylist([*rows_of(PAIRS, "a"), *rows_of(always, "b")])


def check_figures(ratings: Any) -> None:
    analysis = analyze(ratings)
    a, b = analysis.applicability
    # Of 12 responses 6 have a rating and 4 do not apply; two failed and say neither.
    assert a.num_not_applicable == 4
    assert a.applies.value == pytest.approx(6 / 10)
    # Chosen: p1 and p2 of p1 to p4. Rejected: p1, p2, p3, p5 of all six.
    assert (a.applies_to_chosen, a.applies_to_rejected) == (2 / 4, 4 / 6)
    # Both answers are known of p1 to p4.
    assert a.applies_to_both == 2 / 4
    assert a.num_pairs_not_applicable == 3  # p3, p4, p6
    assert (b.applies.value, b.num_not_applicable) == (1.0, 0)
    rule = analysis.rules[0]
    assert (rule.num_ratings, rule.num_unparsed) == (6, 2)
    assert (rule.num_pairs, rule.tie_rate) == (2, 0.5)
    # Levels 0.9 and 0.5 and 0.1: 2, 3 and 1 of 6.
    p = np.array([2, 3, 1]) / 6
    assert rule.entropy_nats == pytest.approx(-(p @ np.log(p)))
    [verdict] = [row for row in analysis.answers[0].rows if row.rule_id == "a"]
    assert verdict.num_missing_pairs == 1  # p5 alone: p6 does not apply, whatever failed
    assert verdict.applies == pytest.approx(6 / 10)
    assert "undecided where it applies (60 % of responses): 1 untied pair" in verdict.reason
    notes = " ".join(analysis.notes)
    assert "1 of 2 rules do not apply to all responses (4 ratings, no failures)" in notes
    assert "1 of 2 rules rated only some pairs fully" in notes


def test_shares_are_of_the_responses_that_were_judged():
    check_figures(table())


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_ratings_from_elsewhere_may_say_so_too(suffix, tmp_path):
    path = tmp_path / f"ratings{suffix}"
    if suffix == ".parquet":
        pq.write_table(table(), path)
    elif suffix == ".csv":
        pa.csv.write_csv(table(), path)
    else:
        path.write_text("\n".join(map(json.dumps, table().to_pylist())))
    check_figures(path)


def test_without_the_reason_such_ratings_are_failures_as_before():
    analysis = analyze(table().drop_columns("null_reason"))
    assert analysis.rules[0].num_unparsed == 6
    assert not analysis.applicability
    assert "applicability" not in analysis.as_dict()
    assert "applies" not in analysis.as_dict()["answer"][0]
    failed_only = table().to_pandas().replace({NA: FAILED})
    assert analyze(failed_only).as_dict() == analysis.as_dict()


def test_a_rating_that_is_there_applies_whatever_its_reason():
    rows = [row | {"null_reason": NA} for row in table().to_pylist() if row["rating"] is not None]
    assert not analyze(pa.Table.from_pylist(rows)).applicability


def test_prompts_count_once_and_pairs_know_where_rules_do_not_apply():
    # Two prompts of three pairs: one prompt's responses all do not apply.
    pairs = {f"p{n}": (NA, NA) if n < 3 else (0.9, 0.1 * n) for n in range(6)}
    rows = [{**row, "prompt_id": f"q{int(row['pair_id'][1]) // 3}"} for row in rows_of(pairs, "a")]
    ratings = open_ratings(pa.Table.from_pylist(rows))
    [by_prompt] = analyze(ratings).applicability
    [by_pair] = analyze(pa.Table.from_pylist(rows).drop_columns("prompt_id")).applicability
    assert by_prompt.applies.value == by_pair.applies.value == 0.5
    # Two prompts say next to nothing; six independent pairs say more.
    low, high = by_prompt.applies.low, by_prompt.applies.high
    assert high - low > 0.95 > by_pair.applies.high - by_pair.applies.low
    read = read_pairs_of(ratings)
    assert read.not_applicable_2PR[:, :, 0].tolist() == [[True] * 3 + [False] * 3] * 2
    assert read.take(np.array([0, 5])).not_applicable_2PR.shape == (2, 2, 1)
    assert not read.is_failed_PR.any()


def test_many_parts_and_sources_give_the_same_counts():
    rows = [{**row, "source": source} for row in table().to_pylist() for source in ("hh", "pku")]
    ratings = open_ratings(pa.Table.from_pylist(rows))
    analysis = analyze(ratings, by_source=True)
    assert [row.source for row in analysis.applicability] == ["hh"] * 2 + ["pku"] * 2 + ["all"] * 2
    hh, _, pku, _, pooled, _ = analysis.applicability
    assert hh.applies == pku.applies
    assert (pooled.num_not_applicable, pooled.applies.value) == (8, 0.6)
    with open_warehouse(ratings, part_rows=5) as warehouse:
        assert warehouse.has_rules_not_applying
        parts = pa.concat_tables(warehouse.query_parts("applicability_counts"))
    assert sum(parts["num_pairs_not_applicable"].to_pylist()) == 2 * 3


def test_the_command_shows_the_shares_and_the_verdict_where_it_applies(tmp_path):
    path = tmp_path / "ratings.parquet"
    pq.write_table(table(), path)
    output = encore("analyze", path)
    assert "How often each rule applies" in output.out
    assert "where it applies (60 %" in " ".join(output.out.split())
    page = json.loads(encore("analyze", path, "--json").out)
    assert page["applicability"][0]["applies_to_both"] == 0.5


def test_expected_ratings_apply_where_the_levels_do():
    expected = table()["rating"].to_pandas().mul(0.9).add(0.01)
    ratings = table().append_column("expected_rating", pa.array(expected, from_pandas=True))
    analysis = analyze(ratings, rating="expected")
    assert analysis.applicability == analyze(ratings).applicability
    assert [rule.num_unparsed for rule in analysis.rules] == [2, 0]
