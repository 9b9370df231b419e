"""Find a model's files, refuse unsafe or incomplete ones, and identify them by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError, InputError
from encore.core.extras import require_packages

_MIB = 1024 * 1024
#: A larger weight file is identified by its length and one MiB of every sixteen: reading all of
#: 140 GB would take longer than many rating runs. The first MiB holds the header with the name,
#: shape and position of every tensor, and no matrix of a large model is smaller than the gap.
_FULL_DIGEST_LIMIT = 1024 * _MIB
_SAMPLE_EVERY = 16 * _MIB
#: Files that can change the output of a model. Notes or a trainer's state cannot.
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
    """The location and the identity of a model.

    Attributes:
        location: Folder or hub id, as loaders take it.
        name: Name of the folder without its path, or the hub id.
        revision: Commit on the hub, or ``sha256:…`` of the folder's content.
        hub_revision: Commit on the hub; None for a folder.
        config: Content of its config.json.
    """

    location: str
    name: str
    revision: str
    hub_revision: str | None
    config: dict[str, Any]


def local_path(name: str | Path) -> Path:
    """Return the path, with ``~`` as the home folder unless there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_path(name: str) -> bool:
    """Return True if a name means a path of this machine, not OWNER/NAME on the hub.

    It exists, begins with ``.``, ``/`` or ``~``, has two slashes, or its parent is a folder here.
    """
    path = local_path(name)
    has_form = name.startswith((".", "/", "~")) or name.count("/") > 1
    return bool(name) and (has_form or path.exists() or ("/" in name and path.parent.is_dir()))


def refuse_missing_folder(
    purpose: str, model: str, *, error: type[EncoreError] = InputError
) -> None:
    """Refuse a path without a folder, before anything is imported or asked of the hub.

    Args:
        purpose: What the model is for in the message, e.g. ``judge``.
        model: Folder or hub id.
        error: Class of the error that is raised.

    Raises:
        EncoreError: The path has no folder. Its class is ``error``.
    """
    folder = local_path(model)
    if is_path(model) and not folder.is_dir():
        _refuse_gguf(purpose, model, [folder] if folder.exists() else [], error=error)
        raise error(
            f"{purpose} {model!r}: {'a file' if folder.exists() else 'no such file or folder'}; "
            "expected a folder with config.json, tokenizer and *.safetensors weights, or a hub id "
            "such as meta-llama/Llama-3.1-8B-Instruct"
        )


