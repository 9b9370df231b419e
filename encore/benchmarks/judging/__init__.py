"""LLM-as-a-judge on a benchmark: by pair, or by weighted ratings."""
