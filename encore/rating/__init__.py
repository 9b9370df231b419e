"""Prompt in, rating out: the paper's rating prompt, the reply parser, the rating run."""
