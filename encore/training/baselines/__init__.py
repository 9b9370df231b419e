"""Baselines over a frozen model: a linear probe, and a gate that weighs heads by prompt."""
