"""Table ``rule_verdicts``: the figures of `encore analyze`, and the query of the page on data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from encore.analysis.analyze import analyze
from encore.core.errors import InputError
from encore.data.study import open_study
from encore.tables.sql_query import run_query
from encore.tables.study_tables import study_tables
from encore.tables.verdict_rows import with_rule_verdicts
from encore.warehouse import open_ratings
from tests.conftest import ROOT
from tests.tables.sql.studies import ask, ask_records, make_pairs, rate_study
from tests.worlds.ratings import table_of
from tests.worlds.studies import numbered_pairs, rules_of, study_of, write_rating_run

pytestmark = pytest.mark.services


def test_verdicts_are_those_of_analyze(tmp_path):
    run_key = rate_study(study := make_pairs(tmp_path))
    rows = ask_records(study, "from rule_verdicts")
    answers = analyze(study, by_source=True).answers
    verdicts = [row for answer in answers for row in answer.rows]
    assert [row["source"] for row in rows] == ["hh"] * 10 + ["pku"] * 10 + [None] * 10
    assert {row["run_key"] for row in rows} == {run_key}
    for row, verdict in zip(rows, verdicts, strict=True):
        fields = verdict.as_dict()
        assert {
            row[name] == fields[name]
            for name in row.keys() & fields
            if name not in ("source", "untied")
        } == {True}
        assert (row["untied"], row["untied_low"], row["untied_high"]) == (
            *(verdict.untied.value, verdict.untied.low, verdict.untied.high),
        )


def test_verdicts_are_computed_only_for_a_query_that_names_them(tmp_path):
    rate_study(study := make_pairs(tmp_path))
    tables = study_tables(open_study(study))
    assert with_rule_verdicts(tables, "from ratings") is tables
    rate_study(study, judge="two")
    undecided = study_tables(open_study(study))
    with (
        pytest.raises(InputError, match="2 of its runs match"),
        run_query(undecided, "from Rule_Verdicts"),
    ):
        pass


def test_verdicts_are_those_of_the_chosen_run(tmp_path):
    rate_study(study := make_pairs(tmp_path))
    short = rate_study(study, judge="two", limit=5)
    rows = ask(study, "select distinct run_key from rule_verdicts", judge="two")
    assert rows == [(short,)]
    [(tie_rates,)] = ask(study, "select list(tie_rate) from rule_verdicts", judge="two")
    answers = analyze(open_ratings(study, run=short), by_source=True).answers
    assert tie_rates == [row.tie_rate for answer in answers for row in answer.rows]


def test_the_pairs_that_trusted_rules_agree_with_are_the_query_of_the_page(tmp_path):
    """Rule 1 gets 90 of 100 pairs right and 10 tied; rule 2 gets 85 right and the next 15 wrong.

    Both are trusted; rule 3, always wrong, is not. 85 pairs have both for them, 5 have rule 2
    against rule 1, in 10 rule 2 is against and rule 1 tied.
    """
    study = study_of(numbered_pairs(100), tmp_path / "study")
    pair_ids = [pair_id for (pair_id,) in ask(study, "select pair_id from pairs order by pair_id")]
    chosen_PR = np.repeat([[1, 1, 0], [1, 0, 0], [0.5, 0, 0]], [85, 5, 10], axis=0)
    table = table_of(chosen_PR, np.full((100, 3), 0.5), source="mine")
    table = table.set_column(0, "pair_id", [np.repeat(pair_ids, 6)])
    titles = [f"rule-{index:02d}" for index in range(3)]
    write_rating_run(study, table, rules=rules_of(titles))
    trusted = "select rule_id from rule_verdicts where source is null and verdict = 'trust'"
    assert sorted(ask(study, trusted)) == [("rule-00",), ("rule-01",)]
    assert sorted(row[1] for row in ask(study, query_of_the_page())) == pair_ids[:85]


def query_of_the_page() -> str:
    """Return the query of `docs/data.md` that reads the verdicts."""
    text = (Path(ROOT) / "docs" / "data.md").read_text(encoding="utf-8")
    [query] = re.findall(r"```sql\n(select pairs.+?)```", text, re.DOTALL)
    return query
