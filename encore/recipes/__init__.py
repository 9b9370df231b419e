"""Recipes: named configurations of whole runs, from preference pairs to a benchmark's table."""
