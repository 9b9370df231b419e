"""A published data set is loaded by `datasets`, has the study's ratings, and a true card."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt

from encore.core.errors import InputError
from encore.data.pairs import read_pairs
from encore.data.rating_runs import list_runs, run_status
from encore.data.rule_sets import load_rule_set
from encore.data.study import open_study
from encore.tables.publish import publish
from tests.golden.command_line import encore
from tests.tables.sql.studies import NUM_PAIRS, make_pairs, rate_study
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import numbered_pairs, study_of, write_rules
from tests.worlds.studies import rate_study as rate_study_with

pytestmark = pytest.mark.services

ALL_PAIRS = sum(NUM_PAIRS.values())
RULE_IDS = load_rule_set("encore-10").rule_ids


@pytest.fixture(scope="module")
def published(one_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "rated-pairs"
    publish(one_run, out)
    return out


def rated_by_hand(study: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every expected row by source and pair id, from the study's own files."""
    rows = {
        (pair["source"], pair["pair_id"]): pair
        | {f"{response}_ratings": {} for response in ("chosen", "rejected")}
        for pair in read_pairs(open_study(study)).to_pylist()
    }
    [run_dir] = list_runs(study / "ratings")
    for path in run_status(run_dir).paths:
        for row in pq.read_table(path).to_pylist():
            ratings = rows[row["source"], row["pair_id"]][f"{row['response']}_ratings"]
            ratings[row["rule_id"]] = row["rating"]
    return rows


def header_of(folder: Path) -> dict[str, Any]:
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, header, _ = card.split("---\n", 2)
    loaded: dict[str, Any] = yaml.safe_load(header)
    return loaded


def test_nothing_in_a_rule_or_a_judges_name_is_live_in_the_card(tmp_path):
    study = study_of(numbered_pairs(4), tmp_path / "study")
    hostile = "![p](https://evil.example/a.png) [c](//evil.example) <img src=x> {}"
    rules = write_rules(tmp_path / "rules.toml", ["Kind", "Brief"], rating_rule=hostile)
    judge = ScriptedJudge(name="[judge](//evil.example)<b>\u202e")
    rate_study_with(study, judge, rules=str(rules))
    publish(study, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    # The judge's name has no protocol: its marks are escaped. The rule has one: it is code.
    assert r"| judge | \[judge\](//evil.example)&lt;b>\\u202e |" in card
    rule = "![p](https://evil.example/a.png) [c](//evil.example) <img src=x> Kind"
    assert f"| `kind` | `{rule}` |" in card
    body = card.split("---\n", 2)[2]
    rendered = MarkdownIt("commonmark").enable("table").render(body)
    assert "evil.example" in rendered
    assert not re.search(r"<img|<a |<b>|\u202e", rendered)


def load(folder: Path, *arguments: str, cache: Path) -> Any:
    from datasets import load_dataset

    return load_dataset(str(folder), *arguments, split="train", cache_dir=str(cache))


def test_datasets_loads_every_pair_with_its_ratings(published, one_run, tmp_path):
    loaded = load(published, cache=tmp_path)
    expected = rated_by_hand(one_run)
    assert len(loaded) == len(expected) == ALL_PAIRS
    for row in loaded:
        assert row == expected[row["source"], row["pair_id"]]
        assert tuple(row["chosen_ratings"]) == RULE_IDS
    keys = [(row["source"], row["pair_id"]) for row in loaded]
    assert keys == sorted(keys)

    rules = load(published, "rules", cache=tmp_path)
    assert rules["rule_id"] == list(RULE_IDS)
    texts = [rule.rating_rule for rule in load_rule_set("encore-10").rules]
    assert rules["rating_rule"] == texts
    [file] = (published / "data").iterdir()
    assert file.name == "train-00000-of-00001.parquet"
    assert "synthetic" not in header_of(published)["tags"]


def test_rules_that_do_not_apply_stay_apart_from_nulls(tmp_path):
    def answer(prompt: str) -> str:
        if "Kind" not in prompt:
            return "0.5"
        return "n/a" if "Question 1" in prompt else hashed_score(prompt)

    rules = write_rules(tmp_path / "rules.toml", ["Brief", "Kind"])
    study, out = study_of(numbered_pairs(12), tmp_path / "study"), tmp_path / "out"
    run = rate_study_with(study, ScriptedJudge(answer), rules=str(rules), ask_applies=True)
    publish(study, out)
    assert (
        "| `chosen_not_applicable`, `rejected_not_applicable` |" in (out / "README.md").read_text()
    )
    rows = load(out, cache=tmp_path / "cache")
    does_not_apply = {
        (row["pair_id"], row["response"])
        for path in run_status(run.run_dir).paths
        for row in pq.read_table(path).to_pylist()
        if row["null_reason"] == "does_not_apply"
    }
    assert 0 < len(does_not_apply) < 24
    for row, response in product(rows, ("chosen", "rejected")):
        lacks = (row["pair_id"], response) in does_not_apply
        assert row[f"{response}_not_applicable"] == ["kind"] * lacks
    [of_study, of_data_set] = [encore("analyze", path, "--json").json for path in (study, out)]
    assert of_data_set["rules"] == of_study["rules"]


def test_the_card_has_counts_rules_licences_and_nulls(published, one_run):
    card = (published / "README.md").read_text(encoding="utf-8")
    [run_dir] = list_runs(one_run / "ratings")
    assert run_dir.name in card
    assert f"{ALL_PAIRS} preference pairs" in card
    for rule in load_rule_set("encore-10").rules:
        assert rule.rating_rule in card
    for label, num_pairs in NUM_PAIRS.items():
        assert f"| {label} | {num_pairs} | study-{label}.jsonl" in card
    assert card.count("state it before you pass this on") == 2
    assert "Synthetic" not in card
    nulls = sum(
        row["rating"] is None
        for path in run_status(run_dir).paths
        for row in pq.read_table(path).to_pylist()
    )
    section = card.split("## Missing ratings\n\n")[1].split("\n\n")[0]
    counts = [int(line.split(" | ")[2].strip(" |")) for line in section.splitlines()[2:]]
    assert sum(counts) == nulls > 0
    assert "not_a_single_number" in section


def test_synthetic_pairs_are_marked_in_the_card(tmp_path):
    study = make_pairs(tmp_path, prefix="synthetic-")
    rate_study(study)
    publish(study, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "**Synthetic data** (source synthetic-hh, source synthetic-pku)" in card
    assert "synthetic-hh (synthetic)" in card
    assert "synthetic" in header_of(tmp_path / "out")["tags"]


def test_pairs_without_ratings_are_left_out_and_counted(tmp_path):
    study = make_pairs(tmp_path)
    rate_study(study, limit=4)
    out = tmp_path / "out"
    result = encore("publish", study, "--dataset", out, "--json")
    report = result.json
    assert report["database"] is None
    assert (report["dataset"]["num_rows"], report["dataset"]["num_unrated_pairs"]) == (4, 8)
    assert "8 pairs are not rated" in result.err
    assert "8 pairs of the study are not rated" in (out / "README.md").read_text()
    assert report["dataset"]["rule_ids"] == list(RULE_IDS)


def test_ratings_of_pairs_that_the_study_no_longer_has_are_refused(tmp_path):
    study = make_pairs(tmp_path)
    rate_study(study)
    study_of(numbered_pairs(1), study, label="hh", replace=True)
    with pytest.raises(InputError, match=r"7 rated pairs of source 'hh' are no longer in it"):
        publish(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()
