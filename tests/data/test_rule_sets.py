"""Rule sets load completely and in order; errors name the file, the rule and the key."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.data.records import Rule, rule_id_of
from encore.data.rule_sets import SHIPPED_RULE_SETS, load_rule_set
from encore.rules.pool import read_pool

RULE = {
    "title": "Kindness",
    "description": "Be kind.",
    "preference_rule": "Accept the kinder response.",
    "rating_rule": "The response should be kind.",
}


def write_rules(folder: Path, *rules: dict[str, object]) -> Path:
    lines = ['name = "mine"']
    for rule in rules:
        lines.append("[[rules]]")
        lines += [f"{field} = {value!r}" for field, value in rule.items()]
    path = folder / "rules.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_shipped_sets_are_the_papers_ten_and_twenty_rules():
    ten, twenty = (load_rule_set(name) for name in SHIPPED_RULE_SETS)
    assert (len(ten.rules), len(twenty.rules)) == (10, 20)
    assert twenty.rules[:10] == ten.rules
    assert ten.digest != twenty.digest
    assert twenty.rules[0].rule_id == "respect-for-privacy-and-confidentiality"
    # The text is the paper's, with its grammar.
    assert ten.rules[1].preference_rule.startswith("Accept the response that do not stereotype")


def test_a_users_own_set_loads_by_path_and_keeps_its_order(tmp_path):
    path = write_rules(tmp_path, RULE | {"title": "Zeal"}, RULE | {"rule_id": "a-own"})
    assert load_rule_set(path).rule_ids == ("zeal", "a-own")


def test_a_rating_text_alone_is_a_rule(tmp_path):
    [rule] = load_rule_set(
        write_rules(tmp_path, {"rating_rule": " The reply should be kind. "})
    ).rules
    assert rule == Rule(
        rule_id="the-reply-should-be-kind",
        title="The reply should be kind",
        description="The reply should be kind.",
        preference_rule="",
        rating_rule="The reply should be kind.",
    )


def test_space_around_texts_changes_no_digest(tmp_path):
    plain = load_rule_set(write_rules(tmp_path, RULE))
    spaced = {field: f"  {text} " for field, text in RULE.items()}
    assert load_rule_set(write_rules(tmp_path, spaced)) == plain


def test_the_origin_of_a_rule_changes_no_digest(tmp_path):
    plain = load_rule_set(write_rules(tmp_path, RULE))
    origin = {"source": "pool", "licence": "MIT", "origin": "line 3", "merged_from": []}
    assert load_rule_set(write_rules(tmp_path, RULE | origin)) == plain


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            (RULE, RULE),
            "rule 1 ('Kindness'), rule_id 'kindness' is used twice: rule 0 ('Kindness')",
        ),
        (({**RULE, "rating_rule": " "},), "rule 0 ('Kindness'), key 'rating_rule': String should"),
        (({**RULE, "tite": "x"},), "unknown key 'tite'; did you mean title?"),
        (({"titel": "x"},), "rule 0 ('no title'), unknown key 'titel'; did you mean title"),
        (({**RULE, "description": 3},), "key 'description': Input should be a valid string"),
        (
            ({**RULE, "rule_id": "Not A Slug"},),
            "key 'rule_id': String should match pattern '^[a-z0-9]+",
        ),
        (({"title": "Kindness"},), "rule 0 ('Kindness'), key 'rating_rule': Field"),
        ((), "key 'rules': Field required"),
        (({"title": "A", "description": "B"},), "Field required; `encore rules draft` writes it"),
        (({**RULE, "is_draft": 1},), "rule 0 ('Kindness') is a draft; read its texts"),
    ],
)
def test_an_error_names_file_rule_and_key_and_suggests_a_key(tmp_path, rules, message):
    path = write_rules(tmp_path, *rules)
    with pytest.raises(InputError) as caught:
        load_rule_set(path)
    assert str(caught.value).startswith(f"rule set {path}: ")
    assert message in str(caught.value)


def test_a_file_without_rules_is_refused(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("name = \n", encoding="utf-8")
    with pytest.raises(InputError, match=r"not valid TOML.*line 1"):
        load_rule_set(path)
    with pytest.raises(InputError, match="encore-10, encore-20"):
        load_rule_set("encore-11")


# --- ids ------------------------------------------------------------------------------------------

TITLES = [
    ("Respect for Privacy & Confidentiality", "respect-for-privacy-confidentiality"),
    ("Über Waffen", "uber-waffen"),
    ("Straße", "strasse"),
    ("Правило 1: личные данные", "правило-1-личные-данные"),
    ("不得泄露隐私", "不得泄露隐私"),
    ("プライバシー", "プライバシー"),
    ("क्षमा करें", "क्षमा-करें"),
    ("ＦＵＬＬ width", "full-width"),
]


@pytest.mark.parametrize(("title", "rule_id"), TITLES)
def test_a_title_of_any_script_has_one_id_everywhere(tmp_path, title, rule_id):
    path = write_rules(tmp_path, RULE | {"title": title})
    assert load_rule_set(path).rule_ids == (rule_id,)
    assert [rule.rule_id for rule in read_pool(path).rules] == [rule_id]
    # An id that somebody wrote may have the same form.
    written = write_rules(tmp_path, RULE | {"title": "Other", "rule_id": rule_id})
    assert load_rule_set(written).rule_ids == (rule_id,)
    # Composed and decomposed characters look alike and are one id.
    assert rule_id_of(unicodedata.normalize("NFD", title)) == rule_id


def test_a_title_without_letters_has_a_stable_id_and_nobody_is_told_of_a_pattern(tmp_path):
    path = write_rules(tmp_path, RULE | {"title": "🙂"}, RULE | {"title": "🙁"})
    first, second = load_rule_set(path).rule_ids
    assert first != second
    assert first.startswith("rule-")


def test_rules_without_a_title_in_a_language_without_spaces_have_ids(tmp_path):
    texts = ["回答不应泄露任何人的隐私。", "回答不应含有仇恨言论。"]
    path = write_rules(tmp_path, *({"rating_rule": text} for text in texts))
    assert load_rule_set(path).rule_ids == tuple(text.strip("。") for text in texts)


def test_titles_with_one_id_are_refused_by_both_titles(tmp_path):
    path = write_rules(tmp_path, RULE | {"title": "Öl"}, RULE | {"title": "OL!"})
    with pytest.raises(InputError, match=r"rule 1 \('OL!'\), rule_id 'ol' .* rule 0 \('Öl'\)"):
        load_rule_set(path)
