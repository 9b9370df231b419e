"""`encore doctor`: what is wrong with this environment, in one table."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from encore.cli.output import JsonOption, out, print_json
from encore.doctor.diagnose import diagnose
from encore.doctor.finding import Finding, is_broken

_COLORS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(json: JsonOption = False) -> None:
    """Explain a broken environment: packages, engine, GPU, memory, disk, ports, hub.

    One line per check: what was found, what is expected, and the next step where they differ.
    Exit code 1 if something required is broken; warnings (an extra you may not need, a port in
    use, a hub that does not answer) leave it at 0. Secrets are never printed.
    """
    findings = diagnose(os.environ, folder=Path.cwd())
    if json:
        print_json(
            {"is_broken": is_broken(findings), "findings": [asdict(one) for one in findings]}
        )
    else:
        out.print(_table(findings))
        out.print(_summary(findings))
    if is_broken(findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table(title="Environment", title_justify="left", header_style="bold")
    for column in ("check", "found", "expected", "", "next step"):
        table.add_column(column, overflow="fold")
    for one in findings:
        verdict = Text(one.verdict, style=_COLORS[one.verdict])
        texts = (Text(one.check), Text(one.found), Text(one.expected), verdict, Text(one.next_step))
        table.add_row(*texts)
    return table


def _summary(findings: list[Finding]) -> Text:
    num_fail = sum(one.verdict == "fail" for one in findings)
    num_warn = sum(one.verdict == "warn" for one in findings)
    if num_fail:
        return Text(f"{num_fail} broken, {num_warn} to look at", style=_COLORS["fail"])
    if num_warn:
        return Text(f"nothing broken, {num_warn} to look at", style=_COLORS["warn"])
    return Text("nothing broken", style=_COLORS["ok"])
