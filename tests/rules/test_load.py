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


def test_the_shipped_sets_have_ten_and_twenty_rules_with_the_same_first_ten():
    ten, twenty = (load_rule_set(name) for name in SHIPPED_RULE_SETS)
    assert (len(ten.rules), len(twenty.rules)) == (10, 20)
    assert twenty.rules[:10] == ten.rules
    assert ten.digest != twenty.digest


def test_rule_ids_are_kebab_case_titles():
    rules = load_rule_set("encore-20").rules
    assert rules[0].rule_id == "respect-for-privacy-and-confidentiality"
    assert rules[8].rule_id == "non-encouragement-of-violence"
    assert rules[10].rule_id == "promotion-of-mental-well-being"


def test_texts_are_the_papers_including_its_grammar():
    rule = load_rule_set("encore-10").rules[1]
    assert rule.preference_rule.startswith("Accept the response that do not stereotype")


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
    ("rules", "named"),
    [
        ((RULE, RULE), ["rule_id", "'kindness'", "rules 0 and 1"]),
        (({**RULE, "rating_rule": ""},), ["rule 0 ('Kindness')", "rating_rule"]),
        (({**RULE, "extra": "x"},), ["rule 0 ('Kindness')", "extra"]),
        (({**RULE, "description": 3},), ["rule 0 ('Kindness')", "description"]),
        (({**RULE, "rule_id": "Not A Slug"},), ["rule 0 ('Kindness')", "rule_id"]),
        (({**RULE, "title": "日本"},), ["rule 0", "rule_id"]),
        (
            (RULE, {key: text for key, text in RULE.items() if key != "preference_rule"}),
            ["rule 1 ('Kindness')", "preference_rule"],
        ),
    ],
)
def test_an_error_names_file_rule_and_field(tmp_path, rules, named):
    path = write_rules(tmp_path, *rules)
    with pytest.raises(InputError) as caught:
        load_rule_set(path)
    for part in [str(path), *named]:
        assert part in str(caught.value)


def test_a_set_without_rules_is_refused(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('name = "mine"\nrules = []\n', encoding="utf-8")
    with pytest.raises(InputError, match="rules"):
        load_rule_set(path)


def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("name = \n", encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        load_rule_set(path)


def test_an_unknown_name_lists_the_shipped_sets():
    with pytest.raises(InputError, match="encore-10, encore-20"):
        load_rule_set("encore-11")
