"""Judge backends: one file per backend, and the table that names them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from encore.judges.base import Judge
    from encore.judges.judge_options import JudgeConfig

#: Module and class of each backend.
BACKENDS = {
    "vllm": ("encore.judges.vllm_engine", "VllmJudge"),
    "http": ("encore.judges.http_judge", "HttpJudge"),
    "transformers": ("encore.judges.transformers_model", "TransformersJudge"),
}


def open_judge(config: JudgeConfig, *, engines: int | Literal["auto"] = 1) -> Judge:
    """Open the judge that a config describes. Its weights are loaded by the first reply.

    Args:
        config: Options of the judge.
        engines: Number of engines. One is in this process; more are vLLM servers that it starts.
            ``auto``: as many as there are groups of GPUs, or one.

    Raises:
        EncoreError: The model has no usable weights, tokenizer or chat template, or the
            backend's packages are missing, or there are fewer GPUs than the engines need.
    """
    if engines != 1:
        from encore.judges.gpu_groups import engine_environments

        shares = engine_environments(engines, config.num_devices)
        if len(shares) > 1:
            from encore.judges.served_judge import ServedJudge
            from encore.judges.vllm_servers import LocalServers

            return ServedJudge(config, servers=LocalServers(shares=shares))
    module, name = BACKENDS[config.backend]
    judge: Judge = getattr(import_module(module), name)(config)
    return judge
