"""Head 0 is the preference head; the rules' heads come after it."""

from __future__ import annotations

from encore.weighting.preference_head import has_preference_head, rule_heads


def test_rule_heads_are_all_heads_but_head_0() -> None:
    assert rule_heads(("preference", "privacy", "harm")) == ("privacy", "harm")
    assert rule_heads(["privacy", "harm"]) == ("privacy", "harm")


def test_only_the_first_of_several_heads_is_head_0() -> None:
    """A rule of this name behind other rules is a rule, and so is the only head of a model."""
    assert not has_preference_head(("privacy", "preference"))
    assert not has_preference_head(("preference",))
    assert rule_heads(("preference",)) == ("preference",)
