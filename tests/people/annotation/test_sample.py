"""Samples: spread over strata, blind, the same for the same seed, and not written over."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.cli.annotate_export import annotate_export
from encore.core.errors import InputError
from encore.data.annotations import read_items, read_samples
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.people.annotate_config import AnnotateExportConfig
from encore.people.handouts import handouts
from encore.people.questionnaire import Card, Item, Questionnaire, questions_of
from encore.people.stratified_draw import NUM_EXAMPLES, draw_rules, pair_rules, stratified_order
from encore.warehouse import open_ratings
from tests.cli.invoking import Command
from tests.people.annotation.answering import page_data
from tests.people.annotation.conftest import exported, run_of
from tests.tables.browse.studies import HOSTILE
from tests.weighting.evidence_for_tests import stats, table_of

invoke = Command(annotate_export)
#: Of the study's rules.
RULE_TITLES = {"calm": "Calm", "fair": "Fair", "kind-b-words-b": "Kind <b>words</b>"}


def items_of(study: Path) -> list[dict[str, object]]:
    [sample] = read_samples(open_study(study))
    return list(read_items(open_study(study), sample).to_pylist())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1), st.integers(0, 9))
def test_every_beginning_is_as_even_as_what_there_is(strata: list[tuple[int, int]], seed: int):
    cell_N, level_N = np.array(strata).T
    order = stratified_order(cell_N, level_N, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(strata)))
    for end in range(1, len(order) + 1):
        for group, whole in ((cell_N, cell_N), (level_N, cell_N)):
            drawn = Counter(zip(whole[order[:end]], group[order[:end]], strict=True))
            all_of = Counter(zip(whole, group, strict=True))
            # A stratum that has one to give is at most one behind any other of its kind.
            for one, size in all_of.items():
                rivals = [
                    count for key, count in drawn.items() if group is whole or key[0] == one[0]
                ]
                assert drawn[one] == size or drawn[one] >= max(rivals, default=0) - 1


def test_responses_are_spread_over_sources_rules_and_ratings_and_larger_samples_contain_smaller(
    study,
):
    made = exported(study, items=120)
    rows = items_of(study)
    assert (made.sample.num_items, len(rows)) == (120, 120)
    assert set(Counter((row["source"], row["rule_id"]) for row in rows).values()) == {20}
    assert len({row["rating"] for row in rows}) == 11
    again = exported(study, items=120, format="csv", annotators=2)
    assert again.sample == made.sample  # other files of the same sample
    assert exported(study, items=120, seed=1).sample.key != made.sample.key
    exported(study, items=60)
    samples = {one.num_items: one for one in read_samples(open_study(study)) if one.seed == 0}
    ids = [set(read_items(open_study(study), samples[n])["item_id"].to_pylist()) for n in (60, 120)]
    assert ids[0] < ids[1]


@pytest.mark.parametrize("file_format", ["html", "csv", "label-studio"])
def test_annotators_see_the_texts_and_nothing_of_ratings_or_preferences(study, file_format):
    made = exported(study, items=400, format=file_format)
    [first, *_] = made.files
    text = first.read_text(encoding="utf-8")
    pairs = {pair.pair_id for pair in iter_pairs(open_study(study))}
    assert not re.search(r"chosen|rejected|entropy|rating\b|judge", text, re.IGNORECASE)
    assert not any(pair_id in text for pair_id in pairs)
    assert made.sample.run_key not in text
    assert text.count("Harsh answer 7.") > 1
    # Of 60 · 2 · 3 ratings some are null; those cannot be drawn.
    num_items = made.sample.num_items
    assert made.note == f"the sample has all {num_items} items of the study; 400 were requested"


@pytest.mark.parametrize("file_format", ["html", "csv", "label-studio"])
def test_annotators_of_a_response_see_three_texts_and_nothing_beside_them(study, file_format):
    """Above all not the judge's rating, a number that no search for words finds."""
    [file, *_] = exported(study, items=60, format=file_format).files
    if file_format == "html":
        seen = [
            {card["name"]: card["parts"] for card in item["cards"]} | {"item_id": item["item_id"]}
            for item in page_data(file)["items"]
        ]
    elif file_format == "csv":
        seen = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"))))
    else:
        seen = [task["data"] for task in json.loads(file.read_text(encoding="utf-8"))]
    rows = {str(row["item_id"]): row for row in items_of(study)}
    pairs = {(pair.source, pair.pair_id): pair for pair in iter_pairs(open_study(study))}
    assert len(seen) == len(rows) == 60
    for item in seen:
        row = rows[item.pop("item_id")]
        pair, title = pairs[row["source"], row["pair_id"]], RULE_TITLES[row["rule_id"]]
        parts = {
            "rule": [["Description", "d"], ["Criterion", f"Rule {title}."]],
            "conversation": [["user", pair.prompt[0].content]],
            "response": [["", pair.chosen if row["response"] == "chosen" else pair.rejected]],
        }
        if file_format == "html":
            assert item == parts
            continue
        texts = {
            "rule": f"Rule: {title}\n\nDescription: d\n\nCriterion: Rule {title}.",
            "conversation": f"Conversation\n\nuser: {pair.prompt[0].content}",
            "response": parts["response"][0][1],
        }
        own = ("sample", "annotator", "question", "label")
        assert {name: text for name, text in item.items() if name not in own} == texts
        if file_format == "csv":
            assert (item["annotator"], item["label"]) == ("annotator-1", "")
            assert item["question"] == (
                "label: How far does the response follow the rule? Look at this rule alone. "
                "(0 – not at all, 0.5, 1 – fully)"
            )


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


