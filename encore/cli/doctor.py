"""`encore doctor`: check this environment and say how to repair it."""

from __future__ import annotations

import os

from encore.core.command_parser import JsonOption, command
from encore.core.terminal import out, print_json


@command
def doctor(*, json: JsonOption = False) -> None:
    """Explain a broken environment: packages, engine, GPU, memory, processor, hub.

    Prints what is not as expected, with the next step, and the extras that are not installed, with
    the commands that need them; `--json` prints every check. Exit code 1 if
    something required is broken; warnings (an extra you may not need, a hub that does not
    answer) leave it at 0. Secrets are never printed.
    """
    from encore.core.doctor import diagnose

    findings = diagnose(os.environ)
    num_fail = sum(finding.verdict == "fail" for finding in findings)
    if json:
        print_json({"is_broken": num_fail > 0, "findings": findings})
    else:
        problems = [finding for finding in findings if finding.verdict != "ok"]
        for problem in problems:
            color = "bold red" if problem.verdict == "fail" else "yellow"
            out.print(
                f"{problem.verdict}: {problem.check}: {problem.found}", style=color, soft_wrap=True
            )
            advice = f"  expected: {problem.expected}\n  next step: {problem.next_step}"
            out.print(advice, soft_wrap=True)
        for finding in findings:
            if finding.verdict == "ok" and finding.next_step:
                out.print(f"{finding.check}, not installed: {finding.expected}", soft_wrap=True)
                out.print(f"  {finding.next_step}", soft_wrap=True)
        num_warn = len(problems) - num_fail
        out.print(f"{len(findings)} checks, {num_fail} broken, {num_warn} to look at")
    if num_fail:
        raise SystemExit(1)
