"""Weights of rules: schemes, their comparison, and how sure a weight is."""
