"""The assembled CUDA path of the 8B model, by fake tensors: no GPU, a CUDA build of torch."""

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
    """A folder with a CUDA build of torch; ``ENCORE_CUDA_TORCH`` keeps it (5 GB) between runs."""
    named = os.environ.get("ENCORE_CUDA_TORCH")
    folder = Path(named) if named else tmp_path_factory.mktemp("cuda-torch")
    if not (folder / "torch").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, TORCH]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def told(cuda_torch) -> list[dict]:
    """What `cuda_shapes` printed."""
    environment = {**os.environ, "PYTHONPATH": f"{cuda_torch}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.training.cuda_shapes"]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.full
def test_every_layout_scores_in_float32_on_the_device(told):
    forwards = [one for one in told if one["what"] == "forward"]
    assert len(forwards) == 2 * 4  # numbers of heads, layouts
    for one in forwards:
        num_responses = 1 if one["layout"] == "single" else 2
        assert one["shape"] == [num_responses, one["num_heads"]]
        assert (one["device"], one["dtype"]) == ("cuda", "torch.float32")


@pytest.mark.full
def test_packed_rows_call_the_variable_length_kernel_once_a_layer(told):
    for one in told:
        if one["what"] == "forward":
            is_packed = one["layout"] in ("packed", "prefix-shared")
            assert one["num_kernel_calls"] == (32 if is_packed else 0)


@pytest.mark.full
def test_an_update_keeps_number_format_and_device(told):
    updates = [(one["device"], one["dtype"]) for one in told if one["what"] == "update"]
    assert updates == [("cuda", "torch.bfloat16"), ("cuda", "torch.float32")]