def _refuse_gguf(
    purpose: str, model: str, files: Iterable[Path], *, error: type[EncoreError]
) -> None:
    """Refuse a model whose files are GGUF, with the two ways to use it.

    Args:
        purpose: What the model is for in the message.
        model: The file, or its folder, as the user gave it.
        files: Files of the model.
        error: Class of the error that is raised.
    """
    name = next((path.name for path in files if path.suffix == ".gguf"), None)
    if name is not None:
        raise error(
            f"{purpose} {model!r}: {name} is a GGUF file, which is not loaded here; let a "
            "llama.cpp server answer (--backend http), or turn it into a folder with safetensors "
            "weights: docs/http-judges.md shows both"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFinder:
    """Finds the files of models for one purpose.

    Attributes:
        name: The purpose in messages, e.g. ``judge``.
        error: Class of the errors that it raises.
    """

    name: str
    error: type[EncoreError]

    def find(
        self, model: str, *, revision: str | None = None, needs_weights: bool = True
    ) -> ModelFiles:
        """Find the files of a model.

        Args:
            model: Folder or hub id.
            revision: Branch, tag or commit of a hub id; not allowed for a folder.
            needs_weights: True requires safetensors weights in a folder.

        Raises:
            EncoreError: No such folder or hub model, no safetensors weights, no config. Its class
                is ``error``.
        """
        folder = local_path(model)
        if folder.is_dir():
            return self._local(folder, model, revision, needs_weights=needs_weights)
        refuse_missing_folder(self.name, model, error=self.error)
        return self._hub(model, revision)

    def optional_file(self, files: ModelFiles, name: str) -> Path | None:
        """Return the path of a file that a model may have; None if it has none.

        In offline mode only files in the hub's cache exist.

        Args:
            files: The model's files as `find` returns them.
            name: Name of the file.

        Raises:
            EncoreError: The hub does not answer. Its class is ``error``.
        """
        if files.hub_revision is None:
            path = local_path(files.location) / name
            return path if path.is_file() else None
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(files.location, name, revision=files.hub_revision))
        except Exception as error:
            is_away = isinstance(error, LocalEntryNotFoundError) and not constants.HF_HUB_OFFLINE
            if isinstance(error, EntryNotFoundError) and not is_away:
                return None
            raise self._unreachable(files.name, error) from error

    def _unreachable(self, model: str, error: Exception) -> EncoreError:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        return self.error(
            f"{self.name} {model!r}: no such folder here, and no model the hub can give "
            f"({type(error).__name__}: {reason}); check the path or the id, or `hf auth login`"
        )

    def _local(
        self, folder: Path, model: str, revision: str | None, *, needs_weights: bool
    ) -> ModelFiles:
        if revision is not None:
            raise self.error(
                f"{self.name} {model!r}: a revision ({revision!r}) belongs to a hub id, not to "
                "a folder; leave it out (the folder is identified by its content)"
            )
        if not any(folder.glob("*.safetensors")):
            _refuse_gguf(self.name, model, folder.glob("*.gguf"), error=self.error)
        config = self.read_config(folder)
        if needs_weights and not any(folder.glob("*.safetensors")):
            names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise self.error(
                f"{self.name} {model!r}: no *.safetensors weights in the folder (found: {names}); "
                "pickled weights are not loaded: save the model with save_pretrained first"
            )
        return ModelFiles(
            location=str(folder),
            name=folder.resolve().name,
            revision=f"sha256:{folder_digest(folder)}",
            hub_revision=None,
            config=config,
        )

    def _hub(self, model: str, revision: str | None) -> ModelFiles:
        require_packages("huggingface_hub", work=f"{self.name} {model!r}, no folder here,")
        try:
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(model, "config.json", revision=revision))
        except Exception as error:
            raise self._unreachable(model, error) from error
        commit = path.parent.name  # the cache keeps each revision under snapshots/<commit>
        return ModelFiles(
            location=model,
            name=model,
            revision=commit,
            hub_revision=commit,
            config=self.read_config(path.parent),
        )

    def read_config(self, folder: Path) -> dict[str, Any]:
        """Read a folder's config.json. The settings of its text model stand at the top level.

        Raises:
            EncoreError: No such file, or not a JSON object. Its class is ``error``.
        """
        try:
            loaded: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if not isinstance(loaded, dict):
                raise ValueError(f"it holds {type(loaded).__name__}, expected an object")
        except (OSError, ValueError) as error:
            raise self.error(
                f"{self.name} {str(folder)!r}: no config.json that can be read ({error}); expected "
                "a Hugging Face model folder (save_pretrained writes one)"
            ) from error
        # Models for text and images keep their language model's settings one level down.
        return {**loaded, **(loaded.get("text_config") or {})}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over names, lengths and contents of a model's identifying files."""
    files = sorted(
        {path for pattern in _IDENTIFYING for path in folder.glob(pattern) if path.is_file()}
    )
    digest = hashlib.sha256()
    for path in files:
        line = f"{path.name} {path.stat().st_size} {file_digest(path)}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def is_demo_judge(revision: object) -> bool:
    """Return True if a revision is that of the judge that the demo ships."""
    return revision == f"sha256:{_demo_judge_digest()}"


@cache
def _demo_judge_digest() -> str:
    return folder_digest(Path(__file__).parents[1] / "demo" / "judge")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of samples if it is longer than 1 GiB."""
    with path.open("rb") as file:
        if path.stat().st_size <= _FULL_DIGEST_LIMIT:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for start in range(0, path.stat().st_size, _SAMPLE_EVERY):
            file.seek(start)
            digest.update(file.read(_MIB))
        return digest.hexdigest()
