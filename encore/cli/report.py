"""`encore report`: one page that says what ratings show, and its figures as files."""

from __future__ import annotations

from encore.errors import StudyIncompleteError
from encore.options import JsonOption, command
from encore.report.report_config import ReportConfig
from encore.terminal import console, out, print_json, say, warn


@command
def report(config: ReportConfig, *, json: JsonOption = False) -> None:
    """Write a report: one self-contained HTML page, and its figures as SVG and PNG.

    The page says whether the paper's premise holds on these ratings, shows every rule, the weights
    of every scheme and how many ratings are enough, and where all of it comes from. Nothing is
    loaded from elsewhere, so the file can be sent around. What is synthetic is marked.

    Example: encore report demo-study, then open demo-study/reports/*/report.html

    Exit code 3: the run is not complete; the report is about its finished shards.
    """
    from encore.report.write_report import default_folder
    from encore.report.write_report import report as write_report

    chosen = {"run": config.run, "judge": config.judge}
    folder = config.out or default_folder(config.ratings, **chosen)
    with console.status("measuring rules") as status:
        written = write_report(config.ratings, out=folder, on_step=status.update, **chosen)
    findings = written.findings
    if json:
        print_json(written.as_dict())
    else:
        for source in findings.sources:
            for verdict in findings.verdicts(source):
                line = f"{verdict.entropy} entropy: {verdict.verdict}"
                out.print(f"{findings.source_name(source)}, {line}", soft_wrap=True)
        out.print(f"{written.page}", soft_wrap=True)
    for name, reason in written.missing.items():
        say(f"note: no figure {name}: {reason}")
    for note in written.notes:
        say(f"note: {note}")
    if synthetic := findings.provenance.synthetic:
        warn(
            f"synthetic: {' and '.join(synthetic)}; the report says so, and its figures are no "
            "evidence"
        )
    if missing := findings.analysis.num_missing_shards:
        raise StudyIncompleteError(
            f"{missing} of {findings.analysis.num_shards} shards are missing, damaged or failed "
            "and not in these figures; `encore status` lists them, `encore rate` with the same "
            "parameters rates exactly these"
        )
