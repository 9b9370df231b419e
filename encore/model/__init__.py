"""Multi-head reward models: a transformer trunk, one linear head per rule, and how text gets in."""
