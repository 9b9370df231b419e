"""A judge's files, its number format and its context length."""

from __future__ import annotations

import json
from pathlib import Path

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


def check_loadable(model: ModelFiles) -> None:
    """Look at a folder's weights and chat template before an engine takes a minute to do so.

    Raises:
        JudgeUnavailableError: A weight file is empty or cut short, or there is no chat template.
    """
    if model.hub_revision is None:
        folder = Path(model.location).expanduser()
        _refuse_no_template(folder, model.name)
        _refuse_broken_weights(folder, model.name)


def _refuse_broken_weights(folder: Path, name: str) -> None:
    """Compare the lengths of all weight files with their headers."""
    paths = set(folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        names = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        paths |= {folder / part for part in names}
    for path in sorted(paths):
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                num_header = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(num_header, size)))
            ends = [one["data_offsets"][1] for key, one in header.items() if key != "__metadata__"]
            problem = None if size == 8 + num_header + max(ends, default=0) else "it is cut short"
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"it is empty or no safetensors file ({type(error).__name__})"
        if problem is not None:
            raise JudgeUnavailableError(
                f"judge {name!r}: {path.name}: {problem}; copy or download the weights again"
            )


def _refuse_no_template(folder: Path, name: str) -> None:
    """Look for a chat template before the tokenizer's packages are imported."""
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # the tokenizer says what is wrong with it
    if not settings.get("chat_template") and not any(folder.glob("chat_template*")):
        raise JudgeUnavailableError(
            f"judge {name!r}: its tokenizer has no chat template; use an instruction-tuned model "
            "or add a chat_template to tokenizer_config.json"
        )


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
