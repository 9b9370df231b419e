"""Samples and labels by people, and their agreement with judges."""
