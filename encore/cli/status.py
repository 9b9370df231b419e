"""`encore status`: list the shards that are done, missing, damaged or failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, get_args

from encore.cli.output import Renderable, show_result
from encore.core.command_parser import JsonOption, command
from encore.core.config import option
from encore.core.errors import StudyIncompleteError
from encore.core.number_text import count, counted, first_names
from encore.core.terminal import say, say_next
from encore.data.study_options import RunFilter, StudyConfig

if TYPE_CHECKING:
    from encore.data.rating_runs import RatingStatus

#: Errors, and ranges of shards with the same error, that are listed for a run.
_MAX_PROBLEMS, _MAX_RANGES = 6, 12


class StatusConfig(RunFilter, StudyConfig):
    """Options of `encore status`."""

    remove_empty: bool = option(False)
    """First remove the runs that hold nothing: no finished shard, no kept reply, and no process
    that works on them."""


@command
def status(config: StatusConfig, *, json: JsonOption = False) -> None:
    """List every run of a study with its shards; the digest of every file is checked.

    The values of a file are checked once: a file with the same digest has the same values.

    Exit code 0: complete, or enough (`encore rate --until-weights-within`). 3: shards are missing,
    damaged or failed (with the recorded error); `encore rate` with the same parameters rates
    exactly these.
    """
    from encore.data.empty_runs import remove_empty_runs
    from encore.data.rating_runs import sufficiency_note
    from encore.data.study import open_study
    from encore.tables.pair_details import chosen_statuses

    study = open_study(config.study)
    if config.remove_empty:
        removed = remove_empty_runs(study)
        say(
            f"{counted(len(removed), 'run')} removed that held nothing{': ' * bool(removed)}"
            f"{', '.join(removed)}"
        )
    statuses = chosen_statuses(study, run=config.run, judge=config.judge)
    num_pairs = {source.label: source.num_kept for source in study.sources}
    pairs = ", ".join(f"{label} {count(number)}" for label, number in num_pairs.items())
    show_result(
        {"pairs": num_pairs, "runs": [_as_dict(run) for run in statuses]},
        chain([f"pairs: {pairs or 'none'}"], *map(_output_of, statuses)),
        as_json=json,
    )
    if not statuses:
        say("no ratings yet")
        if num_pairs:
            say_next("rate", config.study, "--judge", "JUDGE")
        else:
            say_next("ingest", config.study, "SOURCE")
    unfinished = [run for run in statuses if run.unfinished and not sufficiency_note(run)]
    if num_open := sum(len(run.unfinished) for run in unfinished):
        raise StudyIncompleteError(
            f"{counted(num_open, 'shard')} not done; `encore rate` with the options that the run "
            "was begun with rates exactly these"
        )
    if statuses:
        say_next("analyze", config.study)


def _as_dict(status: RatingStatus) -> dict[str, Any]:
    from encore.data.rating_runs import null_reasons

    counts = ("num_ratings", "num_nulls")
    return {
        "run_key": status.manifest.run_key,
        "judge": status.manifest.judge,
        "num_shards": len(status.shards),
        "is_complete": status.is_complete,
        **_num_shards_by_state(status),
        **{name: status.total(name) for name in counts},
        **_not_applicable(status),
        "null_reasons": null_reasons(status),
        "shards": [
            {name: getattr(shard, name) for name in ("index", "state", "detail")}
            | {name: int(shard.footer.get(name, 0)) for name in counts}
            for shard in status.shards
        ],
    }


def _not_applicable(status: RatingStatus) -> dict[str, int]:
    """Return the number of ratings whose rule does not apply, if there are any."""
    num_not_applicable = status.total("num_not_applicable")
    return {"num_not_applicable": num_not_applicable} if num_not_applicable else {}


def _num_shards_by_state(status: RatingStatus) -> dict[str, int]:
    from encore.runs.shard_files import ShardStateName

    return {state: status.count(state) for state in get_args(ShardStateName)}


def _output_of(status: RatingStatus) -> Iterator[Renderable]:
    from encore.data.rating_runs import (
        DOES_NOT_APPLY,
        RETRIED_REASONS,
        note_on_label_mass,
        null_reasons,
        sufficiency_note,
    )
    from encore.rating.rating_options import rating_settings
    from encore.runs.shard_files import kept_replies

    manifest = status.manifest
    numbers = [counted(status.total(f"num_{noun}s"), noun) for noun in ("rating", "null")]
    numbers += [f"{count(number)} do not apply" for number in _not_applicable(status).values()]
    counts = ", ".join(f"{n:,} {state}" for state, n in _num_shards_by_state(status).items())
    judge = ", ".join((manifest.judge_title, *manifest.deviations))
    yield (
        f"run {manifest.run_key}  {judge}  rules {manifest.rule_set} ({len(manifest.rules)})\n"
        f"  {counted(manifest.num_pairs, 'pair')}, {manifest.shard_size:,} a shard, "
        f"overlong prompts: {rating_settings(manifest.settings)['overlong']}\n"
        f"  shards: {counts}\n"
        f"  {', '.join(numbers)}"
    )
    if replies := kept_replies(status.run_dir):
        yield f"  kept: {replies}"
    if note := note_on_label_mass(manifest, status.paths):
        yield f"  {note}"
    reasons = null_reasons(status)
    if by_reason := [
        f"{n:,} {reason}" for reason, n in reasons.items() if reason != DOES_NOT_APPLY
    ]:
        yield f"  null: {', '.join(by_reason)}"
    if RETRIED_REASONS & reasons.keys():
        yield (
            "  `encore rate` with the same options and --retry-failed-prompts asks again where the "
            "service refused or failed"
        )
    if enough := sufficiency_note(status):
        yield f"  {enough}"
        return
    shards_by_problem: dict[tuple[str, str], list[int]] = {}
    for shard in status.unfinished:
        shards_by_problem.setdefault((shard.state, shard.detail), []).append(shard.index)
    for (state, reason), indices in islice(shards_by_problem.items(), _MAX_PROBLEMS):
        shards = f"shards {_ranges(indices)} ({count(len(indices))} shards)"
        shards = shards if len(indices) > 1 else f"shard {indices[0]}"
        yield f"  {state}: {shards}{f': {reason}' if reason else ''}"
    if hidden := [*shards_by_problem.values()][_MAX_PROBLEMS:]:
        num_shards = counted(sum(map(len, hidden)), "shard")
        num_errors = counted(len(hidden), "further error")
        yield f"  {num_shards} with {num_errors}; --json lists each shard"


def _ranges(indices: Sequence[int]) -> str:
    """Return ascending numbers as text, runs of neighbours as ranges: ``0 to 4, 7``.

    Of many ranges it has the first ones, and the number of the others.
    """
    present = frozenset(indices)
    starts = [index for index in indices if index - 1 not in present]
    ends = [index for index in indices if index + 1 not in present]
    ranges = [
        f"{start}" if start == end else f"{start} to {end}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return first_names(ranges, limit=_MAX_RANGES)
