"""`encore status`: which shards are done, missing, damaged or failed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from encore.cli.output import JsonOption, RunOption, StudyArgument, out, plain_table, print_json
from encore.errors import InputError, StudyIncompleteError

if TYPE_CHECKING:
    from encore.shards import RunStatus, ShardStateName


def status(study: StudyArgument, run: RunOption = None, as_json: JsonOption = False) -> None:
    """List every run of a study with its shards; every file's digest is checked.

    Exit code 0: complete. 3: shards are missing, damaged or failed (with the recorded error);
    `encore rate` with the same parameters rates exactly these.
    """
    from encore.data.study import open_study
    from encore.shards import choose_run, list_runs, run_status

    ratings_dir = open_study(study).ratings_dir
    run_dirs = list_runs(ratings_dir) if run is None else (choose_run(ratings_dir, run),)
    if not run_dirs:
        raise InputError(f"{study}: no ratings yet; run `encore rate` first")
    statuses = [run_status(run_dir) for run_dir in run_dirs]
    if as_json:
        print_json({"runs": [_as_dict(found) for found in statuses]})
    else:
        for found in statuses:
            _print(found)
    open_shards = sum(len(found.shards) - found.count("done") for found in statuses)
    if open_shards:
        raise StudyIncompleteError(
            f"{open_shards} shards are not done; run `encore rate` again with the parameters of "
            "that run to rate exactly these"
        )


_COUNTED: tuple[ShardStateName, ...] = ("done", "missing", "damaged", "failed")


def _as_dict(found: RunStatus) -> dict[str, object]:
    return {
        "run_key": found.manifest.run_key,
        "judge": found.manifest.judge,
        "num_shards": len(found.shards),
        "is_complete": found.is_complete,
        **{state: found.count(state) for state in _COUNTED},
        "num_ratings": sum(shard.num_ratings for shard in found.shards),
        "num_nulls": sum(shard.num_nulls for shard in found.shards),
        "shards": [dataclasses.asdict(shard) for shard in found.shards],
    }


def _print(found: RunStatus) -> None:
    summary = _as_dict(found)
    counts = ", ".join(f"{summary[state]} {state}" for state in _COUNTED)
    plan = found.manifest.identity["plan"]
    out.print(
        f"run {summary['run_key']}  judge {summary['judge']}  rules {found.manifest.rule_set} "
        f"({len(found.manifest.rules)})  {plan['num_pairs']} pairs, {plan['shard_size']} a shard, "
        f"overlong prompts: {plan['overlong']}\n"
        f"  {counts}  ({summary['num_ratings']} ratings, {summary['num_nulls']} nulls)",
        soft_wrap=True,
    )
    rows = [
        (shard.index, shard.state, shard.detail) for shard in found.shards if shard.state != "done"
    ]
    if rows:
        out.print(plain_table(("shard", "state", "why"), rows, title=""))
