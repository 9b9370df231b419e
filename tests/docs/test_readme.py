"""The README's blocks run as they stand, line by line, in an empty folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from encore.core.extras import EXTRAS
from tests.golden.command_line import run_process
from tests.worlds.real_model import llama_server
from tests.worlds.studies import numbered_pairs, write_lines

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Longer, nobody reads it.
MAX_LINES = 150


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in a language, in order, lines joined at backslashes."""
    texts = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r" *\\\n *", " ", block) for block in texts]


def block_with(text: str, language: str = "sh") -> list[str]:
    [block] = [block for block in blocks(language) if text in block]
    return [line.partition("  #")[0].rstrip() for line in block.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder in which ``encore`` and ``.venv/bin/encore`` are this checkout's."""
    folder = tmp_path / "new"
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    script = commands / "encore"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m encore.cli "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    return folder


def run_line(line: str, folder: Path) -> str:
    finished = run_process("sh", "-c", line, cwd=folder)
    assert finished.code == 0, (line, finished.err)
    return finished.out


def test_the_readme_is_short_and_installs_an_extra_that_exists():
    assert len(README.splitlines()) <= MAX_LINES
    install, *_ = block_with("encore demo")
    assert install == "python3 -m venv .venv && .venv/bin/pip install '.[report]'"
    extras = re.findall(r"pip install '\.\[([\w,-]+)\]'", README)
    extras_known = {*EXTRAS, "flows", "track"}
    assert extras
    assert {name for names in extras for name in names.split(",")} <= extras_known


@pytest.mark.services
def test_the_first_block_runs_in_an_empty_folder(folder):
    _, demo, *further_lines = block_with("encore demo")
    answer = run_line(demo, folder)
    [table] = re.findall(r"^```\n(All sources.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    printed = [line.rstrip() for line in answer.splitlines()]
    lines = [line.rstrip() for line in table.splitlines()]
    assert [line for line in lines if line not in (*printed, " …")] == []
    for line in further_lines:
        assert run_line(line, folder)


@pytest.mark.services
def test_the_block_in_python_reads_ratings_from_1_to_5(folder):
    rng = np.random.default_rng(0)
    rows = [
        {"pair_id": f"p{n}", "source": "mine", "response": response, "rule_id": "be-kind"}
        for n in range(40)
        for response in ("chosen", "rejected")
    ]
    pd.DataFrame(rows).assign(rating=rng.integers(1, 6, len(rows))).to_csv("ratings.csv")
    [block] = [block for block in blocks("python") if "ratings.csv" in block]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = run_process(sys.executable, "-c", block, cwd=folder, env=environment)
    assert finished.code == 0, finished.err
    assert (folder / "report.html").is_file()


@pytest.mark.services
def test_the_block_with_a_judge_over_http_runs_with_a_llama_server(folder):
    write_lines(folder / "pairs.jsonl", numbered_pairs(2))
    with llama_server(folder) as address:
        for line in block_with("--base-url"):
            changed = line.replace("http://127.0.0.1:8080/v1", address)
            printed = run_line(changed.replace("my-judge", "smollm2"), folder)
    assert "Which rules to trust" in printed
