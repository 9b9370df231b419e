"""With the core alone, every command works or ends in one line that names its extra."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import subprocess
import sys

import pytest
from packaging.utils import canonicalize_name

from encore.cli.app import COMMANDS
from encore.core.extras import EXTRAS
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH, JUDGE_PATH
from tests.test_packaging import ROOT, dependencies_of

#: Each call, and how it ends: "" for exit code 0, the extras that its one line of error names, or a
#: word of a line about something else. It runs in a folder with two files.
CALLS = {
    "demo --out study": "",
    "demo --full --out full": "train",
    "rules merge mine=pool.csv --output merged.toml": "",
    "rules dedupe encore-10 --output deduped.toml": "rules",
    "rules rate-importance encore-10 --judge MODEL --output importance": "judge",
    "rules select importance --top 3 --output selected.toml": "importance",
    "rules draft pool.csv --judge MODEL --output draft.toml": "judge",
    "rules lint encore-10": "",
    "rules probe study --judge MODEL": "judge",
    "ingest mine=pairs.jsonl --out other": "",
    "ingest hh:Anthropic/hh-rlhf --out hub": "hub",
    "rate other --judge MODEL": "judge",
    "rate other --judge owner/name": "hub",
    "rate other --judge name --backend http --base-url http://127.0.0.1:9": "http",
    "status study": "",
    "show study PAIR": "",
    "browse study --host no.such.host.invalid": "--host",
    "analyze study": "",
    "weights study": "",
    "theory study": "",
    "report study": "",
    "plan rate study --judge MODEL": "judge",
    "plan train study --backbone MODEL": "",
    "train study --backbone MODEL": "train",
    "gate study --model MODEL": "train",
    "score study --model MODEL": "train",
    "benchmark study --model MODEL": "train",
    "judge --judge MODEL --out judged --benchmark BENCHMARK --data DATA": "judge",
    "annotate export study": "",
    "annotate import study answers.csv": "answers.csv",
    "labels labels.csv": "",
    "compare study": "study",
    "paper": "",
    "export MODEL --out exported": "train",
    "serve MODEL": "train,serve",
    "sql study 'from rules'": "",
    "publish study --out study.duckdb": "",
    "publish study --dataset published": "hub",
    "doctor": "",
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Run every call in one process that can import only the core."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "pool.csv").write_text("text\nBe kind.\nBe brief.\n")
    pair = {"prompt": "Hi.", "chosen": "Hello.", "rejected": "No."}
    (folder / "pairs.jsonl").write_text(json.dumps(pair))
    labels = "response_id,rule_id,label,rating\n1,kind,yes,1\n2,kind,no,0\n"
    (folder / "labels.csv").write_text(labels)
    core = dependencies_of([])
    absent = [
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not core & {canonicalize_name(name) for name in names}
    ]
    assert {"torch", "transformers", "matplotlib"} <= set(absent)
    paths = {"MODEL": JUDGE_PATH, "BENCHMARK": BENCHMARK_PATH, "DATA": BENCHMARK_DATA_PATH}
    values = {"PAIR": "004de209", **{name: str(path) for name, path in paths.items()}}
    calls = [[values.get(part, part) for part in shlex.split(call)] for call in CALLS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.core_only"],
        input=json.dumps({"absent": absent, "calls": calls}),
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(zip(CALLS, map(tuple, json.loads(done.stdout)), strict=True))


def test_every_command_is_called():
    assert {command_of(call) for call in CALLS} == set(COMMANDS)


def command_of(call: str) -> str:
    return next(name for name in COMMANDS if f"{call} ".startswith(f"{name} "))


@pytest.mark.parametrize(("call", "ending"), CALLS.items())
def test_a_command_without_its_extra_ends_in_one_line(endings, call: str, ending: str):
    code, _, error = endings[call]
    if not ending:
        assert code == 0, error
        return
    [line] = [line for line in error.splitlines() if line.startswith("error: ")]
    assert code == 1, error
    assert "Traceback" not in error
    if set(ending.split(",")) <= set(EXTRAS):
        assert f"pip install 'encore-reward[{ending}]'" in line
        # `encore doctor` prints these purposes.
        assert all(command_of(call) in EXTRAS[name].purpose for name in ending.split(","))
    else:
        assert ending in line
