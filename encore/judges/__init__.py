"""Judge backends: one file per backend, and the table that names them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal

from encore.judges.server_options import ServerOptions

if TYPE_CHECKING:
    from encore.judges.base import Judge
    from encore.judges.judge_options import JudgeConfig

#: Module and class of each backend.
BACKENDS = {
    "vllm": ("encore.judges.vllm_engine", "VllmJudge"),
    "http": ("encore.judges.http_judge", "HttpJudge"),
    "transformers": ("encore.judges.transformers_model", "TransformersJudge"),
}
_DECISION_JUDGE = ("encore.judges.decision_judge", "DecisionJudge")


def open_judge(config: JudgeConfig, how: ServerOptions = ServerOptions()) -> Judge:
    """Open the judge that a config describes. Its weights are loaded by the first reply.

    Args:
        config: Judge to open.
        how: Address of the judge's server, if it is on one, and how it is asked.

    Raises:
        EncoreError: The model has no usable weights, tokenizer or chat template, the backend's
            packages are missing, or the judge cannot be on that server.
    """
    server = config.server(how)
    module, name = BACKENDS[config.backend] if config.api is None else _DECISION_JUDGE
    backend = getattr(import_module(module), name)
    judge: Judge = backend(config, server) if config.backend == "http" else backend(config)
    return judge


def open_engines(config: JudgeConfig, how: ServerOptions, engines: int | Literal["auto"]) -> Judge:
    """Open a judge with several engines, which are vLLM servers that it starts on this machine.

    Args:
        config: Judge of every engine.
        how: Way in which each server is asked.
        engines: Number of engines. ``auto``: as many as there are groups of GPUs. A single one is
            in this process.

    Raises:
        EncoreError: There are fewer GPUs than the engines need; see also `open_judge`.
    """
    from encore.judges.gpu_groups import engine_environments

    shares = engine_environments(engines, config.num_devices)
    if len(shares) == 1:
        return open_judge(config, how)
    from encore.judges.served_judge import ServedJudge
    from encore.judges.vllm_servers import LocalServers

    return ServedJudge(config, config.server(how), servers=LocalServers(shares=shares))
