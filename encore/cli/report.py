"""`encore report`: one page that says what ratings show, and its figures as files."""

from __future__ import annotations

import textwrap

from encore.cli.output import show_result
from encore.core.command_parser import JsonOption, command
from encore.core.terminal import console, out, say_next
from encore.reports.report_options import ReportConfig


@command
def report(config: ReportConfig, *, json: JsonOption = False) -> None:
    """Write a report: one self-contained HTML page, and its figures as SVG and PNG.

    The page says which rules to trust, whether the paper's premise holds on these ratings, how many
    ratings are enough, and where all of it comes from; it shows the weights of every scheme.
    Nothing is loaded from elsewhere, so the file can be sent around. What is synthetic is marked.

    Example: encore report demo-study, then open demo-study/reports/*/report.html

    Exit code 3: the run is not complete; the report is about its finished shards.
    """
    from encore.reports.write_report import report as write_report
    from encore.warehouse import open_ratings

    ratings = open_ratings(
        config.ratings,
        run=config.run,
        judge=config.judge,
        rating=config.rating,
        **config.table_layout,
    )
    with console.status("measuring rules") as status:
        written = write_report(
            ratings, out=config.out, label_curve=config.label_curve, on_step=status.update
        )
    findings = written.findings
    lines = [textwrap.fill(sentence, out.width) for sentence in findings.sentences]
    missing: dict[str, list[str]] = {}
    for name, reason in written.missing.items():
        missing.setdefault(reason, []).append(name)
    notes = [f"no figure {', '.join(names)}: {reason}" for reason, names in missing.items()]
    notes += findings.notes
    lines.append(str(written.page))
    synthetic = findings.provenance.synthetic
    show_result(written.as_dict(), lines, notes, synthetic=synthetic, ratings=ratings, as_json=json)
    say_next("weights", config.ratings)
