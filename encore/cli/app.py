"""Put the commands together; a command is imported when it is called or listed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from cyclopts import App, Group

from encore.core.command_parser import new_app, run_main

#: Commands by group, in the order of the help. ``GROUP NAME`` is a command of a command.
GROUPS = {
    "Make a study": (
        *("demo", "doctor"),
        *("rules merge", "rules dedupe", "rules rate-importance", "rules select"),
        *("rules draft", "rules lint", "rules probe"),
        *("ingest", "plan rate", "plan train", "rate", "status"),
    ),
    "Look at it": ("show", "browse", "sql"),
    "Which rules to trust": ("analyze", "weights", "report", "check"),
    "Train and score": ("train", "gate", "score", "benchmark", "judge", "compare"),
    "Serve and publish": ("export", "guard", "serve", "publish"),
    "Ask people": ("annotate export", "annotate import", "labels"),
    "Check the paper": ("paper",),
}
COMMANDS = tuple(chain.from_iterable(GROUPS.values()))

HELP = (
    "Audit safety rules and compose multi-head reward models.\n\nA study is a directory that holds "
    "everything of one run, from preference pairs (`encore ingest`) to the table of a benchmark "
    "(`encore benchmark`) and a model for others (`encore export`). Most commands take the study "
    "as their first argument. `encore demo` makes a study of shipped synthetic data. With "
    "`--verbose`, progress names every file that is written."
)


_PARENTS = {
    "plan": "Estimate what a run will take, before anything is loaded.",
    "rules": "Make a rule set from pools of principles, and test how sound each rule is.",
    "annotate": "Ask people about responses and rules, and measure their agreement with judges.",
}


def command_of(name: str) -> Callable[..., None]:
    """Import the module of a command, or of its group, and return its function."""
    module, function_name = _location_of(name)
    function: Callable[..., None] = getattr(import_module(f"encore.cli.{module}"), function_name)
    return function


def _location_of(name: str) -> tuple[str, str]:
    """Return the module of a command, or of its group, and the name of its function."""
    group, *_ = name.split()
    function_name = name.replace(" ", "_").replace("-", "_")
    return group if group in ("annotate", "rules") else function_name, function_name


def _summary_of(name: str) -> str:
    """Return the first line of a command's docstring. Its module is read and not imported."""
    module, function_name = _location_of(name)
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    docstring = re.search(rf'^def {function_name}\(.*?"""(.+?)$', source, re.MULTILINE | re.DOTALL)
    assert docstring is not None, name
    return docstring[1]


def _version() -> str:
    from encore import __version__

    return f"encore {__version__}"


def build_app(names: Sequence[str] = COMMANDS, *, is_list: bool = False) -> App:
    """Return the parser of `encore` with these commands.

    Args:
        names: Commands of the parser; their modules are imported.
        is_list: True for a parser that only lists its commands: importing all of them would take
            half of the time of `encore --help`.
    """
    app = new_app("encore", help=HELP, version=_version)
    if len(names) == len(COMMANDS):
        app.help_format = "plaintext"  # reading Markdown would make the list wait
        app.register_install_completion_command(help="Complete commands and options by Tab.")
        flags = Group("Flags", sort_key=len(GROUPS) + 1)
        for flag in ("--help", "--install-completion", "--version"):
            app[flag].group = flags
    parents = {name: new_app(name, help=text) for name, text in _PARENTS.items()}
    for position, (title, group_names) in enumerate(GROUPS.items(), start=1):
        group = Group(title, sort_key=position)
        for name in filter(names.__contains__, group_names):
            *parent_name, short_name = name.split()
            parent = parents[parent_name[0]] if parent_name else app
            options: dict[str, Any] = {} if parent_name else {"group": group}
            if is_list:
                function: Any = "encore.cli.{}:{}".format(*_location_of(name))
                options["help"] = _summary_of(name)
            else:
                function = command_of(name)
                options["usage"] = f"Usage: encore {name} {function.usage}"
            key = COMMANDS.index(name)
            parent.command(function, name=short_name, sort_key=key, **options)
            if parent_name and parent_name[0] not in app:
                parent.sort_key, parent.group = key, group
                app.command(parent)
    return app


def main() -> None:
    """Run the `encore` script."""
    from encore.core.settings import prepare_environment

    prepare_environment()
    # Only the called command is imported: `encore doctor` must work where others cannot start.
    called = [name for name in COMMANDS if name.split()[0] in sys.argv[1:2]]
    arguments = sys.argv[1:] or ["--help"]
    run_main(build_app(called or COMMANDS, is_list=arguments == ["--help"]), arguments)
