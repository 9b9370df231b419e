"""The report: one self-contained page about some ratings, and its figures as files."""
