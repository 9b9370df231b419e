"""Scripts that made the demo's data and judge."""
