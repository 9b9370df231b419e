"""Flows: which tasks run, in which order. Composition only."""
