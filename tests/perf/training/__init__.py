"""Who takes part in the training throughput comparison, and what they are given."""
