"""Importance: each rule is asked about once, what is missing is asked again, null is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encore.core.errors import InputError, StudyIncompleteError
from encore.rules import rule_questions
from encore.rules.importance import ImportanceRun, answers_of, rate_importance
from encore.rules.pool import write_pool
from encore.rules.rule_questions import ask_about_rules, read_replies
from encore.rules.rules_options import ImportanceConfig
from tests.rules.principles import (
    SCRIPTED,
    judge_of,
    principle,
    rated,
    rules_in,
    write_principles,
    write_text_lines,
)
from tests.run_identities import differing_parts

REPLIES = ["0.9", "Score: 0.8", "very important", "1.5", ""]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_principles(tmp_path / "pool.toml", 5)


def test_a_prompt_has_the_texts_of_a_rule_and_reads_no_field_in_them():
    prompt = ImportanceRun.prompt(principle(1, description="Principle 1 says {rule} and {0}."))
    assert "Principle 1 says {rule} and {0}." in prompt
    assert prompt.startswith(ImportanceRun.TEMPLATE.split("{rule}")[0])
    texts = {"title": "T", "description": "D.", "rating_rule": "R.", "preference_rule": "P."}
    prompt = ImportanceRun.prompt(principle(1, **texts))
    assert "title: T\ndescription: D.\npreference rule: P.\nrating rule: R.\n" in prompt


def test_a_reply_that_is_no_number_from_0_to_1_is_null_with_its_reason(pool, tmp_path):
    report = rated(pool, tmp_path / "out", REPLIES.__getitem__)
    assert report.num_ratings == 2
    assert report.null_reasons == {"empty_reply": 1, "not_a_single_number": 1, "out_of_range": 1}
    _, replies = read_replies(tmp_path / "out" / report.run_key, ImportanceRun)
    assert [reply.text for reply in replies.values()] == REPLIES
    ratings = [answer.rating for answer in answers_of(replies).values()]
    assert ratings == [0.9, 0.8, None, None, None]


def test_only_a_failed_shard_is_asked_again(pool, tmp_path):
    def fail_at_4(index: int) -> str:
        if index == 4:
            raise RuntimeError("engine trouble")
        return "0.5"

    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards failed .*engine trouble"):
        rated(pool, tmp_path / "out", fail_at_4)
    config = ImportanceConfig(pool=pool, output=tmp_path / "out", judge=SCRIPTED)
    judge = judge_of(lambda _: "0.5")
    for summary in ("1 rated, 2 reused, 0 failed", "0 rated, 3 reused, 0 failed"):
        assert rate_importance(config, judge=judge).summary == summary
        assert judge.num_asked == 1  # the third shard has one rule


def test_a_folder_holds_the_ratings_of_one_pool(pool, tmp_path):
    people = write_text_lines(
        tmp_path / "anna.csv", ["rule_id,anna", *(f"principle-{index},0.1" for index in range(5))]
    )
    config = ImportanceConfig(pool=pool, output=tmp_path / "out", people=(people,))
    assert rate_importance(config).num_answers == {"anna": 5}
    other_pool = write_principles(tmp_path / "other.toml", 4)
    with pytest.raises(InputError, match="holds the ratings of another pool"):
        rated(other_pool, tmp_path / "out", lambda _: "0.5")


def test_a_text_of_a_pool_changes_the_run_and_the_order_of_its_rules_does_not(pool, tmp_path):
    rules = rules_in(pool)
    keys = []
    for number, changed in enumerate([rules, rules[::-1], [principle(0, title="x"), *rules[1:]]]):
        path = tmp_path / f"{number}.toml"
        write_pool(path, changed)
        keys.append(rated(path, tmp_path / f"out-{number}", lambda _: "0.5").run_key)
    assert keys[0] == keys[1] != keys[2]


class OtherQuestion(ImportanceRun):
    DOING = "rating something else"


class OtherPrompt(ImportanceRun):
    TEMPLATE = ImportanceRun.TEMPLATE + " "


#: Changes by the parts of the identity that they change.
CHANGES: dict[str, dict[str, Any]] = {
    "question": {"kind": OtherQuestion},
    "prompt_sha256": {"kind": OtherPrompt},
    "judge.name": {"judge": judge_of(lambda _: "0.5", name="other")},
    "judge.revision": {"judge": judge_of(lambda _: "0.5", revision="2")},
    "rules_sha256": {"rules": [principle(index) for index in (0, 1, 11)]},
    "plan.num_pairs rules_sha256": {"rules": [principle(index) for index in range(4)]},
    "config.max_reply_tokens": {"max_reply_tokens": 17},
}


def test_every_ingredient_changes_the_key_of_a_question_about_rules(tmp_path, monkeypatch):
    """Each change stands alone: a change of two parts would hide a part that the key lacks."""

    def identity(*, kind=ImportanceRun, judge=None, rules=None, **options: Any) -> dict[str, Any]:
        config = ImportanceConfig(pool=tmp_path, output=tmp_path, judge=SCRIPTED, **options)
        rules = rules or [principle(index) for index in range(3)]
        judge = judge or judge_of(lambda _: "0.5")
        return ask_about_rules(rules, kind, config, folder=tmp_path, judge=judge)[0].identity

    first = identity()
    for parts, change in CHANGES.items():
        assert differing_parts(first, identity(**change)) == set(parts.split())
    monkeypatch.setattr(rule_questions, "_SHARD_SIZE", 3)
    assert differing_parts(first, identity()) == {"plan.shard_size"}


def test_a_prompt_beyond_the_context_is_null(pool, tmp_path):
    config = ImportanceConfig(pool=pool, output=tmp_path / "out", judge=SCRIPTED)
    judge = judge_of(lambda _: "0.5", max_model_len=100)
    assert rate_importance(config, judge=judge).null_reasons == {"prompt_too_long": 5}
    assert judge.num_asked == 0
