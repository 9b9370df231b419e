"""Selection: the mean over all raters decides, ties go by the stated order, nulls are no zeros."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.rules.importance import rate_importance
from encore.rules.rules_config import ImportanceConfig, SelectConfig
from encore.rules.select import select_rules
from tests.rules.principles import (
    SCRIPTED,
    judge_of,
    rated,
    rules_in,
    write_answers,
    write_principles,
)

PEOPLE = {  # by principle
    "anna": [0.1, 0.9, 0.5, 0.5, 0.2],
    "ben": [0.3, 0.7, 0.5, 0.5, 0.1],
}
JUDGE = ["0.2", "0.8", "0.5", "0.5", "no number"]


@pytest.fixture
def folder(tmp_path):
    pool = write_principles(tmp_path / "pool.toml", 5)
    lines = ["rule_id,anna,ben"]
    lines += [f"principle-{row},{PEOPLE['anna'][row]},{PEOPLE['ben'][row]}" for row in range(5)]
    people = write_answers(tmp_path / "people.csv", lines)
    rated(pool, tmp_path / "importance", JUDGE.__getitem__, people=(people,))
    return tmp_path / "importance"


def select(folder, **more) -> dict[str, Any]:
    given = {"folder": folder, "top": 2, "output": folder.parent / "rules.toml", **more}
    return select_rules(SelectConfig(**given))


def test_the_mean_over_people_and_judges_ranks_and_a_null_is_no_zero(folder):
    found = select(folder)
    # Means: (0.9 + 0.7 + 0.8) / 3 = 0.8; twice 0.5; (0.1 + 0.3 + 0.2) / 3 = 0.2; of the last one,
    # which the judge did not rate, (0.2 + 0.1) / 2 = 0.15.
    rows = found["rules"]
    assert [row["rule_id"][-1] for row in rows] == ["1", "2", "3", "0", "4"]
    assert [row["importance"] for row in rows] == pytest.approx([0.8, 0.5, 0.5, 0.2, 0.15])
    assert rows[-1]["ratings"] == {"anna": 0.2, "ben": 0.1}
    partly, tie = found["notes"]
    assert tie.startswith("principle-2 is selected and principle-3 is not, with the same")
    assert partly.startswith("1 rules lack some of 3 ratings")
    judge = [0.2, 0.8, 0.5, 0.5]
    across = [np.corrcoef(PEOPLE[name][:4], judge)[0, 1] for name in PEOPLE]
    assert found["people_and_judges"]["r"]["value"] == pytest.approx(np.mean(across))
    assert (found["among_people"]["num_pairs"], found["among_judges"]["num_pairs"]) == (1, 0)


def test_the_rule_set_keeps_provenance_and_the_table_the_ratings(folder):
    found = select(folder, top=3)
    output = Path(found["output"])
    assert rules_in(output) == rules_in(folder / "pool.toml")[1:4]
    assert "importance" not in output.read_text()
    table = json.loads(Path(found["table"]).read_text())
    assert table == found
    first = table["rules"][0]
    assert (first["source"], first["licence"], first["origin"]) == ("made-up", "CC0-1.0", "line 1")
    assert first["ratings"] == {"anna": 0.9, "ben": 0.7, "scripted": 0.8}


def test_a_rule_with_too_few_ratings_has_no_rank_and_is_named(folder, tmp_path):
    rated(folder.parent / "pool.toml", tmp_path / "judge", JUDGE.__getitem__)
    found = select(tmp_path / "judge")
    assert [row["importance"] is None for row in found["rules"]] == [False] * 4 + [True]
    assert "no rank with less than half of them: principle-4" in found["notes"][0]
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
    people = write_answers(tmp_path / "people.csv", lines)
    config = ImportanceConfig(pool=pool, output=tmp_path / "importance", people=(people,))
    rate_importance(config)
    rows = select(tmp_path / "importance", top=3)["rules"]
    assert [row["rule_id"][-1] for row in rows] == ["1", "3", "0", "2"]
    assert [row["importance"] for row in rows] == [0.5, 0.5, 0.5, None]


def test_a_rater_who_always_says_the_same_is_named_and_two_runs_of_a_judge_are_told_apart(folder):
    pool = folder.parent / "pool.toml"
    rated(pool, folder, lambda _: "0.7", max_reply_tokens=8)
    found = select(folder)
    assert "gives every rule the same rating; no agreement" in "\n".join(found["notes"])
    names = [*found["rules"][0]["ratings"]]
    assert names[:2] == ["anna", "ben"]
    assert all(name.startswith("scripted (") for name in names[2:])
    assert len(set(names)) == 4


def test_a_folder_without_ratings_or_with_an_unfinished_run_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="no ratings of importance in it; make them with `encore"):
        select(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"expected a name that ends in \.toml"):
        select(folder, output=tmp_path / "rules.csv")

    def fail(index: int) -> str:
        raise RuntimeError("engine trouble")

    config = ImportanceConfig(pool=folder / "pool.toml", output=folder, judge=SCRIPTED)
    with pytest.raises(StudyIncompleteError):
        rate_importance(config, judge=judge_of(fail, name="broken"))
    with pytest.raises(StudyIncompleteError, match=r"judge broken\): 3 of 3 shards are missing"):
        select(folder)
