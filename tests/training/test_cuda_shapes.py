"""The CUDA path of the 8B model on fake tensors, with a CUDA build of torch and no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Three equals signs, or pip takes the installed build for CPUs as the same version.
TORCH = "torch===2.13.0"


@pytest.fixture(scope="module")
def cuda_torch(tmp_path_factory) -> Path:
    """Return a folder with a CUDA build of torch; ``ENCORE_CUDA_TORCH`` keeps it (5 GB)."""
    kept_folder = os.environ.get("ENCORE_CUDA_TORCH")
    folder = Path(kept_folder) if kept_folder else tmp_path_factory.mktemp("cuda-torch")
    if not (folder / "torch").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, TORCH]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def events(cuda_torch) -> list[dict]:
    """Run `cuda_shapes` and return the printed events."""
    environment = {**os.environ, "PYTHONPATH": f"{cuda_torch}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.training.cuda_shapes"]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.full
def test_every_layout_scores_in_float32_on_the_device(events):
    forwards = [event for event in events if event["event"] == "forward"]
    assert len(forwards) == 2 * 4  # numbers of heads, layouts
    for forward in forwards:
        num_responses = 1 if forward["layout"] == "single" else 2
        assert forward["shape"] == [num_responses, forward["num_heads"]]
        assert (forward["device"], forward["dtype"]) == ("cuda", "torch.float32")


@pytest.mark.full
def test_packed_rows_call_the_variable_length_kernel_once_a_layer(events):
    for event in events:
        if event["event"] == "forward":
            is_packed = event["layout"] in ("packed", "prefix-shared")
            assert event["num_kernel_calls"] == (32 if is_packed else 0)


@pytest.mark.full
def test_an_update_keeps_number_format_and_device(events):
    updates = [(event["device"], event["dtype"]) for event in events if event["event"] == "update"]
    assert updates == [("cuda", "torch.bfloat16"), ("cuda", "torch.float32")]
