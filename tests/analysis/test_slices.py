"""The answer sliced by a column: kept columns, lengths, quartiles, and the test of equality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from encore.analysis.slices import slice_pairs
from encore.cli.slice_tables import slice_tables
from encore.data.ingestion import ingest
from encore.data.pair_columns import column_of_pairs
from encore.data.study import open_study
from tests.golden.command_line import encore
from tests.tables.sql.studies import ask, rate_study
from tests.worlds.ratings import pairs_of_margins
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import file_digests, write_lines

ROWS = [
    {
        "prompt": f"Question {index}?",
        "chosen": "Yes,  three words",
        "rejected": "No.",
        "language": "de" if index % 3 else "en",
        "year": 2000 + index,
    }
    for index in range(90)
]


def ingested(folder: Path, **options: object) -> Path:
    folder.mkdir(exist_ok=True)
    file = write_lines(folder / "rows.jsonl", [*ROWS, ROWS[0] | {"language": "xx"}])
    ingest({"mine": file}, out=folder / "study", **options)
    return folder / "study"


@pytest.mark.services
def test_kept_columns_change_no_file_of_pairs_and_no_key(tmp_path):
    """The file of pairs and its manifest have the same bytes; the first equal pair counts."""
    plain, kept = ingested(tmp_path / "a"), ingested(tmp_path / "b", keep="language, year")
    digests = file_digests(kept)
    assert digests.keys() - file_digests(plain).keys() == {"pairs/kept/mine.parquet"}
    assert file_digests(plain).items() <= digests.items()
    assert rate_study(plain) == rate_study(kept)
    column = column_of_pairs(open_study(kept), "language")
    assert sorted(column.values()) == ["de"] * 60 + ["en"] * 30
    assert sorted(column_of_pairs(open_study(kept), "year").values()) == list(range(2000, 2090))
    columns = "select name, count(*), min(value) from kept_columns group by all order by all"
    assert ask(kept, columns) == [("language", 90, "de"), ("year", 90, "2000")]
    assert ask(plain, columns) == []
    ingested(tmp_path / "a", keep=["year"])  # the same pairs again, with a column
    assert len(column_of_pairs(open_study(plain), "year")) == 90


def test_a_column_that_is_not_there_or_has_a_taken_name_is_refused(tmp_path):
    assert_refused("no pair of mine has this column", ingested, tmp_path, keep="lang")
    assert_refused("every study has a column of this name", ingested, tmp_path, keep="turns")
    study = open_study(ingested(tmp_path))
    assert_refused("expected one of turns, chosen_characters", column_of_pairs, study, "language")


def test_lengths_are_counted_in_characters_and_words(tmp_path):
    """ "Yes,  three words" has 17 characters and 3 words, "No." has 3 and 1."""
    study = open_study(ingested(tmp_path))
    expected = {"turns": 1, "chosen_characters": 17, "rejected_characters": 3, "chosen_words": 3}
    expected |= {"rejected_words": 1, "difference_characters": 14, "difference_words": 2}
    for name, value in expected.items():
        assert set(column_of_pairs(study, name).values()) == {value}


def test_a_rule_that_fails_in_one_slice_is_found_and_small_slices_are_named():
    """Rule 0 has 80 % in both slices, rule 1 90 % and 60 % of 100 pairs: p < 0.001 by Fisher."""
    is_win = np.stack([np.arange(100) % 10 < 8, np.arange(100) % 10 < 9], axis=1)
    is_win_PR = np.concatenate([is_win, is_win, np.ones((25, 2), dtype=bool)])
    is_win_PR[100:200, 1] = np.arange(100) % 10 < 6
    pairs = pairs_of_margins(np.where(is_win_PR, 1.0, -1.0))
    answer = slice_pairs(pairs, ["a"] * 100 + ["b"] * 100 + ["c"] * 20 + [None] * 5, column="x")
    assert answer.slices == {"a": 100, "b": 100}
    assert [*answer.notes] == [
        "--by x: too small, and left out: c (20 pairs)",
        "--by x: 5 pairs without a value left out",
    ]
    assert [row.untied.value for row in answer.rows] == [0.8, 0.8, 0.9, 0.6]
    assert [test.differs for test in answer.tests] == [False, True]
    assert answer.tests[0].p_value == 1.0
    assert answer.tests[1].corrected_p == pytest.approx(2 * answer.tests[1].p_value)


def test_numbers_are_cut_at_their_quartiles():
    """Each quarter of 1 to 200 has 50; of many equal numbers, slices with the same ends join."""
    pairs = pairs_of_margins(np.ones((200, 1)))
    answer = slice_pairs(pairs, [float(number) for number in range(1, 201)], column="n")
    assert answer.slices == {"1 to 50": 50, "51 to 100": 50, "101 to 150": 50, "151 to 200": 50}
    answer = slice_pairs(pairs, [1.0] * 160 + [2.0] * 40, column="n")
    assert answer.slices == {"1": 160, "2": 40}
    answer = slice_pairs(pairs, [None] * 200, column="n")
    assert (answer.slices, answer.num_without, answer.tests[0].p_value) == ({}, 200, None)


def test_the_command_shows_slices_and_refuses_a_table(tmp_path):
    study = ingested(tmp_path, keep="language")
    rate_study(study)
    document = encore("analyze", study, "--by", "language", "--json").json["by"]
    assert document["slices"] == {"de": 60, "en": 30}
    assert len(document["rows"]) == 20
    assert "language de: 60 pairs" in encore("analyze", study, "--by", "language").out
    table = tmp_path / "ratings.csv"
    table.write_text("pair_id,response,kind\np,chosen,1\np,rejected,0\n")
    assert "is no study" in encore("analyze", table, "--by", "language").error


@pytest.mark.parametrize("cuts_prompts", [False, True])
@pytest.mark.parametrize("num_studies", [20, pytest.param(600, marks=pytest.mark.full)])
def test_equal_slices_seldom_differ(cuts_prompts, num_studies):
    """At most 5 % of studies have a rule that differs, also where prompts have several pairs.

    Of 20 studies 4 or more have a chance of 2 %; of 600, 5 % and three errors are 7.7 %.
    """
    rng, num_false = np.random.default_rng(3), 0
    prompt_P = np.repeat(np.arange(150, dtype=np.uint64), 4)
    for _ in range(num_studies):
        quality_GR = rng.beta(0.4, 0.2, size=(150, 3))
        is_win_PR = rng.random((600, 3)) < np.repeat(quality_GR, 4, axis=0)
        pairs = replace(
            pairs_of_margins(np.where(is_win_PR, 1.0, -1.0)), prompt_P=prompt_P, grouped_by="prompt"
        )
        number_P = rng.random(600 if cuts_prompts else 150)
        values = (number_P if cuts_prompts else np.repeat(number_P, 4)).tolist()
        answer = slice_pairs(pairs, values, column="n")
        num_false += any(test.differs for test in answer.tests)
    assert num_false / num_studies <= (0.077 if num_studies == 600 else 0.15)


def test_rules_that_prefer_what_people_do_not_in_a_slice_are_named():
    """Rule 0 is right on 20 of 100 pairs of "safe", on all of "unsafe"; rule 1 on 55 and all."""
    wins = np.arange(100)[:, None] < np.array([20, 55])
    is_win_PR = np.concatenate([wins, np.ones((100, 2), dtype=bool)])
    pairs = pairs_of_margins(np.where(is_win_PR, 1.0, -1.0))
    answer = slice_pairs(pairs, ["safe"] * 100 + ["unsafe"] * 100, column="kind")
    parts = slice_tables(answer, rule_ids=pairs.rule_ids)
    [text] = [part for part in parts if "people do not" in str(part)]
    assert text == (
        "In safe, these rules prefer what people do not (each interval lies below 50 %): "
        "rule-00 (20.0%).\n"
    )
