"""MLflow: the runs, metrics and models of a study's files. No other room imports MLflow."""
