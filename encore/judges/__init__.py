"""Judge backends: one file per backend, and the table that names them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encore.judges.base import Judge
    from encore.judges.judge_options import JudgeConfig

#: Module and class of each backend.
BACKENDS = {
    "vllm": ("encore.judges.vllm_engine", "VllmJudge"),
    "http": ("encore.judges.http_judge", "HttpJudge"),
    "transformers": ("encore.judges.transformers_model", "TransformersJudge"),
}


def open_judge(config: JudgeConfig) -> Judge:
    """Open the judge that a config describes. Its weights are loaded by the first reply.

    Raises:
        EncoreError: The model has no usable weights, tokenizer or chat template, or the
            backend's packages are missing.
    """
    module, name = BACKENDS[config.backend]
    judge: Judge = getattr(import_module(module), name)(config)
    return judge
