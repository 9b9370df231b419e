"""`encore doctor`: what is wrong with this environment, and what to do."""

from __future__ import annotations

import os

from encore.core.options import JsonOption, command
from encore.core.terminal import out, print_json


@command
def doctor(*, json: JsonOption = False) -> None:
    """Explain a broken environment: packages, engine, GPU, memory, hub.

    Prints what is not as expected, with the next step; `--json` prints every check. Exit code 1 if
    something required is broken; warnings (an extra you may not need, a hub that does not
    answer) leave it at 0. Secrets are never printed.
    """
    from encore.core.doctor import diagnose

    findings = diagnose(os.environ)
    num_fail = sum(one.verdict == "fail" for one in findings)
    if json:
        print_json({"is_broken": num_fail > 0, "findings": findings})
    else:
        wrong = [one for one in findings if one.verdict != "ok"]
        for one in wrong:
            color = "bold red" if one.verdict == "fail" else "yellow"
            out.print(f"{one.verdict}: {one.check}: {one.found}", style=color, soft_wrap=True)
            out.print(f"  expected: {one.expected}\n  next step: {one.next_step}", soft_wrap=True)
        num_warn = len(wrong) - num_fail
        out.print(f"{len(findings)} checks, {num_fail} broken, {num_warn} to look at")
    if num_fail:
        raise SystemExit(1)
