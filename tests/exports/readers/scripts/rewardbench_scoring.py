"""Score rows of RewardBench 2 with the functions of the `rewardbench` package."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from rewardbench.utils import process_single_model, reroll_and_score_dataset

if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_bytes())
    answer = {}
    for subset, rows in request.items():
        if subset == "Ties":
            answer[subset] = float(process_single_model(rows)[1])
            continue
        scores = [score for row in rows for score in row["scores"]]
        unrolled = Dataset.from_dict({"text": [""] * len(scores), "scores": scores})
        totals = [len(row["scores"]) for row in rows]
        results = reroll_and_score_dataset(unrolled, totals)["results"]
        answer[subset] = sum(results) / len(results)
    Path(sys.argv[2]).write_text(json.dumps(answer))
