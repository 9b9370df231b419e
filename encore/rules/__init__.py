"""From pools of principles to a rule set, and how sound each rule of it is."""
