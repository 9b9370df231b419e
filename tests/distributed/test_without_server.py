"""Several processes on one study without any server: slices of an array job."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.distributed.farm import check_ratings, judge_environ, make_study, options
from tests.distributed.orders import Control

pytestmark = pytest.mark.services  # several processes

NUM_PAIRS = 12
_SECONDS = 120


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path, num_pairs=NUM_PAIRS)


@pytest.fixture
def control(tmp_path: Path) -> Control:
    control = Control(tmp_path / "control")
    control.order(seconds=0.1)
    return control


def start(study: Path, control: Control, *extra: object) -> subprocess.Popen[str]:
    """Start `encore rate` with the steered judge in a process."""
    command = [sys.executable, "-m", "encore.cli", "rate", str(study), *options()]
    return subprocess.Popen(
        [*command, *map(str, extra)],
        env=judge_environ(control),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_end(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """Wait until a command has ended with this exit code; return its output."""
    text, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == code, text
    return text


def test_a_process_alone_starts_its_engine_again(study: Path, control: Control) -> None:
    control.order(dies_at=3)
    text = wait_for_end(start(study, control))
    assert "12 rated, 0 reused, 0 failed" in text
    assert "is put back, its engine died: RuntimeError: the generation failed" in text
    check_ratings(study, control, most_times=1)


def test_slices_in_three_processes_equal_one_run(study: Path, control: Control) -> None:
    slices = [start(study, control, "--slice", f"{number}/3") for number in range(3)]
    for process in slices:
        wait_for_end(process)

    check_ratings(study, control, most_times=1)
    num_rated_by_process = Counter(event["pid"] for event in control.events("rated"))
    assert [*num_rated_by_process.values()] == [NUM_PAIRS // 3] * 3
