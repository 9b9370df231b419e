"""From ratings to a trained multi-head reward model and its baselines."""
