"""Export a reward model as a plain transformers folder: folded, verified, with a card."""
