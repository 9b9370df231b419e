"""Put the commands together; turn an `EncoreError` into one clear line and an exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from encore.cli.output import fail
from encore.errors import EncoreError

#: In the order a study goes through them.
COMMANDS = (
    *("demo", "ingest", "rate", "status", "show", "analyze", "weights", "theory", "report"),
    *("plan", "train", "gate", "score", "benchmark", "judge", "compare", "paper"),
    *("export", "serve", "sql", "publish", "doctor"),
)

_INTERRUPTED = 130

app = typer.Typer(
    name="encore",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help=(
        "Audit safety rules and compose multi-head reward models.\n\n"
        "A study is a directory that holds everything of one run:\n"
        "`encore ingest` fills it with preference pairs, `encore rate` has a judge rate every "
        "response under every rule, `encore analyze` measures the rules, `encore weights` turns "
        "their entropies into weights, `encore report` puts everything on one page, `encore train` "
        "makes a reward model with a head for every rule, `encore score` scores with it, `encore "
        "benchmark` puts every weighting, reward model and judge (`encore judge`) in one table, "
        "`encore compare` compares any two, `encore export` gives a model away, `encore serve` "
        "answers with its rewards. `encore demo` goes from pairs to that table on shipped "
        "synthetic data; `encore paper` checks the paper against itself."
    ),
)


def _version(value: bool) -> None:
    if value:
        from encore import __version__

        sys.stdout.write(f"encore {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    from encore.settings import quiet_environment

    quiet_environment()


def _add_commands(names: Sequence[str]) -> None:
    for name in names:
        app.command(name)(getattr(import_module(f"encore.cli.{name}"), name))


# The doctor must come even where a package that another command needs does not import.
_add_commands(("doctor",) if sys.argv[1:2] == ["doctor"] else COMMANDS)


def main() -> None:
    """Entry point of the `encore` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # else a poor terminal ends the command
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except EncoreError as error:
        _fail(str(error), exit_code=error.exit_code)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer turns Ctrl-C into this code and says nothing
            _fail(
                "interrupted; finished work is kept, the same command continues",
                exit_code=_INTERRUPTED,
            )
        raise
    except OSError as error:
        _fail(
            f"{error.filename or 'writing a file'}: {error.strerror or error}; finished work is "
            "kept: put this right and run the same command again",
            exit_code=1,
        )


def _fail(message: str, *, exit_code: int) -> None:
    fail(message)
    sys.exit(exit_code)
