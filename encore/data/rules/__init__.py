"""Rule sets: one TOML per set, shipped or the user's own."""

from encore.data.rules.load import SHIPPED_RULE_SETS, load_rule_set

__all__ = ["SHIPPED_RULE_SETS", "load_rule_set"]
