"""`encore report`: one page that says what ratings show, and its figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from encore.cli.analyze import JudgeOption, RatingsArgument, exit_if_incomplete
from encore.cli.output import JsonOption, RunOption, console, out, print_json, say, warn


def report(
    ratings: RatingsArgument,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where the report goes. Default: STUDY/reports/RUN_KEY, or `report` in this "
            "directory for ratings that are not of a study.",
        ),
    ] = None,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report: one self-contained HTML page, and its figures as SVG and PNG.

    The page says whether the paper's premise holds on these ratings, shows every rule, the weights
    of every scheme and how many ratings are enough, and where all of it comes from. Nothing is
    loaded from elsewhere, so the file can be sent around. What is synthetic is marked.

    Example: encore report demo-study, then open demo-study/reports/*/report.html

    Exit code 3: the run is not complete; the report is about its finished shards.
    """
    from encore.report.write import default_folder
    from encore.report.write import report as write_report

    target = folder or default_folder(ratings, run=run, judge=judge)
    with console.status("measuring rules") as status:
        written = write_report(ratings, out=target, run=run, judge=judge, on_step=status.update)
    if as_json:
        print_json(written.as_dict())
    else:
        for verdict in written.findings.analysis.verdicts:
            out.print(
                f"{verdict.source}, {verdict.entropy} entropy: {verdict.verdict}", soft_wrap=True
            )
        out.print(f"{written.page}", soft_wrap=True)
    for name, reason in written.missing.items():
        say(f"note: no figure {name}: {reason}")
    for note in written.notes:
        say(f"note: {note}")
    if written.findings.provenance.is_synthetic:
        warn(
            f"synthetic: {' and '.join(written.findings.provenance.synthetic)}; the report says "
            "so, and its figures are no evidence"
        )
    analysis = written.findings.analysis
    exit_if_incomplete(analysis.num_missing_shards, analysis.num_shards)
