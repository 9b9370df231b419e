"""The synthetic world of the demo: its sentences, the pairs drawn from it, and its judge."""
