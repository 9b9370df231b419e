"""Measure rules: spread of ratings, accuracy on preferences, and whether the two go together."""
