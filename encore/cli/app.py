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

HELP = """Audit safety rules and compose multi-head reward models.

A study is a directory that holds everything of one run: `encore ingest` fills it with preference
pairs, `encore rate` has a judge rate every response under every rule, `encore analyze` measures the
rules, `encore weights` turns their entropies into weights, `encore report` puts everything on one
page. `encore train` makes a reward model with a head for every rule, `encore score` scores with it,
`encore benchmark` puts every weighting, reward model and judge (`encore judge`) in one table,
`encore compare` compares any two. `encore export` gives a model away, `encore serve` answers with
its rewards. `encore demo` goes from pairs to that table on shipped synthetic data; `encore paper`
checks the paper against itself."""


def _version() -> str:
    from encore import __version__

    return f"encore {__version__}"


def build_app(names: Sequence[str] = COMMANDS) -> App:
    """The parser of `encore` with these commands; each one's module is imported."""
    app = new_app("encore", help=HELP, version=_version)
    for place, name in enumerate(names):
        function = getattr(import_module(f"encore.cli.{name}"), name)
        app.command(function, name=name, sort_key=place)
    return app


def main() -> None:
    """Entry point of the `encore` script."""
    from encore.settings import quiet_environment

    quiet_environment()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    # Only the called command is imported: the doctor must come even where another one's does not.
    run_main(build_app([name] if name in COMMANDS else COMMANDS), sys.argv[1:] or ["--help"])
