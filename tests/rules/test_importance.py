"""Importance: each rule is asked about once, what is missing is asked again, null is counted."""

from __future__ import annotations

from typing import Any

import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.rules import rule_questions
from encore.rules.importance import ImportanceRun, answers_of, rate_importance
from encore.rules.pool import write_pool
from encore.rules.rule_questions import ask_about_rules, read_replies
from encore.rules.rules_config import ImportanceConfig, SelectConfig
from encore.rules.select import select_rules
from tests.rules.principles import (
    SCRIPTED,
    judge_of,
    principle,
    rated,
    rules_in,
    write_answers,
    write_principles,
)
from tests.run_identities import differing_parts

REPLIES = ["0.9", "Score: 0.8", "very important", "1.5", ""]


@pytest.fixture
def pool(tmp_path):
    return write_principles(tmp_path / "pool.toml", 5)


def test_the_prompt_has_the_rules_texts_and_reads_nothing_in_them_as_its_own():
    text = ImportanceRun.prompt(principle(1, description="Principle 1 says {rule} and {0}."))
    assert "Principle 1 says {rule} and {0}." in text
    assert text.startswith(ImportanceRun.TEMPLATE.split("{rule}")[0])
    texts = {"title": "T", "description": "D.", "rating_rule": "R.", "preference_rule": "P."}
    whole = ImportanceRun.prompt(principle(1, **texts))
    assert "title: T\ndescription: D.\npreference rule: P.\nrating rule: R.\n" in whole


def test_a_reply_that_is_no_number_from_0_to_1_is_null_with_its_reason(pool, tmp_path):
    report = rated(pool, tmp_path / "out", REPLIES.__getitem__)
    assert report["num_ratings"] == 2
    assert report["null_reasons"] == {"empty_reply": 1, "not_a_single_number": 1, "out_of_range": 1}
    _, replies = read_replies(tmp_path / "out" / report["run_key"], ImportanceRun)
    assert [reply.text for reply in replies.values()] == REPLIES
    ratings = [answer.rating for answer in answers_of(replies).values()]
    assert ratings == [0.9, 0.8, None, None, None]


def test_the_same_call_again_asks_nothing_and_a_failed_shard_alone_is_asked_again(pool, tmp_path):
    def fail_at_4(index: int) -> str:
        if index == 4:
            raise RuntimeError("engine trouble")
        return "0.5"

    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards failed .*engine trouble"):
        rated(pool, tmp_path / "out", fail_at_4)
    config = ImportanceConfig(pool=pool, output=tmp_path / "out", judge=SCRIPTED)
    judge = judge_of(lambda _: "0.5")
    assert rate_importance(config, judge=judge)["summary"] == "1 rated, 2 reused, 0 failed"
    assert judge.num_asked == 1  # the third shard has one rule
    assert rate_importance(config, judge=judge)["summary"] == "0 rated, 3 reused, 0 failed"
    assert judge.num_asked == 1


def test_judges_and_people_lie_beside_each_other_in_one_folder_for_one_pool(pool, tmp_path):
    out = tmp_path / "out"
    rated(pool, out, lambda _: "0.5", name="first")
    rated(pool, out, lambda _: "0.7", name="second")
    lines = ["rule_id,anna", *(f"principle-{index},0.1" for index in range(5))]
    config = ImportanceConfig(
        pool=pool, output=out, people=(write_answers(tmp_path / "anna.csv", lines),)
    )
    assert rate_importance(config)["num_answers"] == {"anna": 5}
    selection = select_rules(SelectConfig(folder=out, top=1, output=tmp_path / "rules.toml"))
    assert {*selection["rules"][0]["ratings"]} == {"anna", "first", "second"}
    other = write_principles(tmp_path / "other.toml", 4)
    with pytest.raises(InputError, match="holds the ratings of another pool"):
        rated(other, out, lambda _: "0.5")


def test_the_order_of_a_pool_changes_no_run_and_a_text_does(pool, tmp_path):
    rules = rules_in(pool)
    keys = set()
    for number, changed in enumerate([rules, rules[::-1], [principle(0, title="x"), *rules[1:]]]):
        path = tmp_path / f"{number}.toml"
        write_pool(path, changed)
        keys.add(rated(path, tmp_path / f"out-{number}", lambda _: "0.5")["run_key"])
    assert len(keys) == 2


class OtherQuestion(ImportanceRun):
    DOING = "rating something else"


class OtherPrompt(ImportanceRun):
    TEMPLATE = ImportanceRun.TEMPLATE + " "


#: By the part of the identity that changes.
CHANGES: dict[str, dict[str, Any]] = {
    "question": {"kind": OtherQuestion},
    "prompt_sha256": {"kind": OtherPrompt},
    "judge.name": {"judge": judge_of(lambda _: "0.5", name="other")},
    "judge.revision": {"judge": judge_of(lambda _: "0.5", revision="2")},
    "rules_sha256": {"rules": [principle(place + (place == 2) * 9) for place in range(3)]},
    "plan.num_pairs rules_sha256": {"rules": [principle(place) for place in range(4)]},
    "decoding.max_reply_tokens": {"max_reply_tokens": 17},
}


def test_every_ingredient_changes_the_key_of_a_question_about_rules(tmp_path, monkeypatch):
    """Each alone: what changes two parts would hide that one of them is not in the key."""

    def identity(*, kind=ImportanceRun, judge=None, rules=None, **options: Any) -> dict[str, Any]:
        config = ImportanceConfig(pool=tmp_path, output=tmp_path, judge=SCRIPTED, **options)
        rules = rules or [principle(place) for place in range(3)]
        judge = judge or judge_of(lambda _: "0.5")
        return ask_about_rules(rules, kind, config, folder=tmp_path, judge=judge)[0].identity

    first = identity()
    for parts, change in CHANGES.items():
        assert differing_parts(first, identity(**change)) == set(parts.split())
    monkeypatch.setattr(rule_questions, "_SHARD_SIZE", 3)
    assert differing_parts(first, identity()) == {"plan.shard_size"}


def test_a_prompt_beyond_the_context_is_null(pool, tmp_path):
    config = ImportanceConfig(pool=pool, output=tmp_path / "out", judge=SCRIPTED)
    short = judge_of(lambda _: "0.5", max_model_len=100)
    assert rate_importance(config, judge=short)["null_reasons"] == {"prompt_too_long": 5}
    assert short.num_asked == 0
