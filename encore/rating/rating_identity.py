"""Make the identity of a rating run, and choose its number of pairs in a shard.

The number is part of the plan, and so of the key. Where the user gives none, it depends on the
machine that begins the run. A machine that continues the run finds it in the folder of the runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError
from encore.data.rating_runs import RatingManifest
from encore.data.records import RESPONSES
from encore.judges.base import Judge
from encore.judges.gpu_groups import visible_gpus
from encore.rating.decision_prompts import DecisionPrompt
from encore.rating.prompts import PromptMaker
from encore.rating.rating_options import RatingConfig
from encore.rating.replies import PARSER_VERSION
from encore.rating.shard_rating import ShardRater
from encore.runs.identity import run_identity
from encore.runs.manifest import list_runs, num_computed_pairs, read_manifest

#: Order of a plan's pairs (`encore.data.pairs.planned_pairs`).
_PLAN_ORDER = "pair_id"
#: Calls of the judge in a shard. On a processor a small model answers one to ten a second.
_NUM_CALLS, _NUM_CALLS_ON_CPU = 20_000, 2_000


def rating_identity(
    rater: ShardRater,
    *,
    data_sha256: str,
    num_pairs: int,
    folder: Path,
    kind: type[RatingManifest] = RatingManifest,
) -> dict[str, Any]:
    """Return the identity of the run that a rater works on.

    Args:
        rater: Config, judge and prompts of the run.
        data_sha256: Digest of the data that the pairs are taken from.
        num_pairs: Number of pairs of the plan.
        folder: Folder of the runs. Without a size of its own in the config, the run takes that of
            the run there which differs in nothing else.
        kind: Class of the run's manifest.
    """
    config, prompts, questions = rater.config, rater.prompts, None
    if isinstance(prompts.template, DecisionPrompt):
        rules = prompts.rule_set.rules
        questions = prompts.template.facts(
            rules, levels=rater.decoding.labels, per_request=prompts.rules_per_request
        )
    shard_size = config.shard_size or _default_shard_size(rater.judge, prompts)
    identity = run_identity(
        config,
        kind=RatingConfig,
        order=_PLAN_ORDER,
        num_pairs=num_pairs,
        shard_size=shard_size,
        judge=dataclasses.asdict(rater.judge.identity),
        prompt_sha256=prompts.template.digest,
        rules_sha256=prompts.rule_set.digest,
        data_sha256=data_sha256,
        parser=PARSER_VERSION,
        questions=questions,
        responses=None if prompts.responses == RESPONSES else list(prompts.responses),
    )
    return identity if config.shard_size else _identity_begun(folder, identity, kind)


def _default_shard_size(judge: Judge, prompts: PromptMaker) -> int:
    """Return the number of pairs in a shard of a run that begins on this machine."""
    is_here = judge.identity.backend != "http" and judge.num_engines == 1
    num_calls = _NUM_CALLS_ON_CPU if is_here and not visible_gpus() else _NUM_CALLS
    return max(1, num_calls // prompts.num_prompts_per_pair)


def _identity_begun(
    folder: Path, identity: Mapping[str, Any], kind: type[RatingManifest]
) -> dict[str, Any]:
    """Return the identity of the run in a folder that differs in its shards alone, if there is one.

    Of several such runs, the one with the most pairs counts. Without one, it is ``identity``.
    """
    begun: dict[int, dict[str, Any]] = {}
    for run_dir in list_runs(folder, kind):
        with contextlib.suppress(EncoreError):  # a damaged manifest says so where its run is opened
            manifest = read_manifest(run_dir, kind)
            plan = {**identity["plan"], "shard_size": manifest.shard_size}
            if manifest.identity == {**identity, "plan": plan}:
                begun.setdefault(num_computed_pairs(run_dir, manifest), manifest.identity)
    return begun[max(begun)] if begun else dict(identity)
