"""Judge backends: one file per backend, one line each in this table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encore.judges.base import Judge
    from encore.judges.judge_config import JudgeConfig

#: backend name -> (module, class)
BACKENDS = {
    "vllm": ("encore.judges.vllm_engine", "VllmJudge"),
    "http": ("encore.judges.http_server", "HttpJudge"),
    "transformers": ("encore.judges.transformers_model", "TransformersJudge"),
}


def open_judge(config: JudgeConfig) -> Judge:
    """The judge a config describes. Weights are loaded with its first reply.

    Raises:
        EncoreError: The model has no usable weights, tokenizer or chat template, or the
            backend's packages are missing.
    """
    module, name = BACKENDS[config.backend]
    judge: Judge = getattr(import_module(module), name)(config)
    return judge
