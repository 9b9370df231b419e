"""Drafts: a reply is the four texts or a named failure, and no draft is a rule until accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from encore.core.errors import InputError
from encore.data.rule_sets import load_rule_set
from encore.judges.base import Reply
from encore.rules.draft import DraftTexts, accept_drafts, draft_rules, parse_draft
from encore.rules.pool import write_pool
from encore.rules.rules_config import DraftConfig
from tests.rules.principles import (
    SCRIPTED,
    judge_of,
    principle,
    rules_in,
    write_in_any_format,
    write_principles,
)

TEXTS = {
    "title": "Kindness",
    "description": "Be kind.",
    "preference_rule": "Accept the response that is kinder.",
    "rating_rule": "The response should be kind.",
}
WHOLE = json.dumps(TEXTS)


@pytest.fixture
def pool(tmp_path):
    return write_principles(tmp_path / "pool.toml", 3)


def written(index: int) -> str:
    return json.dumps(TEXTS | {"title": f"Kindness {index}"})


def drafted(pool, reply: Callable[[int], str] = written, **more):
    judge = judge_of(reply)
    output = pool.with_name("rules.toml")
    config = DraftConfig(pool=pool, judge=SCRIPTED, output=output, **more)
    return draft_rules(config, judge=judge), judge


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WHOLE, None),
        (f" ```json\n{WHOLE}\n``` ", None),
        (f"Here it is:\n{WHOLE}", "not_the_four_texts_as_json"),
        (" ", "not_the_four_texts_as_json"),
        (json.dumps(TEXTS | {"note": "x"}), "not_the_four_texts_as_json"),
        (json.dumps({"title": "Kindness"}), "not_the_four_texts_as_json"),
        (json.dumps(TEXTS | {"title": "  "}), "not_the_four_texts_as_json"),
    ],
)
def test_a_reply_is_the_four_texts_or_the_reason_why_not(text, reason):
    found = parse_draft(Reply(text=text, is_complete=True))
    assert found == (reason or DraftTexts(**TEXTS))
    assert parse_draft(Reply(text=text, is_complete=False)) == "reply_cut_off"
    assert parse_draft(None) == "prompt_too_long"


def test_what_a_judge_wrote_is_a_draft_with_its_provenance_and_is_refused_as_a_rule(pool):
    report, _ = drafted(pool)
    assert (report["num_drafts"], report["failed"]) == (3, {})
    before, after = rules_in(pool), rules_in(Path(report["output"]))
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.is_draft
        assert (new.title, new.rating_rule) == (f"Kindness {index}", TEXTS["rating_rule"])
        assert (new.rule_id, new.origin, new.licence) == (old.rule_id, old.origin, old.licence)
    manifest = json.loads((Path(report["run_dir"]) / "run.json").read_text())
    assert manifest["identity"]["judge"]["name"] == "scripted"
    with pytest.raises(InputError, match=r"Kindness 0.* is a draft"):
        load_rule_set(report["output"])
    assert accept_drafts(Path(report["output"]), ["principle-1"]) == ["principle-1"]
    with pytest.raises(InputError, match="draft"):
        load_rule_set(report["output"])
    assert accept_drafts(Path(report["output"]), ["ALL"]) == ["principle-0", "principle-2"]
    assert load_rule_set(report["output"]).rules[1].title == "Kindness 1"


def test_a_reply_that_does_not_parse_leaves_a_principle_and_is_named(pool):
    report, _ = drafted(pool, lambda index: "I would rather not." if index == 1 else WHOLE)
    assert report["failed"] == {"principle-1": "not_the_four_texts_as_json"}
    assert rules_in(Path(report["output"]))[1] == rules_in(pool)[1]
    with pytest.raises(InputError, match="--accept principle-1: no such draft"):
        accept_drafts(Path(report["output"]), ["principle-1"])
    other_format = pool.with_suffix(".jsonl")
    write_in_any_format(other_format, rules_in(pool))
    with pytest.raises(InputError, match=r"expected a name that ends in \.toml"):
        accept_drafts(other_format, ["ALL"])
    with pytest.raises(InputError, match=r"no such draft in .*rules.toml; did you mean principle-"):
        accept_drafts(Path(report["output"]), ["principle-9"])


def test_a_rerun_asks_about_what_has_no_draft_and_keeps_what_people_did(pool):
    report, _ = drafted(pool, lambda index: "no" if index == 1 else WHOLE)
    accept_drafts(Path(report["output"]), ["principle-0"])
    edited = [
        rule.model_copy(update={"title": "Edited"}) if rule.rule_id == "principle-2" else rule
        for rule in rules_in(Path(report["output"]))
    ]
    write_pool(Path(report["output"]), edited)
    again, judge = drafted(pool)
    assert (judge.num_asked, again["drafted"]) == (1, ["principle-1"])
    rules = rules_in(Path(again["output"]))
    assert [rule.is_draft for rule in rules] == [False, True, True]
    assert rules[2].title == "Edited"
    assert drafted(pool)[1].num_asked == 0


def test_texts_that_a_rule_has_are_not_written_anew_and_other_peoples_files_are_refused(pool):
    own = {"title": "Truth", "description": "Principle 1 says: be true.", "rating_rule": "Be true."}
    write_pool(pool, [principle(0, **TEXTS), principle(1, **own)])
    report, judge = drafted(pool)
    assert judge.num_asked == 1
    whole, partly = rules_in(Path(report["output"]))
    assert whole == rules_in(pool)[0]
    assert {name: getattr(partly, name) for name in TEXTS} == {**TEXTS, **own}
    write_pool(Path(report["output"]), [principle(7)])
    with pytest.raises(InputError, match="has rule principle-7, which the pool lacks"):
        drafted(pool)


def test_drafting_and_accepting_are_two_calls(pool):
    with pytest.raises(ValidationError, match="give --judge and --output to draft"):
        DraftConfig(pool=pool, judge=SCRIPTED)
    with pytest.raises(ValidationError, match="or --accept alone to accept"):
        DraftConfig(pool=pool, judge=SCRIPTED, accept=("x",))
