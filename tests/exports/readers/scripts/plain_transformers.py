"""Score with the installed transformers: its classes, its defaults, batches of 8.

Called with the paths of the request and of the answer. It needs torch and transformers alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def read(folder: str, conversations: list) -> dict[str, Any]:
    """Return the scores and labels of one model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    texts = [tokenizer.apply_chat_template(messages, tokenize=False) for messages in conversations]
    scores: list = []
    for start in range(0, len(texts), 8):
        batch = tokenizer(texts[start : start + 8], padding=True, return_tensors="pt")
        with torch.no_grad():
            scores += model(**batch).logits.double().tolist()
    labels = [model.config.id2label[index] for index in range(model.config.num_labels)]
    return {"scores": scores, "labels": labels, "dtype": str(model.dtype)}


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    readings = [read(model, request["conversations"]) for model in request["models"]]
    answer = {"transformers": transformers.__version__, "readings": readings}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
