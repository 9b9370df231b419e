"""Task: statistics of every rule from the validated shards of one run."""

from __future__ import annotations

from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from encore.analysis.analyze import Analysis, analyze


@task(name="analyze", cache_policy=NO_CACHE, persist_result=False)
def analyze_ratings(run_dir: Path) -> Analysis:
    """Entropy, accuracies and ties of every rule of a run, all sources pooled.

    Raises:
        InputError: The run has no finished shard.
    """
    analysis = analyze(run_dir)
    log = get_run_logger()
    for note in analysis.notes:
        log.info("%s", note)
    return analysis
