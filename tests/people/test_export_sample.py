"""Samples are spread over strata, blind, reproducible, and never overwrite answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.core.errors import InputError
from encore.data.annotations import read_items, read_samples
from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.people.handouts import handouts
from encore.people.people_options import AnnotateExportConfig
from encore.people.questionnaire import Card, Item, Questionnaire, questions_of
from encore.people.stratified_draw import NUM_EXAMPLES, draw_rules, pair_rules, stratified_order
from encore.warehouse import open_ratings
from tests.golden.command_line import encore
from tests.people.answering import page_data, table_rows
from tests.people.conftest import exported, run_of
from tests.tables.browse.studies import HOSTILE
from tests.worlds.ratings import stats, table_of
from tests.worlds.studies import numbered_pairs, write_lines

pytestmark = pytest.mark.services

annotate = partial(encore, "annotate", "export")
#: Titles of the study's rules by rule id.
RULE_TITLES = {"calm": "Calm", "fair": "Fair", "kind-b-words-b": "Kind <b>words</b>"}


def items_of(study: Path) -> list[dict[str, Any]]:
    [sample] = read_samples(open_study(study))
    return list(read_items(open_study(study), sample).to_pylist())


def items_in(file: Path) -> list[dict[str, Any]]:
    """Return each item of a file for annotators: texts by name of the card or column."""
    if file.suffix == ".html":
        return [
            {card["name"]: card["parts"] for card in item["cards"]} | {"item_id": item["item_id"]}
            for item in page_data(file)["items"]
        ]
    if file.suffix == ".csv":
        return table_rows(file)
    return [task["data"] for task in json.loads(file.read_text(encoding="utf-8"))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1), st.integers(0, 9))
def test_the_first_n_ratings_are_evenly_spread_for_every_n(strata, seed):
    cell_N, level_N = np.array(strata).T
    order = stratified_order(cell_N, level_N, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(strata)))
    for end in range(1, len(order) + 1):
        for group_N in (cell_N, level_N):
            num_drawn = Counter(zip(cell_N[order[:end]], group_N[order[:end]], strict=True))
            # A group that is not used up is at most one behind any group that it competes with:
            # cells with all cells, levels with the levels of their cell.
            for group, size in Counter(zip(cell_N, group_N, strict=True)).items():
                rivals = [
                    num
                    for rival, num in num_drawn.items()
                    if group_N is cell_N or rival[0] == group[0]
                ]
                assert num_drawn[group] == size or num_drawn[group] >= max(rivals, default=0) - 1


def test_responses_are_spread_over_sources_rules_and_ratings_and_larger_samples_contain_smaller(
    study,
):
    sample = exported(study, items=120).sample
    rows = items_of(study)
    assert (sample.num_items, len(rows)) == (120, 120)
    assert set(Counter((row["source"], row["rule_id"]) for row in rows).values()) == {20}
    assert len({row["rating"] for row in rows}) == 11
    # Other files of the same sample; another seed is another sample.
    assert exported(study, items=120, format="csv", annotators=2).sample == sample
    assert exported(study, items=120, seed=1).sample.key != sample.key
    smaller = read_items(open_study(study), exported(study, items=60).sample)
    assert {*smaller["item_id"].to_pylist()} < {row["item_id"] for row in rows}


@pytest.mark.parametrize("file_format", ["html", "csv", "label-studio"])
def test_annotators_of_a_response_see_three_texts_and_nothing_beside_them(study, file_format):
    export = exported(study, items=400, format=file_format)
    rows = {row["item_id"]: row for row in items_of(study)}
    # Of 60 · 2 · 3 ratings some are null; those cannot be drawn.
    assert len(rows) == export.sample.num_items < 360
    assert export.note == f"the sample has all {len(rows)} items of the study; 400 were requested"
    pairs = {(pair.source, pair.pair_id): pair for pair in iter_pairs(open_study(study))}
    text = export.files[0].read_text(encoding="utf-8")
    assert not re.search(r"chosen|rejected|entropy|rating\b|judge", text, re.IGNORECASE)
    assert not any(pair_id in text for _, pair_id in pairs)
    assert export.sample.run_key not in text
    # The judge's rating is a number, which this search does not see: only these texts are there.
    seen = items_in(export.files[0])
    assert len(seen) == len(rows)
    for item in seen:
        row = rows[item.pop("item_id")]
        pair, title = pairs[row["source"], row["pair_id"]], RULE_TITLES[row["rule_id"]]
        response = pair.chosen if row["response"] == "chosen" else pair.rejected
        if file_format == "html":
            assert item == {
                "rule": [["Description", "d"], ["Criterion", f"Rule {title}."]],
                "conversation": [["user", pair.prompt[0].content]],
                "response": [["", response]],
            }
            continue
        if file_format == "csv":
            assert [item.pop(name) for name in ("annotator", "label", "comment")] == [
                "annotator-1",
                "",
                "",
            ]
            assert item.pop("question") == (
                "label: How far does the response follow the rule? Look at this rule alone. "
                "(0 – not at all, 0.5, 1 – fully, cannot say)"
            )
        assert item == {
            "sample": export.sample.key,
            "rule": f"Rule: {title}\n\nDescription: d\n\nCriterion: Rule {title}.",
            "conversation": f"Conversation\n\nuser: {pair.prompt[0].content}",
            "response": response,
        }


def test_the_examples_of_a_rule_are_of_different_pairs():
    # Five pairs, so five examples are one of each pair. Both responses of pair 0 have levels that
    # no other response has; examples are spread over levels, so both stand among the first three
    # (0, 1/2 and 1), and one of them must be left out. Rule b has another entropy, to be paired.
    chosen_PR, rejected_PR = np.full((2, 5, 2), 0.5)
    chosen_PR[0, 0], rejected_PR[0, 0] = 0.0, 1.0
    table = table_of(chosen_PR, rejected_PR, rule_ids=("a", "b"))
    for seed in range(5):
        _, examples = draw_rules(open_ratings(table), num_items=1, seed=seed)
        assert sorted(row["pair_id"] for row in examples["a"]) == [f"{n:032x}" for n in range(5)]


def test_annotators_have_the_same_items_in_different_orders(study):
    export = exported(study, items=30, annotators=3, format="csv")
    orders = [tuple(item["item_id"] for item in items_in(file)) for file in export.files]
    assert len(set(orders)) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_rules_are_paired_across_the_middle_and_have_five_examples(study):
    export = exported(study, kind="rules", format="label-studio")
    [task] = items_in(export.files[0])
    [row] = items_of(study)  # three rules: one in each half, the middle one in none
    assert {row["first_rule"], row["second_rule"]} < RULE_TITLES.keys()
    for side in ("first", "second"):
        text = task[f"{side}_rule"]
        scores = re.findall(r"Example \d, score (0\.\d|0|1):", text)
        assert (len(scores), len(set(scores)) > NUM_EXAMPLES // 2) == (NUM_EXAMPLES, True)
        assert "entropy" not in text.lower()
    config = export.files[1].read_text(encoding="utf-8")
    assert config.count("<Choice ") == 2 * 3  # first, second, cannot say


def test_every_rule_is_used_once_before_any_is_used_twice():
    rules = [stats(f"r{number}", number / 10) for number in range(9)]
    drawn = pair_rules(rules, rng=np.random.default_rng(3))
    assert len(set(drawn)) == len(drawn) == 16
    for start in range(0, 16, 4):
        names = [name for pair in drawn[start : start + 4] for name in pair]
        assert sorted(names) == ["r0", "r1", "r2", "r3", "r5", "r6", "r7", "r8"]
    assert all(low < "r4" < high for low, high in drawn)
    with pytest.raises(InputError, match="no two of different entropy"):
        pair_rules([stats("a", 1.0), stats("b", 1.0)], rng=np.random.default_rng(0))


def test_a_file_with_answers_is_not_overwritten(study):
    export = exported(study, items=5, format="csv")
    exported(study, items=5, format="csv")  # the same bytes
    filled = export.files[0].read_bytes().replace(b",\r\n", b",1\r\n")
    export.files[0].write_bytes(filled)
    with pytest.raises(InputError, match=r"annotator-1\.csv exists with other content"):
        exported(study, items=5, format="csv")
    assert export.files[0].read_bytes() == filled


def test_ratings_of_pairs_that_the_study_no_longer_has_are_refused(study, tmp_path):
    rows = write_lines(tmp_path / "one.jsonl", numbered_pairs(1))
    ingest([f"hh={rows}"], out=study, replace=True)
    with pytest.raises(InputError, match="is rated but not among the study's pairs; rate the"):
        exported(study, items=60)


def test_a_response_that_is_a_formula_is_text_in_the_table(tmp_path):
    card = Card(name="response", title="Response", parts=(("", "=1+1"),))
    items = (Item(item_id="item-1", cards=(card,)),)
    sheet = Questionnaire(kind="rules", questions=questions_of("rules", ()), items=items)
    config = AnnotateExportConfig(study=tmp_path, format="csv")
    [content] = handouts(sheet, config, key="rules-1").values()
    (tmp_path / "sheet.csv").write_bytes(content)
    [row] = table_rows(tmp_path / "sheet.csv")
    assert (row["response"], row["clarity"], row["reliability"]) == ("'=1+1", "", "")


def test_hostile_texts_are_complete_in_every_format_and_add_no_markup(study):
    files = [
        exported(study, items=400, format=name).files[0] for name in ("html", "csv", "label-studio")
    ]
    page = files[0].read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 2
    num_hostile = {
        sum(HOSTILE in str(item["conversation"]) for item in items_in(file)) for file in files[1:]
    }
    num_hostile.add(sum(HOSTILE in item["conversation"][0][1] for item in items_in(files[0])))
    assert len(num_hostile) == 1
    assert num_hostile.pop() > 0


@pytest.mark.parametrize("scale", ["1", "0,0", "0,a", "1,0", "0,2", "0,nan", ""])
def test_a_malformed_scale_is_refused(study, scale):
    error = annotate(study, "--scale", scale, "--run", run_of(study)).error
    assert f"--scale '{scale}': expected 2 to 15 rising numbers" in error
    assert not (study / "annotations").exists()


def test_the_command_prints_the_files_and_the_next_command(study):
    result = annotate(study, "--run", run_of(study), "--items", 12, "--annotators", 2, "--json")
    record = result.json
    assert record["num_items"] == 12
    assert [Path(name).name for name in record["files"]] == ["annotator-1.html", "annotator-2.html"]
    assert f"encore annotate import {study} FILES" in result.err
