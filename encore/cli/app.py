"""Put the commands together; a command is imported when it is called or listed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from cyclopts import App

from encore.core.command_parser import new_app, run_main

#: In the order in which a study goes through them. ``GROUP NAME`` is a command of a group.
COMMANDS = (
    "demo",
    *("rules merge", "rules dedupe", "rules rate-importance", "rules select"),
    *("rules draft", "rules lint", "rules probe"),
    *("ingest", "rate", "status", "show", "browse", "analyze", "weights", "theory"),
    *("report", "plan rate", "plan train", "train", "gate", "score", "benchmark", "judge"),
    *("annotate export", "annotate import", "labels", "compare", "paper", "export", "serve"),
    *("sql", "publish", "doctor"),
)

HELP = (
    "Audit safety rules and compose multi-head reward models.\n\nA study is a directory that holds "
    "everything of one run, from preference pairs (`encore ingest`) to the table of a benchmark "
    "(`encore benchmark`) and a model for others (`encore export`). Commands stand in the order in "
    "which a study goes through them; `encore demo` does all of it on shipped synthetic data."
)


_GROUPS = {
    "plan": "Estimate what a run will take, before anything is loaded.",
    "rules": "Make a rule set from pools of principles, and test how sound each rule is.",
    "annotate": "Ask people about responses and rules, and measure their agreement with judges.",
}


def command_of(name: str) -> Callable[..., None]:
    """Import the module of a command, or of its group, and return its function."""
    group, *_ = name.split()
    function_name = name.replace(" ", "_").replace("-", "_")
    module = group if group in ("annotate", "rules") else function_name
    function: Callable[..., None] = getattr(import_module(f"encore.cli.{module}"), function_name)
    return function


def _version() -> str:
    from encore import __version__

    return f"encore {__version__}"


def build_app(names: Sequence[str] = COMMANDS) -> App:
    """Return the parser of `encore` with these commands. Their modules are imported."""
    app = new_app("encore", help=HELP, version=_version)
    groups = {group: new_app(group, help=text) for group, text in _GROUPS.items()}
    if len(names) == len(COMMANDS):
        app.help_format = "plaintext"  # reading Markdown would make the list wait
    for position, name in enumerate(names):
        *group, short_name = name.split()
        parent = groups[group[0]] if group else app
        function = command_of(name)
        usage = f"Usage: encore {name} {function.usage}"  # type: ignore[attr-defined]
        parent.command(function, name=short_name, sort_key=position, usage=usage)
        if group and group[0] not in app:
            parent.sort_key = position
            app.command(parent)
    return app


def main() -> None:
    """Run the `encore` script."""
    from encore.core.settings import prepare_environment

    prepare_environment()
    # Only the called command is imported: `encore doctor` must work where others cannot start.
    called = [name for name in COMMANDS if name.split()[0] in sys.argv[1:2]]
    run_main(build_app(called or COMMANDS), sys.argv[1:] or ["--help"])
