"""Give a reward model away as a plain transformers folder: folded, verified, with a card."""
