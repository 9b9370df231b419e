"""From pools of principles to a rule set: merge, compare, check."""
