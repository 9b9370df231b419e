"""`encore rate`: have a judge rate every response of a study under every rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from encore.cli.output import warn_of_failures, warn_of_synthetic
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.number_text import amount, counted
from encore.core.terminal import print_json, say, say_next, terminal_reporter, warn
from encore.data.study_options import StudyArgument
from encore.rating.rating_options import BatchConfig, CheckConfig, RatingConfig, RatingRunOptions

if TYPE_CHECKING:
    from encore.rating.batch_files import BatchRequests
    from encore.rating.rating_run import RatingResult
    from encore.runs.worker import RunReport


#: What is said of the replies with a remark (`encore.judges.base`).
_REMARKS = {
    "usage_estimated": "without token counts, or with impossible ones: upper estimates count",
    "end_unknown": "without a finish_reason that is known here: they count as complete",
    "text_mended": "with characters that no file can hold: U+FFFD stands for each",
}


@command
def rate(
    study: StudyArgument,
    config: RatingConfig,
    how: RatingRunOptions,
    batch: BatchConfig,
    check: CheckConfig,
    *,
    json: JsonOption = False,
) -> None:
    """Have a judge rate every response under every rule; ratings go to Parquet, shard by shard.

    Run the same command again after a crash, a failure or Ctrl-C: only shards that are missing,
    damaged or failed are rated. Changing judge, rules, prompt, data or plan makes a new run beside
    the old one, never a mixture. Exit code 3: finished, but some shards failed, or the budget is
    used up. With --until-weights-within, the same command with a smaller share goes on.

    Example: encore rate my-study --judge ./my-judge --limit 200
    """
    from encore.data.study import open_study
    from encore.rating.batch_files import BatchJudge, write_requests
    from encore.rating.rating_run import open_run, rate_run

    _refuse_combinations(config, how, batch, check)
    second = check.second_run(config)
    opened = open_study(study)
    is_in_files = batch.batch_file or batch.batch_results
    judge = BatchJudge(config.judge, how) if is_in_files else None
    with terminal_reporter() as reporter:
        run = open_run(opened, config, how, judge=judge)
        checked = None
        if second is not None:
            check_run = open_run(opened, second, how, judge=run.judge)
            if not check_run.run_dir.exists():  # a judge that cannot answer is refused now
                check_run.judge.check(check_run.rater.decoding)
        if judge is not None:
            judge.read_results(run, batch.batch_results)
        if batch.batch_file is not None:
            requests = write_requests(run, batch.batch_file, reporter=reporter)
        else:
            keeps_judge = check.check is not None
            result = rate_run(run, reporter=reporter, keeps_judge=keeps_judge)
            if keeps_judge and not result.report.failures:
                checked = rate_run(check_run, reporter=reporter)
    if batch.batch_file is None:
        _show_result(result, checked, as_json=json)
        return
    _show_requests(requests, as_json=json)


def _show_requests(requests: BatchRequests, *, as_json: bool) -> None:
    """Print the files of requests for a provider, and what to do with them."""
    if as_json:
        files = {str(path): num_requests for path, num_requests in requests.files.items()}
        print_json({"run_key": requests.run_key, "files": files})
    if not requests.files:
        say("nothing is left to ask: no file was written")
        return
    for path, num_requests in requests.files.items():
        say(f"{path}: {counted(num_requests, 'request')}")
    say("next: give each file to the provider, then the same command with --batch-results FILE")


def _refuse_combinations(
    config: RatingConfig, how: RatingRunOptions, batch: BatchConfig, check: CheckConfig
) -> None:
    """Refuse options that have no meaning together, or that would not bind the calls of --check."""
    if how.retry_failed_prompts and (batch.batch_file or batch.batch_results):
        raise InputError("--retry-failed-prompts asks the server: leave out the batch files")
    if check.check is None:
        return
    if config.layout != "all-rules":
        raise UsageError("--check belongs to --layout all-rules")
    used = [*how.limits, *(f"--{name}" for name in ("slice", "shard") if getattr(how, name))]
    used += ["--batch-file or --batch-results"] * bool(batch.batch_file or batch.batch_results)
    if used:
        num_pairs = (check.check + 1) // 2
        raise UsageError(
            f"--check with {' and '.join(used)}, which the check would not obey: leave it out, "
            f"and rate {num_pairs:,} pairs with --layout paper --limit {num_pairs} instead"
        )


def _show_result(result: RatingResult, checked: RatingResult | None, *, as_json: bool) -> None:
    from encore.runs.shard_files import kept_work

    report, values, study = result.report, _values(result), result.run_dir.parents[1]
    stop = report.early_stop
    if result.run.how.limits:
        values["ending"] = stop and {"reason": stop.reason, "is_enough": stop.is_success}
    values |= _costs_of_run(result)
    if checked is not None:
        values["check"] = _values(checked) | _costs_of_run(checked)
    if as_json:
        print_json(values)
    _say_result(result, values)
    if stop is not None:
        ending = f"{stop.reason}; {kept_work(result.run_dir, result.manifest)}"
        if not stop.is_success:
            raise StudyIncompleteError(ending)
        say(ending)
    if checked is None:
        if report.total("num_ratings"):
            say_next("analyze", study)
        return
    say(f"one rule a call, run {checked.manifest.run_key[:8]}:")
    _say_result(checked, values["check"])
    say_next("analyze", study, "--run", result.manifest.run_key[:8])


def _values(result: RatingResult) -> dict[str, Any]:
    """Return the counts of a run as JSON."""
    report = result.report
    return {
        "run_key": result.manifest.run_key,
        "num_shards": len(result.manifest.shards),
        "rated": report.count("rated"),
        "reused": report.count("reused"),
        "failed": {str(index): error for index, error in report.failures.items()},
        "num_ratings": report.total("num_ratings"),
        "num_nulls": report.total("num_nulls"),
        **_not_applicable(result),
        "null_reasons": report.counts_by("null_reasons"),
        "answered_by": report.counts_by("answered_by"),
        "remarks": report.counts_by("remarks"),
        "num_truncated": report.computed("num_truncated"),
        "num_known": report.computed("num_known"),
        "num_kept": report.computed("num_kept"),
        "thinking_tokens": report.computed("thinking_tokens"),
        "estimated_thinking_tokens": report.computed("estimated_thinking_tokens"),
        "plan": result.plan,
    }


def _not_applicable(result: RatingResult) -> dict[str, int]:
    """Return the number of ratings whose rule does not apply, if the judge may say so."""
    if not result.run.config.ask_applies:
        return {}
    return {"num_not_applicable": result.report.total("num_not_applicable")}


def _say_result(result: RatingResult, values: dict[str, Any]) -> None:
    """Say what a call did on a run and what it cost; warn of nulls.

    Raises:
        StudyIncompleteError: A shard failed; its error is said before.
    """
    from encore.data.rating_runs import note_on_label_mass

    report = result.report
    num_ratings, num_nulls = report.total("num_ratings"), report.total("num_nulls")
    numbers = f"{counted(num_ratings, 'rating')}, {counted(num_nulls, 'null')}"
    if "num_not_applicable" in values:
        numbers += f", {values['num_not_applicable']:,} do not apply"
    say(f"shards: {report.summary}; {numbers}")
    for name, costs in result.plan.items():
        planned, actual = amount(costs["planned"]), amount(costs["actual"])
        say(f"{name.removeprefix('num_').replace('_', ' ')}: {actual}; planned: {planned}")
    if "spent" in values:
        say(f"spent: {values['spent']:,.4g} at the prices given, in all calls of this run")
    paths = [shard.path for shard in report.outcomes if shard.path is not None]
    if note := note_on_label_mass(result.manifest, paths):
        say(note)
    _say_copies(report, is_retry=result.run.how.retry_failed_prompts)
    _say_thinking(report)
    _warn_of_nulls(report)
    _warn_of_remarks(result)
    if values["num_truncated"]:
        warn(f"{values['num_truncated']:,} prompts were cut from the left to fit the context")
    warn_of_synthetic(result.manifest.synthetic)
    warn_of_failures(report.failures, len(result.manifest.shards))


def _costs_of_run(result: RatingResult) -> dict[str, float]:
    """Return what all calls of the run cost at the prices given as ``spent``, if there are any."""
    from encore.rating.stop_rules import money, usages_of

    how, num_devices = result.run.how, result.run.config.judge.num_devices
    if how.price_input is None and not how.price_gpu_hour:
        return {}
    outcomes = result.report.outcomes
    costs: list[dict[str, float]] = [
        usage._asdict() for usage in usages_of(result.run_dir, result.manifest, outcomes)
    ]
    costs += [{"engine_seconds": state.footer.get("engine_seconds", 0)} for state in outcomes]
    spent = sum(money(cost, prices=how, num_devices=num_devices) for cost in costs)
    return {"spent": spent}


def _say_copies(report: RunReport, *, is_retry: bool) -> None:
    """Say which ratings were taken over without a call."""
    num_known, num_kept = report.computed("num_known"), report.computed("num_kept")
    if is_retry and not (report.outcomes or report.failures):
        say("no prompt of a finished shard failed: nothing is asked again")
    if num_known:
        origin = "that were there" if is_retry else "of other runs of this study"
        say(f"{num_known:,} ratings are copies of those {origin}")
    if num_kept:
        say(f"{num_kept:,} replies are those of an earlier call, and were not asked again")


def _say_thinking(report: RunReport) -> None:
    """Say how many tokens the judge's thinking took in this call, if it thought."""
    estimated = report.computed("estimated_thinking_tokens")
    if num_thinking := estimated or report.computed("thinking_tokens"):
        origin = "estimated from the share of characters" if estimated else "counted"
        say(
            f"thinking took {num_thinking:,} of {report.computed('output_tokens'):,} output tokens "
            f"({origin})"
        )