def test_annotators_have_the_same_items_in_orders_of_their_own(study):
    made = exported(study, items=30, annotators=3, format="csv")
    tables = [csv.DictReader(io.StringIO(f.read_text("utf-8-sig"))) for f in made.files]
    one, two, three = ([row["item_id"] for row in table] for table in tables)
    assert one != two != three
    assert sorted(one) == sorted(two) == sorted(three)


def test_rules_are_paired_across_the_middle_and_shown_with_five_examples(study):
    made = exported(study, kind="rules", format="label-studio")
    tasks = json.loads(made.files[0].read_text(encoding="utf-8"))
    [row] = items_of(study)  # three rules: one in each half, the middle one in none
    assert {row["first_rule"], row["second_rule"]} < {"calm", "fair", "kind-b-words-b"}
    for side in ("first", "second"):
        shown = tasks[0]["data"][f"{side}_rule"]
        scores = re.findall(r"Example \d, score (0\.\d|0|1):", shown)
        assert (len(scores), len(set(scores)) > NUM_EXAMPLES // 2) == (NUM_EXAMPLES, True)
        assert "entropy" not in shown.lower()
    config = made.files[1].read_text(encoding="utf-8")
    assert config.count("<Choice ") == 4


def test_every_rule_is_used_once_before_any_is_used_twice():
    rules = [stats(f"r{place}", place / 10) for place in range(9)]
    drawn = pair_rules(rules, rng=np.random.default_rng(3))
    assert len(set(drawn)) == len(drawn) == 16
    for start in range(0, 16, 4):
        names = [name for pair in drawn[start : start + 4] for name in pair]
        assert sorted(names) == ["r0", "r1", "r2", "r3", "r5", "r6", "r7", "r8"]
    assert all(low < "r4" < high for low, high in drawn)
    with pytest.raises(InputError, match="no two of different entropy"):
        pair_rules([stats("a", 1.0), stats("b", 1.0)], rng=np.random.default_rng(0))


def test_a_file_that_somebody_filled_is_not_written_over(study):
    made = exported(study, items=5, format="csv")
    exported(study, items=5, format="csv")  # the same bytes
    filled = made.files[0].read_bytes().replace(b",\r\n", b",1\r\n")
    made.files[0].write_bytes(filled)
    with pytest.raises(InputError, match=r"annotator-1\.csv exists with other content"):
        exported(study, items=5, format="csv")
    assert made.files[0].read_bytes() == filled


def test_a_response_that_is_a_formula_is_a_text_in_the_table():
    card = Card(name="response", title="Response", parts=(("", "=1+1"),))
    items = (Item(item_id="item-1", cards=(card,)),)
    sheet = Questionnaire(kind="rules", questions=questions_of("rules", ()), items=items)
    config = AnnotateExportConfig(study=Path("study"), format="csv")
    [content] = handouts(sheet, config, key="rules-1").values()
    [row] = csv.DictReader(io.StringIO(content.decode("utf-8-sig")))
    assert (row["response"], row["clarity"], row["reliability"]) == ("'=1+1", "", "")


def test_hostile_texts_leave_every_format_whole(study):
    pages = [exported(study, items=400, format=one) for one in ("html", "csv", "label-studio")]
    page, table, tasks = (one.files[0].read_text(encoding="utf-8-sig") for one in pages)
    assert page.count("<script") == page.count("</script") == 2
    data = re.search('id="data">(.*)</script>', page)
    assert data is not None
    said = [part[1] for one in json.loads(data[1])["items"] for part in one["cards"][1]["parts"]]
    rows = list(csv.DictReader(io.StringIO(table)))
    for texts in (
        said,
        [one["conversation"] for one in rows],
        [one["data"]["conversation"] for one in json.loads(tasks)],
    ):
        assert sum(HOSTILE in text for text in texts) == sum(HOSTILE in text for text in said) > 0


@pytest.mark.parametrize("scale", ["1", "0,0", "0,a", "1,0", "0,2", "0,nan", ""])
def test_a_scale_that_is_none_is_refused(study, scale):
    error = invoke.error_of(study, "--scale", scale, "--run", run_of(study))
    assert f"--scale '{scale}': expected 2 to 15 rising numbers" in error
    assert not (study / "annotations").exists()


def test_the_command_says_the_key_and_what_is_next(study):
    result = invoke(study, "--run", run_of(study), "--items", 12, "--annotators", 2, "--json")
    found = json.loads(result.stdout)
    assert found["num_items"] == 12
    assert [Path(name).name for name in found["files"]] == ["annotator-1.html", "annotator-2.html"]
    assert f"encore annotate import {study} FILES" in result.stderr
