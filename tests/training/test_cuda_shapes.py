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
def events(tmp_path_factory) -> list[dict]:
    """Run `cuda_shapes` and return the printed events; ``ENCORE_CUDA_TORCH`` keeps torch (5 GB)."""
    kept_folder = os.environ.get("ENCORE_CUDA_TORCH")
    folder = Path(kept_folder) if kept_folder else tmp_path_factory.mktemp("cuda-torch")
    if not (folder / "torch").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, TORCH]
        subprocess.run(command, check=True)
    finished = subprocess.run(
        [sys.executable, "-m", "tests.training.cuda_shapes"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.full
def test_every_layout_scores_in_float32_and_packed_rows_call_the_kernel_once_a_layer(events):
    forwards = [event for event in events if event["event"] == "forward"]
    assert len(forwards) == 2 * 4  # numbers of heads, layouts
    for forward in forwards:
        num_responses = 1 if forward["layout"] == "single" else 2
        assert forward["shape"] == [num_responses, forward["num_heads"]]
        assert (forward["device"], forward["dtype"]) == ("cuda", "torch.float32")
        is_packed = forward["layout"] in ("packed", "prefix-shared")
        assert forward["num_kernel_calls"] == (32 if is_packed else 0)


@pytest.mark.full
def test_an_update_keeps_number_format_and_device(events):
    updates = [(event["device"], event["dtype"]) for event in events if event["event"] == "update"]
    assert updates == [("cuda", "torch.bfloat16"), ("cuda", "torch.float32")]
