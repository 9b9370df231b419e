"""Find a judge's files, refuse what is not safe or complete, and identify them by content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError

_MIB = 1024 * 1024
#: Beyond this size a weight file is identified by its length and one MiB of every sixteen: reading
#: all of 140 GB would take longer than many a rating run. The first MiB holds the header with every
#: tensor's name, shape and place, and no matrix of a large model is smaller than the gap.
_FULL_DIGEST_LIMIT = 1024 * _MIB
_SAMPLE_EVERY = 16 * _MIB
_DEFAULT_CONTEXT = 8192
_DTYPES = ("float32", "bfloat16", "float16")
#: The files that can change a reply. A note or a trainer's state beside them cannot.
_IDENTIFYING = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model lies and which one it is.

    ``location`` is what a loader takes (folder or hub id), ``name`` the same without a machine's
    path, ``revision`` the hub commit or ``sha256:…`` of the folder's content.
    """

    location: str
    name: str
    revision: str
    hub_revision: str | None
    config: dict[str, Any]


def find_model(config: JudgeConfig) -> ModelFiles:
    """The files of a judge given as a folder or as a hub id.

    Raises:
        JudgeUnavailableError: No such folder or hub model, no safetensors weights, no config.
    """
    folder = Path(config.model).expanduser()
    if folder.is_dir():
        return _local_model(folder, config)
    if folder.exists() or config.model.startswith((".", "/", "~")) or config.model.count("/") > 1:
        raise JudgeUnavailableError(
            f"judge {config.model!r}: no such folder; expected one with config.json, tokenizer "
            "and *.safetensors weights, or a hub id such as meta-llama/Llama-3.1-8B-Instruct"
        )
    return _hub_model(config)


def _local_model(folder: Path, config: JudgeConfig) -> ModelFiles:
    if config.revision is not None:
        raise JudgeUnavailableError(
            f"judge {config.model!r}: a revision ({config.revision!r}) belongs to a hub id, not to "
            "a folder; leave it out (the folder is identified by its content)"
        )
    model_config = _read_config(folder)
    if not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise JudgeUnavailableError(
            f"judge {config.model!r}: no *.safetensors weights in the folder (found: {found}); "
            "pickled weights are not loaded: save the model with save_pretrained first"
        )
    return ModelFiles(
        location=str(folder),
        name=folder.resolve().name,
        revision=f"sha256:{folder_digest(folder)}",
        hub_revision=None,
        config=model_config,
    )


def _hub_model(config: JudgeConfig) -> ModelFiles:
    try:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(config.model, "config.json", revision=config.revision))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise JudgeUnavailableError(
            f"judge {config.model!r}: neither a folder nor a model the hub can give "
            f"({type(error).__name__}: {reason}); check the id, `hf auth login`, or give a folder"
        ) from error
    commit = path.parent.name  # the cache keeps each revision under snapshots/<commit>
    return ModelFiles(
        location=config.model,
        name=config.model,
        revision=commit,
        hub_revision=commit,
        config=_read_config(path.parent),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        loaded: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise JudgeUnavailableError(
            f"judge {str(folder)!r}: no config.json in the folder; expected a Hugging Face model "
            "folder (save_pretrained writes one)"
        ) from error
    except (OSError, ValueError) as error:
        raise JudgeUnavailableError(
            f"judge {str(folder)!r}: config.json cannot be read as JSON: {error}"
        ) from error
    if not isinstance(loaded, dict):
        raise JudgeUnavailableError(
            f"judge {str(folder)!r}: config.json holds a {type(loaded).__name__}, expected an "
            "object; save the model with save_pretrained"
        )
    # Models for text and images keep their language model's settings one level down.
    return {**loaded, **(loaded.get("text_config") or {})}


def folder_digest(folder: Path) -> str:
    """SHA-256 over names, lengths and content of the files that make a model what it is."""
    files = sorted(
        {path for pattern in _IDENTIFYING for path in folder.glob(pattern) if path.is_file()}
    )
    digest = hashlib.sha256()
    for path in files:
        line = f"{path.name} {path.stat().st_size} {_file_digest(path)}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        if path.stat().st_size <= _FULL_DIGEST_LIMIT:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for start in range(0, path.stat().st_size, _SAMPLE_EVERY):
            file.seek(start)
            digest.update(file.read(_MIB))
        return digest.hexdigest()


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
