"""Task: from statistics of rules to a weight for each."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from encore.weighting.scheme import SchemeOptions
from encore.weighting.weigh import WeighedRules
from encore.weighting.weigh import weigh_rules as weigh


@task(name="weigh", cache_policy=NO_CACHE, persist_result=False)
def weigh_rules(run_dir: Path, *, scheme: str, options: SchemeOptions) -> WeighedRules:
    """The weights of a scheme for the rules of a run.

    Raises:
        InputError: An unknown scheme, an impossible option, a rule without a single rating.
    """
    return weigh(run_dir, scheme=scheme, options=options)
