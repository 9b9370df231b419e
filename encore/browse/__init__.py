"""A local, read-only page over the pairs, replies and ratings of a study."""
