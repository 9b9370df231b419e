"""Studies in buckets: a local copy, the sending of what changes in it, one driver a run."""
