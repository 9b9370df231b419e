"""Where TRL lives: a folder of its own in front of this environment's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Runs on transformers 5 and torch 2.13; what it needs besides is what `encore[train,hub]` needs.
TRL_REQUIREMENT = "trl==1.16.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlEnvironment:
    """How to start Python with TRL."""

    python: str
    environment: Mapping[str, str]


def trl_environment(folder: Path, *, python: str | None) -> TrlEnvironment:
    """The interpreter given, which has TRL; or this one, with TRL installed into a folder.

    Raises:
        SystemExit: pip could not install it; its own words.
    """
    if python is not None:
        return TrlEnvironment(python=python, environment={})
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    _run([*install, "--target", str(folder), TRL_REQUIREMENT])
    search = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return TrlEnvironment(
        python=sys.executable, environment={"PYTHONPATH": os.pathsep.join(search)}
    )


def _run(command: Sequence[str]) -> None:
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(
            f"{TRL_REQUIREMENT} could not be installed; give an interpreter that has it with "
            f"--trl-python, or --without-trl\n{finished.stderr.strip()}"
        )
