"""LLM judges on a benchmark: by pair, or by weighted ratings."""
