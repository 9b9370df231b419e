"""The `rewardbench` command from PyPI, in an environment of its own (float32, not quantized).

It scores with a one-label model folder that older transformers can read, such as an export.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from encore.data.records import RESPONSES, PreferencePair
from tests.export.readers.conversations import messages_of
from tests.export.readers.environments import SCRIPTS, offline_environ, reader_python


class RewardbenchRun(NamedTuple):
    """What the command said of P pairs.

    Attributes:
        score_P2: Of chosen and rejected, float64.
        accuracy: Its own figure: the share of pairs with chosen strictly above rejected.
    """

    score_P2: NDArray[np.float64]
    accuracy: float


def run_rewardbench(
    model: Path, pairs: Sequence[PreferencePair], *, max_length: int, folder: Path
) -> RewardbenchRun:
    """Score pairs with the command, one at a time: it pads on the left, which moves positions.

    Args:
        model: A one-label model folder; it is only read.
        pairs: Turns alternate from the user on: it names roles by counting.
        max_length: Passed on. The command cuts nothing unless it is told to, whatever this says.
        folder: Where it runs and writes.

    Raises:
        AssertionError: the command failed; the end of what it said.
    """
    # It writes results beside a model that it is given by an absolute path.
    (folder / "reward-model").symlink_to(model.resolve(), target_is_directory=True)
    asked = [dict(zip(RESPONSES, messages_of(pair), strict=True)) for pair in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    options = [
        *("--model", "reward-model", "--dataset", "pairs.jsonl", "--load_json"),
        *("--torch_dtype", "float32", "--not_quantized"),
        *("--max_length", str(max_length), "--batch_size", "1"),
    ]
    done = subprocess.run(
        [reader_python("rewardbench"), "-I", SCRIPTS / "rewardbench_command.py", *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=offline_environ(HF_HOME=str(folder / "hf")),
        timeout=3000,
    )
    assert done.returncode == 0, f"rewardbench: {(done.stdout + done.stderr)[-3000:]}"
    said = (folder / "results" / "reward-model_outputs.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in said.splitlines()]
    # It writes a score of one label as a list of one or, unwrapped, as a number.
    scores = [[np.squeeze(row[f"scores_{side}"]) for side in RESPONSES] for row in rows]
    accuracy = json.loads((folder / "results" / "reward-model.json").read_text())["accuracy"]
    return RewardbenchRun(score_P2=np.array(scores, dtype=np.float64), accuracy=accuracy)
