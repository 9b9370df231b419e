"""Run the `rewardbench` command of PyPI in its own environment (float32, not quantized).

It scores with a one-label model folder that older transformers can read, such as an export.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from encore.data.records import RESPONSES, PreferencePair
from tests.exports.readers.conversations import messages_of
from tests.exports.readers.environments import reader_python, run_script


class RewardbenchRun(NamedTuple):
    """Results of the command for P pairs.

    Attributes:
        score_P2: Scores of the chosen and the rejected response, float64.
        accuracy: Accuracy that the command reports: the share of pairs with chosen above rejected.
    """

    score_P2: NDArray[np.float64]
    accuracy: float


def run_rewardbench(
    model: Path, pairs: Sequence[PreferencePair], *, max_length: int, folder: Path
) -> RewardbenchRun:
    """Score pairs with the command, one at a time, because it pads on the left.

    Args:
        model: A one-label model folder; it is only read.
        pairs: Pairs whose turns alternate, user first: the command derives roles from the order.
        max_length: Maximum length in tokens. The command cuts only with ``--force_truncation``.
        folder: Working folder of the command.

    Raises:
        AssertionError: The command failed; the message has the end of its output.
    """
    # The command writes its results beside a model that is given by an absolute path.
    (folder / "reward-model").symlink_to(model.resolve(), target_is_directory=True)
    records = [dict(zip(RESPONSES, messages_of(pair), strict=True)) for pair in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    options = [
        *("--model", "reward-model", "--dataset", "pairs.jsonl", "--load_json"),
        *("--torch_dtype", "float32", "--not_quantized"),
        *("--max_length", max_length, "--batch_size", 1),
    ]
    run_script(reader_python("rewardbench"), "rewardbench_command.py", *options, folder=folder)
    output = (folder / "results" / "reward-model_outputs.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in output.splitlines()]
    # A score is a number, or a list of one number.
    scores = [[np.squeeze(row[f"scores_{side}"]) for side in RESPONSES] for row in rows]
    accuracy = json.loads((folder / "results" / "reward-model.json").read_text())["accuracy"]
    return RewardbenchRun(score_P2=np.array(scores, dtype=np.float64), accuracy=accuracy)
