"""Rate a study: open its run, have the judge rate the shards, compare the cost with the plan."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from encore.core.reporting import SILENT, Reporter
from encore.data.rating_runs import RatingManifest
from encore.data.study import Study, as_study
from encore.rating.rating_config import EngineRatingConfig, RateConfig, RatingConfig
from encore.rating.rating_plan import Comparison, compare_with_plan
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.engine_supervisor import supervise
from encore.runs.local_engines import JobRunner, LocalLauncher, engine_environments
from encore.runs.shard_runner import Job, RunReport, work_through


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingResult:
    """Result of a call that rated a study.

    Attributes:
        run_dir: Folder of the run.
        manifest: Identity and plan of the run.
        report: Shards that are done or failed, with their counts.
        plan: Planned and actual cost of the shards that this call rated; empty if it rated none.
    """

    run_dir: Path
    manifest: RatingManifest
    report: RunReport
    plan: Comparison


def rate(
    study: Study | Path, config: RatingConfig, *, retries: int = 0, reporter: Reporter = SILENT
) -> RatingResult:
    """Rate the shards of a study that are not done, and release the judge.

    Args:
        study: The opened study, or its directory.
        config: Judge, rules and plan. A `RateConfig` also says which shards are rated and when
            the run stops early.
        retries: Further attempts for a shard whose error may pass.
        reporter: Receiver of progress events.

    Raises:
        EncoreError: See `open_run` and `encore.runs.shard_runner.work_through`.
    """
    opened = as_study(study)
    run = open_run(opened, config)
    run_job = partial(
        run_rating_job, study=opened, config=config, retries=retries, reporter=reporter
    )
    return rate_run(run, run_job, retries=retries, reporter=reporter)


def rate_run(
    run: RatingRun, run_job: JobRunner, *, retries: int = 0, reporter: Reporter
) -> RatingResult:
    """Rate the shards of an opened run that are not done, and release the judge.

    Args:
        run: The opened run.
        run_job: Function that does the run's job, in this process or with engines.
        retries: Further attempts for a shard whose error may pass.
        reporter: Receiver of progress events.
    """
    with closing(run.judge):
        job = run.job(retries=retries, reporter=reporter)
        reporter.message(run.title(job.shards))
        report = run_job(job)
    plan = compare_with_plan(run, report)
    return RatingResult(run_dir=run.run_dir, manifest=run.manifest, report=report, plan=plan)


def run_rating_job(
    job: Job, study: Study, config: RatingConfig, *, retries: int = 0, reporter: Reporter = SILENT
) -> RunReport:
    """Do the job of a study's run in this process, or with as many local engines as configured."""
    if isinstance(config, EngineRatingConfig) and config.engines != 1:
        environments = engine_environments(config.engines, config.judge.num_devices)
        if len(environments) > 1:
            rate_config = RateConfig.model_validate({"study": study.path, **dict(config)})
            launcher = LocalLauncher(
                "rate", rate_config, environments, run_dir=job.run_dir, retries=retries
            )
            return supervise(
                job,
                launcher,
                num_engines=len(environments),
                silence_seconds=config.silence_seconds,
                reporter=reporter,
            )
    return work_through(job, reporter=reporter)
