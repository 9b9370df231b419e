"""`encore rate`: have a judge rate every response of a study under every rule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from encore.config import RateConfig, RatingConfig
from encore.errors import StudyIncompleteError
from encore.options import JsonOption, command
from encore.terminal import print_json, progress_bar, say, warn

if TYPE_CHECKING:
    from rich.progress import Progress

    from encore.rating import RatingRun, ShardOutcome
    from encore.rating_driver import RatingReport


@command
def rate(config: RateConfig, *, json: JsonOption = False) -> None:
    """Have a judge rate every response under every rule; ratings go to Parquet, shard by shard.

    Run the same command again after a crash, a failure or Ctrl-C: only shards that are missing,
    damaged or failed are rated. Changing judge, rules, prompt, data or plan makes a new run beside
    the old one, never a mixture. Exit code 3: finished, but some shards failed.

    Example: encore rate my-study --judge ./my-judge --limit 200
    """
    rate_and_report(
        config.study,
        config,
        only=config.shard or None,
        shard_timeout_seconds=config.shard_timeout_seconds,
        as_json=json,
    )


def rate_and_report(
    study: Path,
    config: RatingConfig,
    *,
    only: Sequence[int] | None = None,
    shard_timeout_seconds: float | None = None,
    as_json: bool = False,
) -> None:
    """Rate, with a progress bar and a closing summary; raises when shards failed."""
    from encore.data.study import open_study
    from encore.rating import open_run
    from encore.rating_driver import choose_shards, rate_run

    run = open_run(open_study(study), config)
    todo = choose_shards(run, only)
    num_ratings = sum(shard.num_pairs for shard in todo) * run.num_prompts_per_pair
    say(
        f"run {run.manifest.run_key}: judge {run.manifest.judge}, {len(run.rule_set.rules)} rules, "
        f"{run.pairs.num_rows} pairs in {len(run.manifest.shards)} shards, {num_ratings} ratings"
    )
    with progress_bar() as bar:
        shown = _Shown(bar, total=num_ratings, num_shards=len(todo))
        try:
            report = rate_run(
                run,
                only=only,
                shard_timeout_seconds=shard_timeout_seconds,
                on_progress=shown.replies,
                on_outcome=shown.shard,
            )
        finally:
            run.judge.close()
    _report(study, run, report, as_json=as_json)


class _Shown:
    """Progress over all shards: a bar on a terminal, elsewhere a line for each finished shard."""

    def __init__(self, bar: Progress, *, total: int, num_shards: int) -> None:
        self._bar = bar
        self._task = bar.add_task("rating", total=total, rate="")
        self._total = total
        self._num_shards = num_shards
        self._num_finished_shards = 0
        self._done: dict[int, int] = {}
        self._started: float | None = None
        self._num_rated = 0

    def replies(self, index: int, num_done: int, _num_asked: int) -> None:
        """Replies of a shard at work. Called from the worker threads."""
        if num_done and self._started is None:
            self._started = time.monotonic()
        self._num_rated += max(0, num_done - self._done.get(index, 0))
        self._done[index] = num_done
        self._update()

    def shard(self, outcome: ShardOutcome) -> None:
        """A finished shard."""
        self._done[outcome.index] = outcome.num_ratings + outcome.num_nulls
        self._num_finished_shards += 1
        self._update()
        if self._bar.disable:
            say(
                f"shard {outcome.index} {outcome.action} ({self._num_finished_shards} of "
                f"{self._num_shards}): {outcome.num_ratings} ratings, {outcome.num_nulls} nulls"
            )

    def _update(self) -> None:
        seconds = time.monotonic() - self._started if self._started is not None else 0.0
        rate = f"{self._num_rated / seconds:,.0f} ratings/s" if seconds > 1 else ""
        self._bar.update(self._task, completed=sum(self._done.copy().values()), rate=rate)


def _report(study: Path, run: RatingRun, report: RatingReport, *, as_json: bool) -> None:
    rated = [outcome for outcome in report.outcomes if outcome.action == "rated"]
    result = {
        "run_key": run.manifest.run_key,
        "num_shards": len(run.manifest.shards),
        "rated": len(rated),
        "reused": report.count("reused"),
        "failed": {str(index): error for index, error in report.failures.items()},
        "num_ratings": sum(outcome.num_ratings for outcome in report.outcomes),
        "num_nulls": sum(outcome.num_nulls for outcome in report.outcomes),
        "null_reasons": dict(report.null_reasons),
        "num_truncated": sum(outcome.num_truncated for outcome in report.outcomes),
    }
    if as_json:
        print_json(result)
    say(f"shards: {report.summary}; ratings: {result['num_ratings']}, nulls: {result['num_nulls']}")
    for reason, count in report.null_reasons.items():
        warn(f"{count} ratings are null: {reason}")
    if result["num_truncated"]:
        warn(f"{result['num_truncated']} prompts were cut from the left to fit the context")
    if report.failures:
        for index, error in report.failures.items():
            say(f"shard {index}: {error}")
        raise StudyIncompleteError(
            f"{len(report.failures)} of {len(run.manifest.shards)} shards failed; run the same "
            f"command again to rate only these (`encore status {study}` lists them)"
        )
    say(f"next: encore analyze {study}")
