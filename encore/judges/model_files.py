"""A judge's files, its number format and its context length."""

from __future__ import annotations

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError
from encore.model_files import ModelFiles, ModelRole, folder_digest

__all__ = [
    "ModelFiles",
    "find_model",
    "folder_digest",
    "resolved_dtype",
    "resolved_max_model_len",
]

_DEFAULT_CONTEXT = 8192
_DTYPES = ("float32", "bfloat16", "float16")
_JUDGE = ModelRole(name="judge", error=JudgeUnavailableError)


def find_model(config: JudgeConfig) -> ModelFiles:
    """The files of a judge given as a folder or as a hub id.

    Raises:
        JudgeUnavailableError: No such folder or hub model, no safetensors weights, no config.
    """
    return _JUDGE.find(config.model, revision=config.revision)


def resolved_dtype(config: JudgeConfig, model: ModelFiles) -> str:
    """The number format to load: the config's, or the one the weights were saved for.

    vLLM's own ``auto`` quietly turns float32 into bfloat16; a judge is loaded as it declares.
    """
    if config.dtype != "auto":
        return config.dtype
    declared = model.config.get("dtype") or model.config.get("torch_dtype") or "float32"
    dtype = str(declared).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise JudgeUnavailableError(
            f"judge {model.name!r}: its config.json says dtype {dtype!r}, expected one of "
            f"{', '.join(_DTYPES)}; give --dtype"
        )
    return dtype


def resolved_max_model_len(config: JudgeConfig, model: ModelFiles) -> int:
    """The context length in tokens: the config's, else the model's own up to 8,192.

    The cap keeps a 128K-context judge's KV cache within one GPU; preference data is far shorter,
    and what is longer is counted, not lost.

    Raises:
        JudgeUnavailableError: The config asks for more than the model has.
    """
    own = model.config.get("max_position_embeddings") or model.config.get("n_positions")
    if not isinstance(own, int):
        return config.max_model_len or _DEFAULT_CONTEXT
    if config.max_model_len is None:
        return min(own, _DEFAULT_CONTEXT)
    if config.max_model_len > own:
        raise JudgeUnavailableError(
            f"judge {model.name!r}: max_model_len {config.max_model_len} is more than the model's "
            f"own {own}; give at most that"
        )
    return config.max_model_len
