"""With the core alone, every command works or ends in one line that names its extra.

``python -m tests.cli.test_without_extras`` runs the calls as if only the core's packages were
installed. It reads the names of absent modules from standard input, and writes the exit code and
the errors of each call.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from encore.cli.app import COMMANDS
from encore.core.extras import EXTRAS
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH, JUDGE_PATH
from tests.golden.command_line import encore, run_process
from tests.test_packaging import ROOT, dependencies_of

pytestmark = pytest.mark.services

#: Calls in their order by their ending: "" for exit code 0, the extras that its line of error
#: names, or a part of a line about something else.
ENDINGS = {
    "": (
        *("demo study", "rules merge mine=pool.csv --output merged.toml", "doctor", "paper"),
        *("rules lint encore-10", "ingest other mine=pairs.jsonl", "show study 00451bea"),
        *("status study", "analyze study", "weights study", "paper study", "report study"),
        *("annotate export study", "labels study labels.csv", "sql study 'from rules'"),
        *("publish study --out study.duckdb", "plan train study --backbone MODEL"),
        "check study --rule 1 --floor 0.01",
    ),
    "train": (
        *("demo --full full", "train study --backbone MODEL", "gate study --model MODEL"),
        *("score study --model MODEL", "benchmark study --model MODEL", "export MODEL --out new"),
        "guard labels.csv --model MODEL",
    ),
    "judge": (
        *("rate other --judge MODEL", "plan rate study --judge MODEL"),
        *("rules probe study --judge MODEL", "rules draft pool.csv --judge MODEL --output a.toml"),
        "rules rate-importance encore-10 --judge MODEL --output new",
        "judge --judge MODEL --out new --benchmark BENCHMARK --data DATA",
    ),
    "hub": (
        *("ingest new hh:Anthropic/hh-rlhf", "rate other --judge owner/name"),
        "publish study --dataset new",
    ),
    "http": ("rate other --judge name --backend http --base-url http://127.0.0.1:9",),
    "rules": ("rules dedupe encore-10 --output a.toml",),
    "train,serve": ("serve MODEL",),
    "bucket": ("status s3://bucket/study",),
    "no ratings of importance": ("rules select nothing --top 3 --output a.toml",),
    "--host no.such.host": ("browse study --host no.such.host.invalid",),
    "no benchmark table": ("compare study",),
    "no such file": ("annotate import study answers.csv",),
}
CALLS = {call: ending for ending, calls in ENDINGS.items() for call in calls}


def run_calls() -> None:
    absent = set(json.load(sys.stdin))

    class CoreFinder(PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, *arguments: Any) -> ModuleSpec | None:
            is_absent = fullname.partition(".")[0] in absent
            return None if is_absent else super().find_spec(fullname, *arguments)

    sys.meta_path[sys.meta_path.index(PathFinder)] = CoreFinder
    paths = {"MODEL": JUDGE_PATH, "BENCHMARK": BENCHMARK_PATH, "DATA": BENCHMARK_DATA_PATH}
    results = {}
    for call in CALLS:
        try:
            finished = encore(*(paths.get(part, part) for part in shlex.split(call)))
            results[call] = (finished.code, finished.err)
        except Exception:  # noqa: BLE001 - what a user would see as a traceback
            results[call] = (-1, traceback.format_exc())
    json.dump(results, sys.stdout)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Run every call in one process that can import only the core."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "pool.csv").write_text("text\nBe kind.\nBe brief.\n")
    (folder / "pairs.jsonl").write_text('{"prompt": "Hi.", "chosen": "Hello.", "rejected": "No."}')
    (folder / "labels.csv").write_text("response_id,rule_id,label,rating\n1,kind,yes,1\n")
    core = dependencies_of([])
    absent = [
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not core & {canonicalize_name(name) for name in names}
    ]
    assert {"torch", "transformers", "matplotlib"} <= set(absent)
    return run_process(
        *(sys.executable, "-m", "tests.cli.test_without_extras"),
        input=json.dumps([*{*absent} - {"_pytest", "pytest", "pluggy", "iniconfig"}]),
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    ).json


def command_of(call: str) -> str:
    return next(name for name in COMMANDS if f"{call} ".startswith(f"{name} "))


@pytest.mark.parametrize(("call", "ending"), CALLS.items())
def test_a_command_without_its_extra_ends_in_one_line(results, call, ending):
    code, error = results[call]
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert (code, len(lines)) == ((1, 1) if ending else (0, 0)), error
    if extras := [name for name in ending.split(",") if name in EXTRAS]:
        assert re.search(rf"pip install (-e )?'\S+\[{ending}\]'", lines[0]), lines[0]
        # `encore doctor` prints these purposes.
        assert all(command_of(call) in EXTRAS[name].purpose for name in extras)
    assert ending in "".join(lines)
    assert {command_of(call) for call in CALLS} == set(COMMANDS)


if __name__ == "__main__":
    run_calls()
