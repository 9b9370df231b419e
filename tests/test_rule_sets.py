"""Rule sets load whole, in order and with errors that name file, rule and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.data.rules import SHIPPED_RULE_SETS, load_rule_set
from encore.errors import InputError

RULE = {
    "title": "Kindness",
    "description": "Be kind.",
    "preference_rule": "Accept the kinder response.",
    "rating_rule": "The response should be kind.",
}


def write_rules(folder: Path, *rules: dict[str, object], name: str = "mine") -> Path:
    lines = [f'name = "{name}"']
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
    assert twenty.rules[8].rule_id == "non-encouragement-of-violence"
    assert twenty.rules[10].rule_id == "promotion-of-mental-well-being"
    # The paper's grammar, too.
    assert ten.rules[1].preference_rule.startswith("Accept the response that do not stereotype")


def test_a_users_own_set_loads_by_path_and_keeps_its_order(tmp_path):
    path = write_rules(tmp_path, RULE | {"title": "Zeal"}, RULE | {"rule_id": "a-own"})
    assert load_rule_set(path).rule_ids == ("zeal", "a-own")


def test_changing_any_text_or_the_order_changes_the_digest(tmp_path):
    one, two = RULE, RULE | {"title": "Other"}
    digests = {
        load_rule_set(write_rules(tmp_path, *rules)).digest
        for rules in (
            (one, two),
            (two, one),
            (one,),
            *((one | {field: "x"}, two) for field in RULE),
        )
    }
    assert len(digests) == 3 + len(RULE)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((RULE, RULE), "rule_id 'kindness' is used by rules 0 and 1"),
        (({**RULE, "rating_rule": ""},), "line 6, rule 0 ('Kindness'), key 'rating_rule' is \"\""),
        (
            (RULE, {**RULE, "weigth": "x"}),
            "line 12, rule 1 ('Kindness'), unknown key 'weigth'; keys",
        ),
        (
            ({**RULE, "tite": "x"},),
            "line 7, rule 0 ('Kindness'), unknown key 'tite'; did you mean title?",
        ),
        (
            ({**RULE, "description": 3},),
            "line 4, rule 0 ('Kindness'), key 'description' is 3, expected text",
        ),
        (
            ({**RULE, "rule_id": "Not A Slug"},),
            "line 7, rule 0 ('Kindness'), key 'rule_id' is 'Not A",
        ),
        (({**RULE, "title": "日本"},), "rule 0 ('日本'), key 'rule_id' is ''"),
        (
            (RULE, {key: text for key, text in RULE.items() if key != "preference_rule"}),
            "rule 1 ('Kindness'), key 'preference_rule' is missing",
        ),
    ],
)
def test_an_error_names_file_line_rule_and_key_and_what_was_meant(tmp_path, rules, said):
    path = write_rules(tmp_path, *rules)
    with pytest.raises(InputError) as caught:
        load_rule_set(path)
    assert str(caught.value).startswith(f"rule set {path}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (f'name = "mine"\n{rules}\n', r"expected one \[\[rules\]\] table or more")
            for rules in ("", "rules = []", "rules = 3", "[rules]\ntitle = 'x'")
        ),
        ("name = \n", "not valid TOML.*line 1"),
    ],
)
def test_a_file_without_rules_is_refused(tmp_path, text, said):
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_rule_set(path)
    with pytest.raises(InputError, match="encore-10, encore-20"):
        load_rule_set("encore-11")
