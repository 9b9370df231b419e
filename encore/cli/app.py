"""Put the commands together; a command is imported when it is called or listed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from cyclopts import App

from encore.options import new_app, run_main

#: In the order a study goes through them.
COMMANDS = (
    *("demo", "ingest", "rate", "status", "show", "analyze", "weights", "theory", "report"),
    *("plan", "train", "gate", "score", "benchmark", "judge", "compare", "paper"),
    *("export", "serve", "sql", "publish", "doctor"),
)

HELP = (
    "Audit safety rules and compose multi-head reward models.\n\nA study is a directory that holds "
    "everything of one run, from preference pairs (`encore ingest`) to the table of a benchmark "
    "(`encore benchmark`) and a model for others (`encore export`). Commands stand in the order in "
    "which a study goes through them; `encore demo` does all of it on shipped synthetic data."
)


def _version() -> str:
    from encore import __version__

    return f"encore {__version__}"


def build_app(names: Sequence[str] = COMMANDS) -> App:
    """The parser of `encore` with these commands; each one's module is imported."""
    app = new_app("encore", help=HELP, version=_version)
    if len(names) > 1:
        app.help_format = "plaintext"  # reading Markdown would make the list wait
    for place, name in enumerate(names):
        function = getattr(import_module(f"encore.cli.{name}"), name)
        app.command(function, name=name, sort_key=place)
    return app


def main() -> None:
    """Entry point of the `encore` script."""
    from encore.settings import prepare_environment

    prepare_environment()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    # Only the called command is imported: the doctor must come even where another one's does not.
    run_main(build_app([name] if name in COMMANDS else COMMANDS), sys.argv[1:] or ["--help"])
