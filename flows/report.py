"""Flow: one page that says what ratings show, and its figures as files.

As a command, with or without a Prefect server: ``python -m flows.report RATINGS``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.reports.report_options import ReportConfig
from encore.reports.write_report import Report
from encore.reports.write_report import report as write_report
from encore.warehouse import open_ratings
from flows.analyze import raise_if_incomplete
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_report
from tasks.server_calls import run_logger
from tasks.stage_task import Attempts, run_stage


@study_flow("report", stage="report")
def report(config: ReportConfig, attempts: Attempts = Attempts()) -> State:
    """Write a report under Prefect: the same page and figures as `encore report`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (the verdicts, and where the page is) are kept on that server.

    Exit code 3: the run is not complete; the report is about its finished shards.

    Example: python -m flows.report study
    """

    def work() -> Report:
        ratings = open_ratings(
            config.ratings,
            run=config.run,
            judge=config.judge,
            rating=config.rating,
            **config.table_layout,
        )
        return write_report(
            ratings, out=config.out, on_step=lambda step: run_logger().info("%s", step)
        )

    written = run_stage("report", work, attempts=attempts)
    publish_report(written, study=config.ratings)
    ratings = written.findings.analysis.ratings
    raise_if_incomplete(ratings)
    return Completed(message=f"report {written.page}", data=str(written.page))


if __name__ == "__main__":
    run_command(report)
