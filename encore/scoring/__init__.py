"""Every head's score for both responses of every pair, computed once and kept."""
