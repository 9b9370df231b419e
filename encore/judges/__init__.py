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


def open_judge(config: JudgeConfig) -> Judge:
    """Open the judge that a config describes. Its weights are loaded by the first reply.

    Raises:
        EncoreError: The model has no usable weights, tokenizer or chat template, or the
            backend's packages are missing.
    """
    module, name = BACKENDS[config.backend]
    judge: Judge = getattr(import_module(module), name)(config)
    return judge


def open_engines(config: JudgeConfig, engines: int | Literal["auto"]) -> Judge:
    """Open a judge with several engines, which are vLLM servers that it starts on this machine.

    Args:
        config: Options of the judge.
        engines: Number of engines. ``auto``: as many as there are groups of GPUs. A single one is
            in this process.

    Raises:
        EncoreError: There are fewer GPUs than the engines need; see also `open_judge`.
    """
    from encore.judges.gpu_groups import engine_environments

    shares = engine_environments(engines, config.num_devices)
    if len(shares) == 1:
        return open_judge(config)
    from encore.judges.served_judge import ServedJudge
    from encore.judges.vllm_servers import LocalServers

    return ServedJudge(config, servers=LocalServers(shares=shares))