def _warn_of_remarks(result: RatingResult) -> None:
    """Say under which names a server answered, and warn of what its answers lacked."""
    report = result.report
    names = report.counts_by("answered_by")
    model = result.run.config.judge.model
    if names.keys() - {model}:
        by_name = ", ".join(f"{name} ({count:,})" for name, count in names.items())
        say(f"the server answered for {model} as {by_name}")
    for remark, count in report.counts_by("remarks").items():
        kind, _, detail = remark.partition(" ")
        replies = "1 reply" if count == 1 else f"{count:,} replies"
        warn(f"{replies} came {_REMARKS.get(kind, kind)}{f' ({detail})' if detail else ''}")


def _warn_of_nulls(report: RunReport) -> None:
    """Warn of the ratings that this call left null, by reason."""
    from encore.data.rating_runs import DOES_NOT_APPLY, RETRIED_REASONS
    from encore.rating.null_watch import remedy_for_nulls
    from encore.rating.replies import note_on_refusals

    counts = dict(report.counts_by("null_reasons"))
    counts.pop(DOES_NOT_APPLY, None)  # no failure
    for reason, count in counts.items():
        warn(f"{count:,} ratings are null: {reason}")
    if counts and not report.total("num_ratings"):
        warn(f"nothing can be learnt from this judge's replies: {remedy_for_nulls(counts)}")
    if num_failed := sum(counts.get(reason, 0) for reason in RETRIED_REASONS):
        warn(
            f"the service refused or failed {counted(num_failed, 'prompt')}; the same command with "
            "--retry-failed-prompts asks them again"
        )
    if note := note_on_refusals(report):
        warn(note)
