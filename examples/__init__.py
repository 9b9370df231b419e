"""Scripts that made what the demo ships, and notebooks."""
