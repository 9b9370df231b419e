"""The `rewardbench` command from PyPI, in an environment of its own (float32, not quantized).

It scores with a one-label model folder that older transformers can read, such as an export.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.data.records import PreferencePair
from tests.export.readers.conversations import messages_of
from tests.export.readers.environments import SCRIPTS, environment_python, offline_environ

_SECONDS = 3000
_SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardbenchRun:
    """What the command said of P pairs.

    Attributes:
        score_P2: Of chosen and rejected, float64.
        accuracy: Its own figure: the share of pairs with chosen strictly above rejected.
    """

    score_P2: NDArray[np.float64]
    accuracy: float


def run_rewardbench(
    model: Path,
    pairs: Sequence[PreferencePair],
    *,
    max_length: int = 1024,
    batch_size: int = 8,
    python: Path | None = None,
) -> RewardbenchRun:
    """Score pairs with the command.

    Args:
        model: A one-label model folder; it is only read.
        pairs: Turns alternate from the user on (see `alternating`): it names roles by counting.
        max_length: Passed on. The command cuts nothing unless it is told to, whatever this says.
        batch_size: In pairs; its own default.
        python: An interpreter that has rewardbench (default: an environment built on demand).

    Raises:
        EnvironmentUnavailableError: there is none and none can be built.
        AssertionError: the command failed; the end of what it said.
    """
    python = python or environment_python("rewardbench")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # It writes results beside a model that it is given by an absolute path.
        (folder / "reward-model").symlink_to(model.resolve(), target_is_directory=True)
        _write_pairs(folder / "pairs.jsonl", pairs)
        options = [
            *("--model", "reward-model", "--dataset", "pairs.jsonl", "--load_json"),
            *("--torch_dtype", "float32", "--not_quantized"),
            *("--max_length", str(max_length), "--batch_size", str(batch_size)),
        ]
        done = subprocess.run(
            [str(python), "-I", str(SCRIPTS / "rewardbench_command.py"), *options],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env=offline_environ(HF_HOME=str(folder / "hf")),
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"rewardbench: {(done.stdout + done.stderr)[-3000:]}"
        return _read_run(folder)


def _write_pairs(path: Path, pairs: Sequence[PreferencePair]) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for pair in pairs:
            chosen, rejected = messages_of(pair)
            lines.write(json.dumps({"chosen": chosen, "rejected": rejected}) + "\n")


def _read_run(folder: Path) -> RewardbenchRun:
    results = folder / "results"
    with (results / "reward-model_outputs.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return RewardbenchRun(
        score_P2=np.array([[_number(row[f"scores_{side}"]) for side in _SIDES] for row in rows]),
        accuracy=json.loads((results / "reward-model.json").read_text())["accuracy"],
    )


def _number(score: float | list[float]) -> float:
    """It writes a score of one label as a list of one or, unwrapped, as a number."""
    return float(score[0] if isinstance(score, list) else score)
