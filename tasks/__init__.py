"""A stage of `encore` under Prefect: retries, time limits, progress, artifacts; MLflow."""
