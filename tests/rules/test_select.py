"""Selection: the mean over all raters decides, ties have a stated order, a null is no zero."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.rules.importance import rate_importance
from encore.rules.rules_options import ImportanceConfig, SelectConfig
from encore.rules.select import Selection, select_rules
from tests.rules.principles import rated, rules_in, write_principles, write_text_lines

#: Ratings by principle.
PEOPLE = {"anna": [0.1, 0.9, 0.5, 0.5, 0.2], "ben": [0.3, 0.7, 0.5, 0.5, 0.1]}
JUDGE = ["0.2", "0.8", "0.5", "0.5", "no number"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pool = write_principles(tmp_path / "pool.toml", 5)
    ratings = enumerate(zip(*PEOPLE.values(), strict=True))
    lines = ["rule_id,anna,ben", *(f"principle-{row},{anna},{ben}" for row, (anna, ben) in ratings)]
    people = write_text_lines(tmp_path / "people.csv", lines)
    rated(pool, tmp_path / "importance", JUDGE.__getitem__, people=(people,))
    return tmp_path / "importance"


def select(folder: Path, *, top: int = 2) -> Selection:
    output = folder.parent / "rules.toml"
    return select_rules(SelectConfig(folder=folder, top=top, output=output))


def order_of(selection: Selection) -> str:
    """Return the numbers of the principles by rank."""
    return "".join(row["rule_id"].removeprefix("principle-") for row in selection.rules)


def test_the_mean_over_people_and_judges_ranks_and_a_null_is_no_zero(folder):
    selection = select(folder)
    # Means: (0.9 + 0.7 + 0.8) / 3 = 0.8; twice 0.5; (0.1 + 0.3 + 0.2) / 3 = 0.2; of the last one,
    # which the judge did not rate, (0.2 + 0.1) / 2 = 0.15.
    assert order_of(selection) == "12304"
    means = [row["importance"] for row in selection.rules]
    assert means == pytest.approx([0.8, 0.5, 0.5, 0.2, 0.15])
    assert selection.rules[-1]["ratings"] == {"anna": 0.2, "ben": 0.1}
    partly_rated, tie = selection.notes
    assert tie.startswith("principle-2 is selected and principle-3 is not, with the same")
    assert partly_rated.startswith("1 rules lack some of 3 ratings")
    judge = [0.2, 0.8, 0.5, 0.5]
    correlations = [np.corrcoef(ratings[:4], judge)[0, 1] for ratings in PEOPLE.values()]
    assert selection.people_and_judges.r.value == pytest.approx(np.mean(correlations))
    assert (selection.among_people.num_pairs, selection.among_judges.num_pairs) == (1, 0)


def test_the_rule_set_keeps_provenance_and_the_table_the_ratings(folder):
    selection = select(folder, top=3)
    assert rules_in(selection.output) == rules_in(folder / "pool.toml")[1:4]
    assert "importance" not in Path(selection.output).read_text()
    table = json.loads(Path(selection.table).read_text())
    assert table == json.loads(json.dumps(dataclasses.asdict(selection)))
    first = table["rules"][0]
    assert (first["source"], first["licence"], first["origin"]) == ("made-up", "CC0-1.0", "line 1")
    assert first["ratings"] == {"anna": 0.9, "ben": 0.7, "scripted": 0.8}


def test_a_rule_with_too_few_ratings_has_no_rank_and_is_named(folder, tmp_path):
    rated(folder.parent / "pool.toml", tmp_path / "judge", JUDGE.__getitem__)
    selection = select(tmp_path / "judge")
    assert [row["importance"] is None for row in selection.rules] == [False] * 4 + [True]
    assert "no rank with less than half of them: principle-4" in selection.notes[0]
    with pytest.raises(InputError, match="--top 5: 4 of 5 rules have ratings of half of the 1"):
        select(tmp_path / "judge", top=5)


def test_half_of_the_raters_are_enough_and_more_raters_stand_first_among_equals(tmp_path):
    # Four people. Rule 0 has two ratings of 0.5, exactly half of the raters; rule 1 four of 0.5;
    # rule 2 a single 0.9, fewer than half; rule 3 three with the mean (1/4 + 1/2 + 3/4) / 3 = 1/2.
    pool = write_principles(tmp_path / "pool.toml", 4)
    lines = [
        "rule_id,anna,ben,carl,dora",
        "principle-0,0.5,,,0.5",
        "principle-1,0.5,0.5,0.5,0.5",
        "principle-2,0.9,,,",
        "principle-3,,0.25,0.75,0.5",
    ]
    people = write_text_lines(tmp_path / "people.csv", lines)
    config = ImportanceConfig(pool=pool, output=tmp_path / "importance", people=(people,))
    rate_importance(config)
    selection = select(tmp_path / "importance", top=3)
    assert order_of(selection) == "1302"
    assert [row["importance"] for row in selection.rules] == [0.5, 0.5, 0.5, None]


def test_a_constant_rater_is_named_and_two_runs_of_a_judge_have_different_names(folder):
    rated(folder.parent / "pool.toml", folder, lambda _: "0.7", max_reply_tokens=8)
    selection = select(folder)
    assert "gives every rule the same rating; no agreement" in "\n".join(selection.notes)
    names = [*selection.rules[0]["ratings"]]
    assert names[:2] == ["anna", "ben"]
    assert all(name.startswith("scripted (") for name in names[2:])
    assert len(set(names)) == 4


def test_a_folder_without_ratings_or_with_an_unfinished_run_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="no ratings of importance in it; make them with `encore"):
        select(tmp_path / "nothing")
    fail = Mock(side_effect=RuntimeError("engine trouble"))
    with pytest.raises(StudyIncompleteError):
        rated(folder / "pool.toml", folder, fail, name="broken")
    with pytest.raises(StudyIncompleteError, match=r"judge broken\): 3 of 3 shards are missing"):
        select(folder)
