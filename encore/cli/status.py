"""`encore status`: list the shards that are done, missing, damaged or failed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from encore.cli.output import Renderable, record_table, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.number_text import counted
from encore.data.study_options import RunKeyConfig, StudyConfig
from encore.demo import judge_title

if TYPE_CHECKING:
    from encore.data.rating_runs import RatingStatus


class StatusConfig(RunKeyConfig, StudyConfig):
    """Options of `encore status`."""


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
    runs = [_as_dict(run) for run in statuses]
    show_result({"runs": runs}, chain.from_iterable(map(_output_of, statuses)), as_json=json)
    unfinished = [run for run in statuses if run.unfinished and not sufficiency_note(run)]
    if num_open := sum(len(run.unfinished) for run in unfinished):
        raise StudyIncompleteError(
            f"{counted(num_open, 'shard')} not done; `encore rate` with the options that the run "
            "was begun with rates exactly these"
        )


def _as_dict(status: RatingStatus) -> dict[str, Any]:
    counts = ("num_ratings", "num_nulls")
    return {
        "run_key": status.manifest.run_key,
        "judge": status.manifest.judge,
        "num_shards": len(status.shards),
        "is_complete": status.is_complete,
        **_num_shards_by_state(status),
        **{name: status.total(name) for name in counts},
        "shards": [
            {name: getattr(shard, name) for name in ("index", "state", "detail")}
            | {name: int(shard.footer.get(name, 0)) for name in counts}
            for shard in status.shards
        ],
    }


def _num_shards_by_state(status: RatingStatus) -> dict[str, int]:
    from encore.runs.run_files import ShardStateName

    return {state: status.count(state) for state in get_args(ShardStateName)}


def _output_of(status: RatingStatus) -> Iterator[Renderable]:
    from encore.data.rating_runs import sufficiency_note

    manifest, plan = status.manifest, status.manifest.identity["plan"]
    counts = ", ".join(f"{num} {state}" for state, num in _num_shards_by_state(status).items())
    title = judge_title(manifest.judge, is_synthetic=bool(manifest.synthetic))
    judge = ", ".join((title, *manifest.deviations))
    yield (
        f"run {manifest.run_key}  {judge}  rules "
        f"{manifest.rule_set} ({len(manifest.rules)})  {plan['num_pairs']} pairs, "
        f"{plan['shard_size']} a shard, overlong prompts: {plan['overlong']}\n"
        f"  {counts}  ({status.total('num_ratings')} ratings, {status.total('num_nulls')} nulls)"
    )
    if enough := sufficiency_note(status):
        yield f"  {enough}\n"
    else:
        yield record_table(status.unfinished, {"shard": "index", "state": "state", "why": "detail"})
