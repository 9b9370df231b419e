"""What training will need before anything is loaded: memory by part, hours, and what fits."""
