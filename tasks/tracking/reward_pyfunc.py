"""An exported reward model as an MLflow model: conversations in, one score for each out.

MLflow keeps this file beside the export and runs it wherever the model is loaded. So it imports
nothing of this project, and reads the export as plain transformers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlflow
import pandas as pd
import torch
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class RewardModel(PythonModel):
    """Scores conversations one at a time, so that no padding takes part."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the export; nothing pickled and no remote code is run."""
        folder = context.artifacts["export"]
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, use_safetensors=True
        )
        self._model = model.to(self._device).eval()

    def predict(self, model_input: pd.DataFrame) -> list[float]:
        """The score of each row, in order.

        Args:
            model_input: A data frame whose column ``messages`` has conversations: lists of role
                and content.

        Raises:
            ValueError: A row without a conversation that ends with the assistant's turn.
        """
        return [self._score(*one) for one in enumerate(model_input["messages"])]

    def _score(self, place: int, messages: Sequence[Mapping[str, str]]) -> float:
        if not len(messages) or messages[-1]["role"] != "assistant":
            raise ValueError(f"row {place}: expected messages that end with the assistant's")
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        ids, longest = self._tokenizer(text)["input_ids"], self._tokenizer.model_max_length
        if len(ids) > longest:  # the oldest tokens go, never the one that every text begins with
            begins = {self._tokenizer.bos_token_id, self._tokenizer.cls_token_id}
            kept = ids[:1] if ids[0] in begins else []
            ids = kept + ids[len(ids) - longest + len(kept) :]
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([ids], device=self._device)).logits
        return float(logits[0, 0])


mlflow.models.set_model(RewardModel())
