"""Flow: preference pairs into a study.

As a command, with or without a Prefect server: ``python -m flows.ingest STUDY SOURCE...``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.data.ingest_options import IngestConfig
from encore.data.ingestion import ingest as ingest_sources
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_pairs
from tasks.flow_reporter import FlowReporter
from tasks.server_calls import run_logger
from tasks.stage_task import Attempts, run_stage


@study_flow("ingest", stage="ingest")
def ingest(config: IngestConfig, attempts: Attempts = Attempts()) -> State:
    """Read preference pairs into a study under Prefect: the same files as `encore ingest`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (what was read, kept, merged and set aside) are kept on that server. Pairs that are
    there are kept; after an error the study is as it was before.

    Exit code 3: more records of a source than --max-set-aside-share were set aside; the study has
    the others.

    Example: python -m flows.ingest study hh-pku
    """
    reporter = FlowReporter("ingest", config.out)
    report = run_stage(
        "ingest",
        lambda: ingest_sources(
            **dict(config), on_note=lambda note: run_logger().info("%s", note), reporter=reporter
        ),
        attempts=attempts,
    )
    publish_pairs(report)
    report.raise_if_mostly_set_aside()
    manifests = [source.manifest for source in report.sources]
    num_kept = sum(manifest.num_kept for manifest in manifests)
    num_set_aside = sum(manifest.num_set_aside for manifest in manifests)
    message = f"{num_kept} pairs in {report.study}, {num_set_aside} set aside"
    return Completed(message=message, data=str(report.study))


if __name__ == "__main__":
    run_command(ingest)
