"""`encore rate`: have a judge rate every response of a study under every rule."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli import rating_options as options
from encore.cli.output import (
    JsonOption,
    StudyArgument,
    console,
    print_json,
    progress_bar,
    say,
    warn,
)
from encore.errors import StudyIncompleteError

if TYPE_CHECKING:
    from encore.config import RatingConfig
    from encore.rating import RatingRun, ShardOutcome
    from encore.rating_driver import RatingReport


def rate(
    study: StudyArgument,
    judge: options.Judge,
    rules: options.Rules = "encore-10",
    shard_size: options.ShardSize = 1000,
    limit: options.Limit = None,
    backend: options.Backend = "vllm",
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    overlong: options.Overlong = "set-aside",
    max_reply_tokens: options.MaxReplyTokens = 16,
    shard_timeout_seconds: options.ShardTimeout = None,
    shard: options.Shards = None,
    engine_arg: options.EngineArgs = None,
    as_json: JsonOption = False,
) -> None:
    """Have a judge rate every response under every rule; ratings go to Parquet, shard by shard.

    Run the same command again after a crash, a failure or Ctrl-C: only shards that are missing,
    damaged or failed are rated. Changing judge, rules, prompt, data or plan makes a new run beside
    the old one, never a mixture. Exit code 3: finished, but some shards failed.

    Example: encore rate my-study --judge ./my-judge --limit 200
    """
    config = options.rating_config(
        judge=judge,
        rules=rules,
        shard_size=shard_size,
        limit=limit,
        backend=backend,
        revision=revision,
        dtype=dtype,
        max_model_len=max_model_len,
        overlong=overlong,
        max_reply_tokens=max_reply_tokens,
        engine_arg=engine_arg,
    )
    rate_and_report(
        study, config, only=shard, shard_timeout_seconds=shard_timeout_seconds, as_json=as_json
    )


def rate_and_report(
    study: Path,
    config: RatingConfig,
    *,
    only: list[int] | None = None,
    shard_timeout_seconds: float | None = None,
    as_json: bool = False,
) -> None:
    """Rate, with a progress bar and a closing summary; raises when shards failed."""
    from encore.rating import open_run
    from encore.rating_driver import choose_shards, rate_run
    from encore.study import open_study

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = open_run(open_study(study), config)
    todo = choose_shards(run, only)
    num_ratings = sum(shard.num_pairs for shard in todo) * run.num_prompts_per_pair
    say(
        f"run {run.manifest.run_key}: judge {run.manifest.judge}, {len(run.rule_set.rules)} rules, "
        f"{run.pairs.num_rows} pairs in {len(run.manifest.shards)} shards, {num_ratings} ratings"
    )
    finished: dict[int, int] = {}
    with progress_bar() as bar:
        task = bar.add_task("rating", total=num_ratings, rate="")

        def on_progress(index: int, num_done: int, _total: int) -> None:
            finished[index] = num_done
            bar.update(task, completed=sum(finished.values()))

        def on_outcome(outcome: ShardOutcome) -> None:
            finished[outcome.index] = outcome.num_ratings + outcome.num_nulls
            bar.update(task, completed=sum(finished.values()))

        try:
            report = rate_run(
                run,
                only=only,
                shard_timeout_seconds=shard_timeout_seconds,
                on_progress=on_progress,
                on_outcome=on_outcome,
            )
        finally:
            run.judge.close()
    _report(study, run, report, as_json=as_json)


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
            console.print(f"shard {index}: {error}", style="red", markup=False, soft_wrap=True)
        raise StudyIncompleteError(
            f"{len(report.failures)} of {len(run.manifest.shards)} shards failed; run the same "
            f"command again to rate only these (`encore status {study}` lists them)"
        )
    say(f"next: encore analyze {study}")
