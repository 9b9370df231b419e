"""Choose the number of pairs in a shard where the user gives none.

The number is part of a plan, and so of a key. It depends on the machine that begins the run, so a
machine that continues it looks for the run in the folder of the runs first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError
from encore.data.rating_runs import RatingManifest
from encore.judges.base import Judge
from encore.judges.gpu_groups import visible_gpus
from encore.runs.manifest import list_runs, num_computed_pairs, read_manifest

#: Calls of the judge in a shard. On a processor a small model answers one to ten a second.
_NUM_CALLS, _NUM_CALLS_ON_CPU = 20_000, 2_000


def default_shard_size(judge: Judge, *, prompts_per_pair: int) -> int:
    """Return the number of pairs in a shard of a run that begins on this machine."""
    is_here = judge.identity.backend != "http" and judge.num_engines == 1
    num_calls = _NUM_CALLS_ON_CPU if is_here and not visible_gpus() else _NUM_CALLS
    return max(1, num_calls // prompts_per_pair)


def identity_begun(
    folder: Path, identity: Mapping[str, Any], *, kind: type[RatingManifest]
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
