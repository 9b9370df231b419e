"""`encore report`: one page that says what ratings show, and its figures as files."""

from __future__ import annotations

from encore.cli.output import exit_if_incomplete, warn_of
from encore.config import ReportConfig
from encore.options import JsonOption, command
from encore.terminal import console, out, print_json, say


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
    from encore.warehouse import open_ratings

    ratings = open_ratings(config.ratings, run=config.run, judge=config.judge)
    folder = config.out or default_folder(ratings)
    with console.status("measuring rules") as status:
        written = write_report(ratings, out=folder, on_step=status.update)
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
    for note in findings.notes:
        say(f"note: {note}")
    warn_of(synthetic=findings.provenance.synthetic)
    exit_if_incomplete(ratings.num_missing_shards, ratings.num_shards, enough=ratings.enough)
