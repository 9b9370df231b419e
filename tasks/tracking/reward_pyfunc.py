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
    """Reward model that scores conversations one at a time, so that no padding takes part."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the export; nothing pickled and no remote code is run."""
        folder = context.artifacts["export"]
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, use_safetensors=True
        )
        self._model = model.to(self._device).eval()

    # MLflow reads the parameters of this method and leaves out the context if it is not one.
    def predict(  # type: ignore[override]
        self, model_input: pd.DataFrame
    ) -> list[float]:
        """Return the score of each row, in order.

        Args:
            model_input: A data frame whose column ``messages`` has conversations: lists of role
                and content.

        Raises:
            ValueError: A row has no conversation that ends with the assistant's turn.
        """
        return [
            self._score(row_number, messages)
            for row_number, messages in enumerate(model_input["messages"])
        ]

    def _score(self, row_number: int, messages: Sequence[Mapping[str, str]]) -> float:
        if not len(messages) or messages[-1]["role"] != "assistant":
            raise ValueError(f"row {row_number}: expected messages that end with the assistant's")
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        ids, max_length = self._tokenizer(text)["input_ids"], self._tokenizer.model_max_length
        if len(ids) > max_length:  # cut the oldest tokens, but not the one that begins every text
            first_ids = {self._tokenizer.bos_token_id, self._tokenizer.cls_token_id}
            kept = ids[:1] if ids[0] in first_ids else []
            ids = kept + ids[len(ids) - max_length + len(kept) :]
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([ids], device=self._device)).logits
        return float(logits[0, 0])


mlflow.models.set_model(RewardModel())
