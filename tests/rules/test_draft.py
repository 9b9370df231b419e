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
from encore.rules.draft import DraftReport, DraftTexts, accept_drafts, draft_rules, parse_draft
from encore.rules.pool import write_pool
from encore.rules.rules_options import DraftConfig
from tests.rules.principles import (
    SCRIPTED,
    judge_of,
    principle,
    rules_in,
    write_in_any_format,
    write_principles,
)
from tests.worlds.judges import ScriptedJudge

TEXTS = {
    "title": "Kindness",
    "description": "Be kind.",
    "preference_rule": "Accept the response that is kinder.",
    "rating_rule": "The response should be kind.",
}
REPLY = json.dumps(TEXTS)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_principles(tmp_path / "pool.toml", 3)


@pytest.fixture
def output(pool: Path) -> Path:
    return pool.with_name("rules.toml")


def draft_reply(index: int) -> str:
    return json.dumps(TEXTS | {"title": f"Kindness {index}"})


def draft(
    pool: Path, reply: Callable[[int], str] = draft_reply
) -> tuple[DraftReport, ScriptedJudge]:
    """Let a judge draft the rules of a pool into ``rules.toml`` beside it."""
    judge = judge_of(reply)
    config = DraftConfig(pool=pool, judge=SCRIPTED, output=pool.with_name("rules.toml"))
    return draft_rules(config, judge=judge), judge


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (REPLY, None),
        (f" ```json\n{REPLY}\n``` ", None),
        (f"Here it is:\n{REPLY}", "not_the_four_texts_as_json"),
        (" ", "not_the_four_texts_as_json"),
        (json.dumps(TEXTS | {"note": "x"}), "not_the_four_texts_as_json"),
        (json.dumps({"title": "Kindness"}), "not_the_four_texts_as_json"),
        (json.dumps(TEXTS | {"title": "  "}), "not_the_four_texts_as_json"),
    ],
)
def test_a_reply_is_the_four_texts_or_a_reason(text, reason):
    expected = reason or DraftTexts(**TEXTS)
    assert parse_draft(Reply(text=text, is_complete=True)) == expected
    assert parse_draft(Reply(text=text, is_complete=False)) == "reply_cut_off"
    assert parse_draft(None) == "prompt_too_long"


def test_a_draft_keeps_its_provenance_and_is_no_rule_until_it_is_accepted(pool, output):
    report, _ = draft(pool)
    assert (report.num_drafts, report.failed) == (3, {})
    for index, (old, new) in enumerate(zip(rules_in(pool), rules_in(output), strict=True)):
        assert new.is_draft
        assert (new.title, new.rating_rule) == (f"Kindness {index}", TEXTS["rating_rule"])
        assert (new.rule_id, new.origin, new.licence) == (old.rule_id, old.origin, old.licence)
    manifest = json.loads((Path(report.run_dir) / "run.json").read_text())
    assert manifest["identity"]["judge"]["name"] == "scripted"
    with pytest.raises(InputError, match=r"Kindness 0.* is a draft"):
        load_rule_set(output)
    assert accept_drafts(output, ["principle-1"]) == ["principle-1"]
    with pytest.raises(InputError, match="draft"):
        load_rule_set(output)
    assert accept_drafts(output, ["ALL"]) == ["principle-0", "principle-2"]
    assert load_rule_set(output).rules[1].title == "Kindness 1"


def test_a_reply_that_does_not_parse_leaves_a_principle_and_is_named(pool, output):
    report, _ = draft(pool, lambda index: "no" if index == 1 else REPLY)
    assert report.failed == {"principle-1": "not_the_four_texts_as_json"}
    assert rules_in(output)[1] == rules_in(pool)[1]
    for rule_id, suggestion in (("principle-1", ""), ("principle-9", "; did you mean principle-")):
        with pytest.raises(InputError, match=f"{rule_id}: no such draft in {output}{suggestion}"):
            accept_drafts(output, [rule_id])


def test_the_same_call_drafts_only_missing_rules_and_keeps_edits_and_acceptance(pool, output):
    draft(pool, lambda index: "no" if index == 1 else REPLY)
    accept_drafts(output, ["principle-0"])
    rules = [*rules_in(output)]
    write_pool(output, [*rules[:2], rules[2].model_copy(update={"title": "Edited"})])
    report, judge = draft(pool)
    assert (judge.num_asked, report.drafted) == (1, ("principle-1",))
    rules = [*rules_in(output)]
    assert [rule.is_draft for rule in rules] == [False, True, True]
    assert rules[2].title == "Edited"
    assert draft(pool)[1].num_asked == 0


def test_a_judge_does_not_change_the_texts_that_a_rule_has(pool, output):
    texts = {"title": "Truth", "description": "Principle 1 says: be true.", "rating_rule": "True."}
    write_pool(pool, [principle(0, **TEXTS), principle(1, **texts)])
    _, judge = draft(pool)
    assert judge.num_asked == 1
    unchanged, completed = rules_in(output)
    assert unchanged == rules_in(pool)[0]
    assert completed.texts == {**TEXTS, **texts}


def test_an_output_with_rules_of_another_pool_is_refused(pool, output):
    write_pool(output, [principle(7)])
    with pytest.raises(InputError, match="has rule principle-7, which the pool lacks"):
        draft(pool)


def test_drafts_are_accepted_in_toml_files_only(pool):
    path = pool.with_suffix(".jsonl")
    write_in_any_format(path, rules_in(pool))
    with pytest.raises(InputError, match=r"expected a name that ends in \.toml"):
        accept_drafts(path, ["ALL"])


def test_drafting_and_accepting_are_two_calls(pool):
    with pytest.raises(ValidationError, match="give --judge and --output to draft"):
        DraftConfig(pool=pool, judge=SCRIPTED)
    with pytest.raises(ValidationError, match="or --accept alone to accept"):
        DraftConfig(pool=pool, judge=SCRIPTED, accept=("x",))
