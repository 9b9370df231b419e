"""Score both responses of every pair under every head, once, and keep the scores on disk."""
