"""Tasks: call `encore`, return a small manifest. Retries, time limits and tags live here."""
