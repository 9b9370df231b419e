"""`encore status`: which shards are done, missing, damaged or failed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from encore.cli.output import Shown, record_table, show_result, shown_judge
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.data.study_config import RunKeyConfig, StudyConfig

if TYPE_CHECKING:
    from encore.data.rating_runs import RatingStatus


class StatusConfig(RunKeyConfig, StudyConfig):
    """Which study and run to look at."""


@command
def status(config: StatusConfig, *, json: JsonOption = False) -> None:
    """List every run of a study with its shards; every file's digest and values are checked.

    Exit code 0: complete, or enough (`encore rate --until-weights-within`). 3: shards are missing,
    damaged or failed (with the recorded error); `encore rate` with the same parameters rates
    exactly these.
    """
    from encore.data.rating_runs import chosen_runs, run_status, sufficiency_note
    from encore.data.study import open_study

    run_dirs = chosen_runs(open_study(config.study).ratings_dir, config.run)
    if not run_dirs:
        raise InputError(f"{config.study}: no ratings yet; run `encore rate` first")
    statuses = [run_status(run_dir) for run_dir in run_dirs]
    runs = [_as_dict(found) for found in statuses]
    show_result({"runs": runs}, chain.from_iterable(map(_shown, statuses)), as_json=json)
    unfinished = [found for found in statuses if found.unfinished and not sufficiency_note(found)]
    if num_open := sum(len(found.unfinished) for found in unfinished):
        raise StudyIncompleteError(
            f"{counted(num_open, 'shard')} not done; `encore rate` with the options that the run "
            "was begun with rates exactly these"
        )


def _as_dict(found: RatingStatus) -> dict[str, Any]:
    counts = ("num_ratings", "num_nulls")
    return {
        "run_key": found.manifest.run_key,
        "judge": found.manifest.judge,
        "num_shards": len(found.shards),
        "is_complete": found.is_complete,
        **_counts(found),
        **{name: found.total(name) for name in counts},
        "shards": [
            {name: getattr(shard, name) for name in ("index", "state", "detail")}
            | {name: int(shard.footer.get(name, 0)) for name in counts}
            for shard in found.shards
        ],
    }


def _counts(found: RatingStatus) -> dict[str, int]:
    from encore.runs.run_files import ShardStateName

    return {state: found.count(state) for state in get_args(ShardStateName)}


def _shown(found: RatingStatus) -> Iterator[Shown]:
    from encore.data.rating_runs import sufficiency_note

    manifest, plan = found.manifest, found.manifest.identity["plan"]
    counts = ", ".join(f"{num} {state}" for state, num in _counts(found).items())
    judge = ", ".join((shown_judge(manifest), *manifest.deviations))
    yield (
        f"run {manifest.run_key}  {judge}  rules "
        f"{manifest.rule_set} ({len(manifest.rules)})  {plan['num_pairs']} pairs, "
        f"{plan['shard_size']} a shard, overlong prompts: {plan['overlong']}\n"
        f"  {counts}  ({found.total('num_ratings')} ratings, {found.total('num_nulls')} nulls)"
    )
    if enough := sufficiency_note(found):
        yield f"  {enough}\n"
    else:
        yield record_table(found.unfinished, {"shard": "index", "state": "state", "why": "detail"})
