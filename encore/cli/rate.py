"""`encore rate`: have a judge rate every response of a study under every rule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli.output import judge_title, warn_of_failures
from encore.core.errors import StudyIncompleteError
from encore.core.number_text import amount, counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.rating.rating_config import BatchConfig, RateConfig

if TYPE_CHECKING:
    from encore.data.rating_runs import RatingManifest
    from encore.rating.rating_plan import Comparison
    from encore.runs.local_engines import JobRunner
    from encore.runs.shard_runner import RunReport


@command
def rate(config: RateConfig, batch: BatchConfig, *, json: JsonOption = False) -> None:
    """Have a judge rate every response under every rule; ratings go to Parquet, shard by shard.

    Run the same command again after a crash, a failure or Ctrl-C: only shards that are missing,
    damaged or failed are rated. Changing judge, rules, prompt, data or plan makes a new run beside
    the old one, never a mixture. Exit code 3: finished, but some shards failed, or the budget is
    used up. With --until-weights-within, the same command with a smaller share goes on.

    Example: encore rate my-study --judge ./my-judge --limit 200
    """
    from encore.data.study import open_study
    from encore.rating.batch_files import open_batch_run, write_requests
    from encore.rating.rating_plan import compare_with_plan
    from encore.rating.rating_run import open_run, rating_job_runner
    from encore.runs.shard_runner import work_through

    study = open_study(config.study)
    is_batch = bool(batch.batch_file or batch.batch_results)
    run = open_batch_run(study, config, batch) if is_batch else open_run(study, config)
    manifest = run.manifest
    num_pairs = sum(shard.num_pairs for shard in run.job().shards)
    say(
        f"run {manifest.run_key}: {judge_title(manifest)}, {len(manifest.rules)} rules, "
        f"{manifest.num_pairs} pairs in {len(manifest.shards)} shards, "
        f"{num_pairs * manifest.rows_per_pair} ratings"
    )
    if batch.batch_file is not None:
        _report_requests(manifest, write_requests(run, batch.batch_file), as_json=json)
        return
    with terminal_reporter() as reporter:
        try:
            run_job: JobRunner = partial(work_through, reporter=reporter)
            if not is_batch:  # its answers are in this process
                run_job = rating_job_runner(study, config, reporter=reporter)
            report = run_job(run.job(reporter=reporter))
        finally:
            run.judge.close()
    plan = compare_with_plan(run, report)
    _report(config, manifest, report, plan, as_json=json)


def _report_requests(
    manifest: RatingManifest, written: Mapping[Path, int], *, as_json: bool
) -> None:
    if as_json:
        files = {str(path): num_requests for path, num_requests in written.items()}
        print_json({"run_key": manifest.run_key, "files": files})
    if not written:
        say("nothing is left to ask: no file was written")
        return
    for path, num_requests in written.items():
        say(f"{path}: {counted(num_requests, 'request')}")
    say("next: give each file to the provider, then the same command with --batch-results FILE")


def _report(
    config: RateConfig,
    manifest: RatingManifest,
    report: RunReport,
    plan: Comparison,
    *,
    as_json: bool,
) -> None:
    from encore.rating.replies import note_on_refusals

    null_reasons = report.counts_by("null_reasons")
    result = {
        "run_key": manifest.run_key,
        "num_shards": len(manifest.shards),
        "rated": report.count("rated"),
        "reused": report.count("reused"),
        "failed": {str(index): error for index, error in report.failures.items()},
        "num_ratings": report.total("num_ratings"),
        "num_nulls": report.total("num_nulls"),
        "null_reasons": null_reasons,
        "num_truncated": report.computed("num_truncated"),
        "num_known": report.computed("num_known"),
        "plan": plan,
    }
    if config.limits:
        stop = report.early_stop
        # The keys of runs of earlier versions.
        result["ending"] = stop and {"reason": stop.reason, "is_enough": stop.is_success}
    if as_json:
        print_json(result)
    say(f"shards: {report.summary}; ratings: {result['num_ratings']}, nulls: {result['num_nulls']}")
    for name, values in plan.items():
        planned, actual = (amount(values[key]) for key in ("planned", "actual"))
        say(f"{name.removeprefix('num_').replace('_', ' ')}: {actual}; planned: {planned}")
    if result["num_known"]:
        say(f"{result['num_known']} ratings are copies of those of other runs of this study")
    for reason, count in null_reasons.items():
        warn(f"{count} ratings are null: {reason}")
    if note := note_on_refusals(report):
        warn(note)
    if result["num_truncated"]:
        warn(f"{result['num_truncated']} prompts were cut from the left to fit the context")
    warn_of_failures(report.failures, len(manifest.shards))
    if report.early_stop is not None:
        if not report.early_stop.is_success:
            raise StudyIncompleteError(report.early_stop.reason)
        say(report.early_stop.reason)
    say(f"next: encore analyze {config.study}")
