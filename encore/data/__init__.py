"""Studies, preference pairs, rule sets, and a reader for each data format."""
