"""Golden: names of commands and options, and of public functions."""

from __future__ import annotations

import os
import re
import sys

import pytest

import encore as package
from tests.golden.command_line import ENVIRONMENT, encore, encore_process, run_process
from tests.golden.same import check_no_name_lost

COMMANDS = (
    *("demo", "ingest", "rate", "status", "show", "analyze", "weights", "report"),
    *("plan train", "train", "gate", "score", "benchmark", "judge", "compare", "paper"),
    *("export", "serve", "sql", "publish", "doctor"),
)
#: Titles of panels that group nothing.
NO_GROUP = {"Options", "Arguments", "Parameters", "Commands"}
FLOWS = ("demo", "evaluate", "pipeline", "rate_pairs", "score", "train_reward_model")


def options_of(text: str) -> list[str]:
    """Return every long option in the tables of a help text, not those in its prose."""
    rows = [line for line in text.splitlines() if re.match(r"\W*-", line)]
    names = {name for row in rows for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", row)}
    return sorted(names - {"--help", "--version"})


def groups_of(text: str) -> list[str]:
    """Return the titles of the panels that group options."""
    titles = [title.split(" (")[0] for title in re.findall(r"(?m)^╭─ (.+?) ─", text)]
    return [title for title in titles if title not in NO_GROUP]


def test_the_programs_help_names_every_command():
    text = encore("--help").out
    assert all(re.search(rf"(?m)^\W+{command.split()[0]} ", text) for command in COMMANDS)
    assert encore("--version").out == f"encore {package.__version__}\n"


def test_options_and_groups_of_every_command():
    """No name may be lost; new ones may be added."""
    texts = {command: encore(*command.split(), "--help") for command in COMMANDS}
    assert all(finished.code == 0 for finished in texts.values())
    check_no_name_lost(
        "options", {name: options_of(finished.out) for name, finished in texts.items()}
    )
    check_no_name_lost(
        "groups", {name: groups_of(finished.out) for name, finished in texts.items()}
    )


@pytest.mark.full
def test_options_of_every_flow():
    """Each flow runs in a process, because it imports Prefect."""
    texts = {}
    for flow in FLOWS:
        command = (sys.executable, "-m", f"flows.{flow}", "--help")
        finished = run_process(*command, env={**os.environ, **ENVIRONMENT})
        assert finished.code == 0, finished.err
        texts[flow] = finished.out
    check_no_name_lost("options-of-flows", {name: options_of(text) for name, text in texts.items()})


def test_public_python_names():
    check_no_name_lost("python", {"names": sorted(package.__all__)})
    assert all(getattr(package, name).__doc__ for name in package.__all__)


@pytest.mark.services
def test_a_wrong_call_and_a_right_one_in_a_process(fixed_ratings):
    """A new process gives the same as this process."""
    wrong = encore_process("weights", fixed_ratings, "--scheme", "nosuch")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("error: ")
    right = encore_process("weights", fixed_ratings, "--json")
    assert right.code == 0
    assert right.json == encore("weights", fixed_ratings, "--json").json
